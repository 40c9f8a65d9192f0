"""Consumers: subscriptions, their absence, and runs that leave signals to the program."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from cometmq.client import (
    ClientClosedError,
    ClientError,
    PopConsumer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    StoredMessage,
    blocking,
)
from cometmq.client._connection.identity import Namespace
from cometmq.client._consuming import consumer
from cometmq.client._consuming.consumer import Subscriptions
from cometmq.client.filters import Filter
from cometmq.model.errors import ConfigError
from cometmq.protocol.hashing import java_hash
from support.brokers.group_broker import GroupBroker
from support.brokers.scripted import ScriptedCluster
from support.checks.waiting import until
from unit.client.idempotent.test_consumer import message as stored

NOWHERE = "127.0.0.1:1"
NOTHING_TO_READ = "consumer g has no topics and no queues: call subscribe or assign first"
NO_SUBSCRIPTIONS = "consumer g runs without subscriptions: give topic= or call subscribe"


async def handle(message: StoredMessage) -> None:
    """A handler."""


READS: list[Callable[[PullConsumer], Any]] = [lambda each: each.poll(timeout=0.0), anext]


@pytest.mark.parametrize("read", READS, ids=["poll", "anext"])
async def test_reading_without_topics_and_queues_is_refused(
    read: Callable[[PullConsumer], Any],
) -> None:
    async with PullConsumer(NOWHERE, group="g") as consumer, asyncio.timeout(10):
        with pytest.raises(ClientError, match=NOTHING_TO_READ):
            await read(consumer)


@pytest.mark.parametrize("read", READS, ids=["poll", "anext"])
async def test_reading_after_the_last_topic_is_unsubscribed_is_refused(
    read: Callable[[PullConsumer], Any],
) -> None:
    async with (
        ScriptedCluster([GroupBroker()]) as cluster,
        PullConsumer(cluster.address, group="g", subscriptions={"t": "*"}) as consumer,
        asyncio.timeout(10),
    ):
        assert await consumer.poll(timeout=0.0) == []
        await consumer.unsubscribe("t")
        with pytest.raises(ClientError, match=NOTHING_TO_READ):
            await read(consumer)


async def test_a_consumer_that_is_assigned_no_queues_waits_for_some() -> None:
    async with PullConsumer(NOWHERE, group="g") as consumer:
        await consumer.assign([])
        assert await consumer.poll(timeout=0.0) == []


@pytest.mark.parametrize("kind", [PushConsumer, PopConsumer])
@pytest.mark.parametrize("subscribes", [False, True])
async def test_a_run_without_subscriptions_is_warned_of_once(
    kind: type[PushConsumer | PopConsumer], subscribes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> list[str]:
        return [line for line in caplog.messages if line.startswith(NO_SUBSCRIPTIONS)]

    async with ScriptedCluster([GroupBroker()]) as cluster:
        consumer = kind(
            cluster.address,
            group="g",
            handler=handle,
            subscriptions={"unknown": "*"} if subscribes else None,
        )
        running = asyncio.create_task(consumer.run())
        await until(lambda: consumer.running and (subscribes or lines()))
        await consumer.close()
        await running

    assert len(lines()) == (0 if subscribes else 1)


def consumers(address: str, **options: Any) -> list[Any]:
    return [
        PushConsumer(address, group="push", handler=handle, **options),
        PopConsumer(address, group="pop", handler=handle, **options),
        PullConsumer(address, group="pull", **options),
        SimpleConsumer(address, group="simple", **options),
    ]


@pytest.mark.parametrize("number", range(4), ids=["push", "pop", "pull", "simple"])
async def test_a_consumer_that_is_not_started_or_closed_is_never_ready(number: int) -> None:
    consumer = consumers(NOWHERE)[number]
    with pytest.raises(ClientClosedError, match="is not running: start it first"):
        await consumer.ready()
    await consumer.close()
    with pytest.raises(ClientClosedError, match="is closed: create a new one"):
        await consumer.ready()


@pytest.mark.parametrize("number", range(4), ids=["push", "pop", "pull", "simple"])
async def test_a_consumer_is_ready_once_its_start_is_complete(number: int) -> None:
    async with ScriptedCluster([GroupBroker()]) as cluster, asyncio.timeout(10):
        consumer = consumers(cluster.address)[number]
        starting = asyncio.create_task(consumer.start())
        await consumer.ready()
        assert consumer.running
        await starting
        await consumer.close()


@pytest.mark.parametrize("number", range(4), ids=["push", "pop", "pull", "simple"])
async def test_a_start_that_hangs_is_why_a_consumer_is_not_ready(number: int) -> None:
    cluster = ScriptedCluster([GroupBroker()])
    cluster.name_server.silent = True
    async with cluster:
        consumer = consumers(cluster.address, subscriptions={"t": "*"})[number]
        starting = asyncio.create_task(consumer.start())
        with pytest.raises(TimeoutError, match=r"is not ready after 0.1 s: it is still starting"):
            await consumer.ready(timeout=0.1)

        waiting = asyncio.create_task(consumer.ready())
        await asyncio.sleep(0)
        await consumer.close()
        for call in (starting, waiting):
            with pytest.raises(ClientClosedError):
                await call


@pytest.mark.parametrize(
    "make", [partial(PushConsumer, handler=handle), PullConsumer], ids=["push", "pull"]
)
async def test_a_consumer_that_is_not_ready_says_that_no_name_server_responds(
    make: Callable[..., PushConsumer | PullConsumer],
) -> None:
    async with make(NOWHERE, group="g", subscriptions={"t": "*"}) as consumer:
        with pytest.raises(TimeoutError, match=r"no route of t: no name server .* 127\.0\.0\.1:1"):
            await consumer.ready(timeout=0.2)


def tagged(tag: str | None) -> StoredMessage:
    return stored(**({} if tag is None else {"TAGS": tag}))


@pytest.mark.parametrize("expression", ["*", "", " "])
def test_no_expression_wants_messages_of_any_tag(expression: str) -> None:
    wanted = Filter.of(expression)

    assert wanted.expression == "*"
    assert wanted.takes(tagged(None))
    assert wanted.takes(tagged("a"))


def test_tags_are_compared_by_their_text_and_not_by_their_hash() -> None:
    """``Aa`` and ``BB`` have the same Java hash."""
    wanted = Filter.tags(" Aa || c ")

    assert java_hash("Aa") == java_hash("BB")
    messages = [tagged(tag) for tag in ("Aa", "BB", "c", None)]
    assert [wanted.takes(message) for message in messages] == [True, False, True, False]
    assert wanted.selected(messages) == [messages[0], messages[2]]


@pytest.mark.parametrize(("expression", "warned"), [("x,y", 1), ("x | y", 1), ("x,z || y", 0)])
def test_an_expression_with_another_separator_is_logged_once(
    caplog: pytest.LogCaptureFixture, expression: str, warned: int
) -> None:
    for _ in range(2):
        Filter.of(expression)

    assert [record.getMessage() for record in caplog.records] == [
        f"tag expression {expression!r} selects one tag of that name: separate tags by ||"
    ] * warned


@pytest.mark.parametrize(
    ("expression", "warned"),
    [
        ("price > 10", 1),
        ("color = 'blue'", 1),
        ("paid AND sent", 1),
        ("region in ('eu')", 1),
        ("x or y", 1),
        ("sign-in || or", 0),
        ("color='blue' || x", 1),
    ],
)
def test_tags_that_look_like_sql_are_logged_once(
    caplog: pytest.LogCaptureFixture, expression: str, warned: int
) -> None:
    for _ in range(2):
        Filter.of(expression)

    assert [record.getMessage() for record in caplog.records] == [
        f"tag expression {expression!r} selects tags of that name: Filter.sql filters by SQL"
    ] * warned


@pytest.mark.parametrize(
    ("expression", "ignored"),
    [
        ("color LIKE 'b%'", "LIKE 'b%'"),
        ("a = 1 LIKE 'x'", "LIKE 'x'"),
        ("price > 5 price < 9 /* both */", "price < 9 /* both */"),
        ("a > 5 AND b IS NULL -- the end", None),
        ("price > 5 /* enough */ ", None),
    ],
)
def test_what_brokers_ignore_of_an_expression_is_logged_once(
    caplog: pytest.LogCaptureFixture, expression: str, ignored: str | None
) -> None:
    for _ in range(2):
        Filter.sql(expression)

    assert [record.getMessage() for record in caplog.records] == [
        f"SQL filter {expression!r}: brokers ignore what follows the expression: {ignored!r}"
    ] * (ignored is not None)


def test_a_subscription_tells_the_broker_the_hashes_of_its_tags() -> None:
    data = Filter.tags("a || b").data("t")

    assert (data.topic, data.sub_string, data.expression_type) == ("t", "a || b", "TAG")
    assert dict(zip(data.tags_set, data.code_set, strict=True)) == {"a": 97, "b": 98}
    assert data.sub_version > 1_600_000_000_000


def test_an_sql_filter_leaves_the_choice_to_the_broker() -> None:
    wanted = Filter.of(Filter.sql("a > 5"))

    assert wanted.takes(tagged("anything"))
    assert wanted.data("t").expression_type == "SQL92"


def test_a_class_filter_leaves_the_choice_to_the_filter_server() -> None:
    wanted = Filter.of(Filter.of_class("shop.Dear", "class Dear: ..."))
    data = wanted.data("t")

    assert wanted.takes("anything")
    assert (data.sub_string, data.expression_type, data.class_filter_mode) == (
        *("shop.Dear", "TAG"),
        True,
    )
    assert (data.tags_set, data.code_set) == ([], [])
    assert wanted != Filter.of_class("shop.Dear", "class Dear: # changed")


@pytest.mark.parametrize(("name", "source"), [("", "class A: ..."), ("A", " \n")])
def test_a_class_filter_needs_a_name_and_a_source(name: str, source: str) -> None:
    with pytest.raises(ConfigError, match="name of a class and its source"):
        Filter.of_class(name, source)


def test_a_class_filter_that_no_frame_has_room_for_is_refused() -> None:
    Filter.of_class("A", "x" * 15 * 1024 * 1024)
    with pytest.raises(ConfigError, match=r"class filter 'A': a name and source of .* at most"):
        Filter.of_class("A", "x" * 16 * 1024 * 1024)


@pytest.mark.parametrize(
    "make",
    [
        Filter.of,
        lambda text: Filter.sql(f"a = '{text}'"),
        lambda text: Filter.of_class(text, "class A: ..."),
        lambda text: Filter.of_class("A", f"class A: ...  # {text}"),
    ],
)
def test_a_text_that_no_heartbeat_can_contain_is_refused(make: Callable[[str], Filter]) -> None:
    """As Python reads it from an argument or a file name that is not in UTF-8."""
    with pytest.raises(ConfigError, match="expected UTF-8"):
        make(b"caf\xe9".decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("expression", ["||", " || "])
def test_an_expression_without_a_tag_is_refused(expression: str) -> None:
    with pytest.raises(ConfigError, match="tag"):
        Filter.tags(expression)


@pytest.mark.parametrize("expression", ["", " ", "a >", "a != 1", "(a = 1", "a > 'x'"])
def test_an_sql_filter_needs_an_expression(expression: str) -> None:
    with pytest.raises(ConfigError, match=r"SQL filter .* at character \d+: met .* expected "):
        Filter.sql(expression)


@pytest.mark.parametrize(
    "expression", ["a = 1 garbage", "contains = 'x'", "a IN ('x'" + ", 'x'" * 5000 + ")"]
)
def test_brokers_check_the_sql_on_which_they_differ(expression: str) -> None:
    assert Filter.sql(expression).expression == expression


@pytest.mark.parametrize("make", [Filter.tags, Filter.sql])
def test_an_expression_that_no_heartbeat_has_room_for_is_refused(
    make: Callable[[str], Filter],
) -> None:
    with pytest.raises(ConfigError, match="expression of 1048577 bytes: expected at most 1048576"):
        make("\u00e4" * 524_288 + "x")


def test_a_changed_subscription_is_newer_than_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whenever its filter was made, and wherever the clock is set: brokers ignore an older one."""
    paid, sent = Filter.tags("paid"), Filter.tags("sent")
    subscriptions = Subscriptions(Namespace(), "g", retries=False)

    def version() -> int:
        [data] = subscriptions.data()
        return data.sub_version

    subscriptions.add("t", paid)
    versions = [version()]
    for change in (sent, paid, "sent"):
        subscriptions.add("t", change)
        versions.append(version())
    subscriptions.renew("t")
    versions.append(version())
    monkeypatch.setattr(consumer, "now_ms", lambda: 5)
    subscriptions.add("t", paid)
    versions.append(version())

    assert versions == sorted(set(versions))
    subscriptions.add("t", Filter.tags("paid"))
    assert version() == versions[-1]


async def test_pulls_use_no_subscription_that_brokers_do_not_know() -> None:
    """Two tasks subscribe at once."""
    subscriptions = Subscriptions(Namespace(), "g", retries=False)
    may_end = {"one": asyncio.Event(), "two": asyncio.Event()}
    subscriptions.add("one", "*")
    first = asyncio.create_task(subscriptions.announce(may_end["one"].wait))
    await asyncio.sleep(0)
    subscriptions.add("two", "*")
    second = asyncio.create_task(subscriptions.announce(may_end["two"].wait))
    await asyncio.sleep(0)

    assert subscriptions.filter_of("one") is None
    may_end["one"].set()
    await first
    assert subscriptions.topics() == ["one"]
    subscriptions.add("one", "paid")
    assert subscriptions.filter_of("one") is None
    may_end["two"].set()
    await second
    assert subscriptions.topics() == ["one", "two"]


async def test_an_older_heartbeat_that_ends_later_changes_nothing() -> None:
    subscriptions = Subscriptions(Namespace(), "g", retries=False)
    may_end = asyncio.Event()
    subscriptions.add("one", "*")
    first = asyncio.create_task(subscriptions.announce(may_end.wait))
    await asyncio.sleep(0)
    subscriptions.add("two", "*")
    await subscriptions.announce(partial(asyncio.sleep, 0))

    may_end.set()
    await first

    assert subscriptions.topics() == ["one", "two"]
    assert subscriptions.is_adopted


NAME_SERVER = "127.0.0.1:1"
WAIT_S = 60.0


@pytest.fixture
def signalled() -> Iterator[threading.Event]:
    """Set when the program's own handler gets a SIGTERM."""
    event = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: event.set())
    yield event
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("kind", [PushConsumer, PopConsumer])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_run_without_signals_leaves_them_to_the_program(
    kind: type[PushConsumer | PopConsumer], signalled: threading.Event, *, cancelled: bool
) -> None:
    consumer = kind(NAME_SERVER, group="g", handler=handle)
    running = asyncio.create_task(consumer.run(timeout=WAIT_S, signals=False))
    await consumer.start()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.to_thread(signalled.wait, WAIT_S)

    assert signalled.is_set()
    assert consumer.running
    assert not running.done()
    if cancelled:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        await consumer.close()
        await running
    assert not consumer.running


def test_a_blocking_run_without_signals_leaves_them_to_the_program(
    signalled: threading.Event,
) -> None:
    consumer = blocking.PushConsumer(NAME_SERVER, group="g", handler=lambda message: None)
    seen: list[bool] = []

    def end() -> None:
        while not consumer.running:  # `run` starts it in the main thread
            signalled.wait(0.001)
        os.kill(os.getpid(), signal.SIGTERM)
        seen.extend([signalled.wait(WAIT_S), consumer.running])
        consumer.close()

    thread = threading.Thread(target=end)
    thread.start()
    consumer.run(timeout=WAIT_S, signals=False)
    thread.join(WAIT_S)

    assert seen == [True, True]
    assert not consumer.running
