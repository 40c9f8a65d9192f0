"""Single sends: what is stored, what the client refuses, and what hooks see."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from cometmq.client import (
    BackPressureError,
    ClientClosedError,
    ClientError,
    ClientInstance,
    InvalidMessageError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    ResponseError,
    SendReceipt,
    SendStatus,
    SendTimeoutError,
    blocking,
)
from cometmq.client._connection.instance import core_of
from cometmq.client._sending.sender import INNER_GROUP, InnerProducer
from cometmq.client.errors import InvalidNameError, QueueNotFoundError
from cometmq.client.hooks import ForbiddenHook, SendContext, SendHook, SendKind
from cometmq.client.settings import ClientSettings, ProducerSettings
from cometmq.model.errors import ConfigError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.properties import decode_properties
from support.brokers.scripted import Act, ScriptedBroker, ScriptedCluster, SentBroker
from support.clients.stored_messages import read_all
from support.wire.unique_ids import decode_unique_id

MESSAGE = Message(topic="t", body=b"x")


# --- whole clusters -----------------------------------------------------------------------------


async def test_a_message_arrives_as_it_was_sent(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    message = Message(
        topic, "Grüße".encode(), tags="paid", keys=["k1", "k2"], flag=7, properties={"ü": "é"}
    )
    async with Producer(name_servers, group=group) as producer:
        receipt = await producer.send(message)
    (got,) = await read_all(name_servers, queues, 1)

    assert (got.topic, got.body, got.tags, got.keys, got.flag) == (
        topic, "Grüße".encode(), "paid", ["k1", "k2"], 7
    )  # fmt: skip
    assert got.properties["ü"] == "é"
    assert (got.message_id, got.offset_message_id) == (
        receipt.message_id,
        receipt.offset_message_id,
    )
    assert (got.queue, got.queue_offset) == (receipt.queue, receipt.queue_offset)
    assert receipt.status is SendStatus.SEND_OK
    assert receipt.region_id == "DefaultRegion"


async def test_every_way_of_sending_stores_the_message(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    async with Producer(name_servers, group=group) as producer:
        ids = {
            (await producer.send(Message(topic, b"awaited"))).message_id,
            (await producer.send_nowait(Message(topic, b"begun"))).message_id,
            await producer.send_oneway(Message(topic, b"oneway")),
        }
        got = await read_all(name_servers, queues, 3)

    assert {message.message_id for message in got} == ids
    assert {message.body for message in got} == {b"awaited", b"begun", b"oneway"}


def changing_sends(send: Callable[[Message], Any], topic: str, count: int) -> list[Any]:
    """Begin sends with one message that changes after each of them."""
    message, sends = Message(topic, b""), []
    for number in range(count):
        message.body, message.properties["number"] = b"%d" % number, str(number)
        message.keys = (key for key in (f"k{number}",))
        sends.append(send(message))
    message.body, message.properties["number"], message.keys = b"", "", ()
    return sends


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hooks": [SendHook()]},
        {"auto_batch": True},
        {"auto_batch": True, "hooks": [SendHook()]},
    ],
    ids=["plain", "hooks", "batched", "batched with hooks"],
)
async def test_a_message_may_be_changed_once_its_send_has_begun(
    name_servers: str,
    queues: list[MessageQueue],
    topic: str,
    group: str,
    options: dict[str, Any],
    count: int,
) -> None:
    """Also before the route is known and the connection is open."""
    async with Producer(name_servers, group=group, **options) as producer:
        await asyncio.gather(*changing_sends(producer.send_nowait, topic, count))
    got = await read_all(name_servers, queues, count)

    expected = [str(number) for number in range(count)]
    assert sorted(message.body.decode() for message in got) == expected
    assert sorted(message.properties["number"] for message in got) == expected
    assert sorted(message.keys for message in got) == [[f"k{number}"] for number in expected]


async def test_a_thread_may_change_a_message_once_its_send_has_begun(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    def send() -> None:
        with blocking.Producer(name_servers, group=group) as producer:
            for future in changing_sends(producer.send_nowait, topic, 100):
                future.result(60)

    await asyncio.to_thread(send)
    got = await read_all(name_servers, queues, 100)

    assert sorted(int(message.body) for message in got) == list(range(100))


async def test_hooks_may_read_keys_that_can_be_read_once(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    read: list[list[str]] = []

    class ReadsKeys(SendHook):
        def before_send(self, context: SendContext) -> None:
            read.append(list(context.messages[0].keys))

    async with Producer(name_servers, group=group, hooks=[ReadsKeys()]) as producer:
        await producer.send(Message(topic, b"x", keys=(key for key in ("k1", "k2"))))
    (got,) = await read_all(name_servers, queues, 1)

    assert read == [["k1", "k2"]]
    assert got.keys == ["k1", "k2"]


async def test_keys_that_cannot_be_read_fail_their_send_and_hold_no_room() -> None:
    def fail() -> Iterator[str]:
        yield "k"
        raise LookupError

    async with (
        ScriptedCluster([ScriptedBroker()]) as cluster,
        Producer(cluster.address, group="g", back_pressure_messages=10) as producer,
    ):
        for _ in range(11):
            with pytest.raises(LookupError):
                await producer.send_nowait(Message("t", b"x", keys=fail()))


async def test_the_queue_can_be_said_picked_or_left_to_the_key(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    async with Producer(name_servers, group=group) as producer:
        said = await producer.send(Message(topic, b"x"), queue=queues[3])
        picked = await producer.send(Message(topic, b"x"), selector=lambda all_, _: all_[1])
        keyed = [await producer.send(Message(topic, b"x"), order_key="k") for _ in range(3)]
        begun = await producer.send_nowait(Message(topic, b"x"), order_key="k")

    assert said.queue == queues[3]
    assert picked.queue == queues[1]
    assert {receipt.queue for receipt in [*keyed, begun]} == {keyed[0].queue}


async def test_sends_take_the_queues_in_turn(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    async with Producer(name_servers, group=group) as producer:
        receipts = [await producer.send(Message(topic, b"x")) for _ in range(8)]

    assert sorted(receipt.queue for receipt in receipts) == sorted(queues * 2)


async def test_a_topic_that_does_not_exist_is_made_by_the_first_send(
    name_servers: str, topic: str, group: str
) -> None:
    new = f"{topic}-new"
    async with Producer(name_servers, group=group, new_topic_queues=2) as producer:
        receipt = await producer.send(Message(new, b"x"))

        assert len(await producer.fetch_queues(new)) == 2
    (got,) = await read_all(name_servers, [receipt.queue], 1)
    assert got.body == b"x"


async def test_thousands_of_begun_sends_are_stored_once_each(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    receipts: list[SendReceipt] = []
    async with Producer(name_servers, group=group, timeout_ms=120_000) as producer:
        for first in range(0, 3_000, 300):
            numbers = range(first, first + 300)
            sends = [producer.send_nowait(Message(topic, b"%d" % number)) for number in numbers]
            receipts += await asyncio.gather(*sends)
    got = await read_all(name_servers, queues, 3_000)

    assert sorted(int(message.body) for message in got) == list(range(3_000))
    assert len({receipt.offset_message_id for receipt in receipts}) == 3_000


@pytest.mark.only_on("comet")
async def test_begun_sends_to_one_queue_stay_in_order(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    """Other brokers store with several threads, which overtake each other."""
    async with Producer(name_servers, group=group, timeout_ms=120_000) as producer:
        await producer.ready(topic)
        sends = [
            producer.send_nowait(Message(topic, b"%d" % number), queue=queues[1])
            for number in range(300)
        ]
        await asyncio.gather(*sends)
    got = await read_all(name_servers, queues, 300)

    assert [int(message.body) for message in got] == list(range(300))


async def test_names_are_wrapped_in_the_namespace_on_the_wire_only(
    name_servers: str, group: str
) -> None:
    """Whoever looks without the namespace sees the names as brokers know them."""
    seen: list[MessageQueue] = []

    def first(queues: Any, message: Message) -> MessageQueue:
        seen.extend(queues)
        picked: MessageQueue = queues[0]
        return picked

    async with Producer(name_servers, group=group, namespace="ns") as producer:
        receipt = await producer.send(Message(f"in-{group}", b"x"))
        await producer.send(Message(f"in-{group}", b"x"), selector=first)
        queues = await producer.fetch_queues(f"in-{group}")
    outside = [
        MessageQueue(f"ns%{queue.topic}", queue.broker_name, queue.queue_id) for queue in queues
    ]
    got = await read_all(name_servers, outside, 2)

    assert receipt.queue.topic == seen[0].topic == f"in-{group}"
    assert got[0].topic == f"ns%in-{group}"
    assert got[0].properties["INSTANCE_ID"] == "ns"


# --- refused before anything is sent ------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message("t", b""), InvalidMessageError),
        (Message("t", b"x" * 101), InvalidMessageError),
        (Message("", b"x"), InvalidNameError),
        (Message("no blanks", b"x"), InvalidNameError),
        (Message("t" * 128, b"x"), InvalidNameError),
        (Message("RMQ_SYS_TRANS_HALF_TOPIC", b"x"), InvalidMessageError),
        (Message("t", b"x", properties={"": "x"}), InvalidMessageError),
        (Message("t", b"x", properties={"x": " "}), InvalidMessageError),
        (Message("t", b"x", properties={"TRAN_MSG": "true"}), InvalidMessageError),
        (Message("t", b"x", tags="a\x01b"), InvalidMessageError),
        (Message("t", b"x", keys=[" "]), InvalidMessageError),
    ],
)
async def test_what_breaks_a_rule_is_refused_by_every_way_of_sending(
    message: Message, error: type[Exception]
) -> None:
    broker = SentBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g", body_bytes_max=100) as producer,
    ):
        for send in (producer.send, producer.send_nowait, producer.send_oneway):
            with pytest.raises(error):
                await send(message)

    assert broker.sends == []


MISSING = MessageQueue("t", "a", 99)


@pytest.mark.parametrize("known_route", [True, False])
@pytest.mark.parametrize(
    "send",
    [
        lambda producer: producer.send(MESSAGE, queue=MISSING),
        lambda producer: producer.send_nowait(MESSAGE, queue=MISSING),
        lambda producer: producer.send_batch([MESSAGE], queue=MISSING),
    ],
)
async def test_a_queue_that_the_broker_does_not_have_is_not_found(
    send: Callable[[Producer], Awaitable[SendReceipt]], *, known_route: bool
) -> None:
    broker = SentBroker("a", *[ResponseCode.INVALID_PARAMETER] * 2)
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g") as producer,
    ):
        if known_route:  # the first attempt needs no task of its own
            await producer.ready("t")
        with pytest.raises(QueueNotFoundError, match=r"t@a:99 is no queue .*code 29") as e:
            await send(producer)
        assert isinstance(e.value.__cause__, ResponseError)
        known = (await producer.fetch_queues("t"))[0]
        with pytest.raises(ResponseError):
            await producer.send(MESSAGE, queue=known)


async def test_a_queue_the_topic_does_not_have_is_refused() -> None:
    def elsewhere(queues: Any, message: Message) -> MessageQueue:
        return MessageQueue("other", "a", 0)

    broker = SentBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g") as producer,
    ):
        with pytest.raises(QueueNotFoundError):
            await producer.send(MESSAGE, queue=MessageQueue("other", "a", 0))
        with pytest.raises(QueueNotFoundError):
            await producer.send(MESSAGE, selector=elsewhere)
        for how in (
            {"selector": elsewhere, "order_key": "k"},
            {"queue": MessageQueue("t", "a", 0), "order_key": "k"},
        ):
            with pytest.raises(TypeError, match="one of them"):
                await producer.send(MESSAGE, **how)

    assert broker.sends == []


@pytest.mark.parametrize("group", ["", " ", "a b", "g" * 256, "DEFAULT_PRODUCER"])
def test_a_group_without_a_valid_name_is_refused(group: str) -> None:
    with pytest.raises(InvalidNameError):
        Producer("127.0.0.1:1", group=group)


async def test_settings_come_as_keywords_or_as_an_object() -> None:
    """The keyword wins; a setting nobody knows is refused."""
    given = ProducerSettings(retries=5, compress_level=1)
    producer = Producer("127.0.0.1:1", group="g", settings=given, retries=0)

    assert (producer.settings.retries, producer.settings.compress_level) == (0, 1)
    with pytest.raises(ConfigError, match="did you mean retries"):
        Producer("127.0.0.1:1", group="g", retrys=0)


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_a_compressor_that_is_not_installed_is_refused_at_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lz4.frame", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(ConfigError, match=rf"{kind}.*extra 'compression'"):
        Producer("127.0.0.1:1", group="g", compress_type=kind)


async def test_topics_that_are_named_ahead_need_no_route_at_the_first_send() -> None:
    """One that is not found is looked for again by its first send."""
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster:
        async with Producer(cluster.address, group="g", topics=("t", "late")) as producer:
            asked = cluster.name_server.asked.count("t")
            await producer.send(MESSAGE)
            cluster.name_server.routes["late"] = cluster.name_server.routes["t"]
            await producer.send(Message("late", b"x"))

        assert asked == cluster.name_server.asked.count("t") == 1
    assert [header.topic for header in broker.sends] == ["t", "late"]


async def test_two_producers_of_a_group_cannot_share_an_instance() -> None:
    """The first one goes on."""
    broker = SentBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address) as instance,
        Producer(instance=instance, group="g") as first,
    ):
        second = Producer(instance=instance, group="g", detector=True, latency_avoidance=True)
        with pytest.raises(ClientError, match="of g already"):
            await second.start()
        await first.send(MESSAGE)

    assert len(broker.sends) == 1


async def test_every_message_has_an_id_of_this_client() -> None:
    broker = SentBroker()
    client = ClientSettings(client_ip="10.1.2.3")
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g", client=client) as producer,
    ):
        receipts = [await producer.send(MESSAGE) for _ in range(3)]

    decoded = [decode_unique_id(receipt.message_id) for receipt in receipts]
    assert {one.host for one in decoded} == {"10.1.2.3"}
    assert len({one.counter for one in decoded}) == 3


# --- back-pressure ------------------------------------------------------------------------------


def limited(cluster: ScriptedCluster, **options: Any) -> Producer:
    """A producer with the smallest limits."""
    limits = {"back_pressure_messages": 10, "back_pressure_bytes": 1 << 20, **options}
    return Producer(cluster.address, group="g", compress_level=0, **limits)


LARGE = Message("t", b"x" * 700_000)


@pytest.mark.usefixtures("virtual_time")
async def test_without_room_send_nowait_raises_and_the_others_wait() -> None:
    broker = ScriptedBroker("a", *[Act.STAY_SILENT] * 10)
    async with ScriptedCluster([broker]) as cluster, limited(cluster, retries=0) as producer:
        silent = [asyncio.create_task(producer.send(MESSAGE, timeout=0.3)) for _ in range(10)]
        await broker.until(lambda: len(broker.sends) == 10)
        with pytest.raises(BackPressureError, match="10 messages of 10 bytes are in flight"):
            producer.send_nowait(MESSAGE)
        waiting = asyncio.create_task(producer.send(MESSAGE))
        await asyncio.sleep(0.1)
        assert len(broker.sends) == 10

        future = await producer.send_soon(MESSAGE)
        assert (await waiting).status is (await future).status is SendStatus.SEND_OK
        failures = await asyncio.gather(*silent, return_exceptions=True)

    assert [type(failure) for failure in failures] == [SendTimeoutError] * 10


async def test_a_full_limit_of_bytes_is_no_room() -> None:
    """Waiting does not block the event loop, and ends when there is room."""
    broker = ScriptedBroker("a", Act.STAY_SILENT)
    async with ScriptedCluster([broker]) as cluster, limited(cluster) as producer:
        first = producer.send_nowait(Message("t", b"x" * (1 << 20)), timeout=60.0)
        await broker.until(lambda: bool(broker.sends))
        waiting = asyncio.create_task(producer.send(MESSAGE))
        with pytest.raises(BackPressureError, match="1048576 bytes are in flight"):
            producer.send_nowait(MESSAGE)
        await asyncio.sleep(0)
        assert not waiting.done()
        assert len(broker.sends) == 1

        broker.hang_up()
        assert (await waiting).status is (await first).status is SendStatus.SEND_OK


@pytest.mark.usefixtures("virtual_time")
async def test_a_send_without_room_in_time_was_not_sent() -> None:
    broker = ScriptedBroker("a", Act.STAY_SILENT)
    async with ScriptedCluster([broker]) as cluster, limited(cluster) as producer:
        silent = producer.send_nowait(LARGE, timeout=60.0)
        for send in (producer.send, producer.send_soon):
            with pytest.raises(SendTimeoutError, match=r"no room within 0.2 s: 1 mess") as failure:
                await send(LARGE, timeout=0.2)
            assert isinstance(failure.value, TimeoutError)
            assert not failure.value.maybe_stored
        silent.cancel()

    assert len(broker.sends) == 1


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("hooks", [[], [SendHook()]], ids=["fast path", "general path"])
async def test_a_send_keeps_its_room_until_its_last_attempt_has_ended(
    hooks: list[SendHook],
) -> None:
    """The second attempt follows a broken connection: the message still takes memory."""
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, Act.HANG_UP, Act.STAY_SILENT)
    async with ScriptedCluster([broker]) as cluster, limited(cluster, hooks=hooks) as producer:
        await producer.send(MESSAGE)
        retried = producer.send_nowait(LARGE, timeout=1.0)
        await broker.until(lambda: len(broker.sends) == 3)
        with pytest.raises(BackPressureError, match="700000 bytes"):
            producer.send_nowait(LARGE)
        assert (await producer.send(LARGE)).status is SendStatus.SEND_OK
        with pytest.raises(SendTimeoutError):
            await retried


@pytest.mark.usefixtures("virtual_time")
async def test_a_cancelled_send_keeps_its_room_until_the_response_or_the_timeout() -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, Act.STAY_SILENT)
    async with ScriptedCluster([broker]) as cluster, limited(cluster) as producer:
        await producer.send(MESSAGE)
        cancelled = await producer.send_soon(LARGE, timeout=0.5)
        cancelled.cancel()
        with pytest.raises(BackPressureError):
            producer.send_nowait(LARGE)
        assert (await producer.send(LARGE, timeout=5.0)).status is SendStatus.SEND_OK


async def test_batches_count_for_the_limits_too() -> None:
    broker = ScriptedBroker("a", Act.STAY_SILENT)
    async with ScriptedCluster([broker]) as cluster, limited(cluster) as producer:
        batch = asyncio.create_task(producer.send_batch([LARGE, LARGE], timeout=60.0))
        await broker.until(lambda: bool(broker.sends))
        with pytest.raises(BackPressureError, match="1 messages of 1400000 bytes"):
            producer.send_nowait(MESSAGE)
        batch.cancel()
        await asyncio.wait([batch])
        assert await producer.send_nowait(MESSAGE)


async def test_ten_thousand_sends_at_once_wait_for_room_and_are_all_stored() -> None:
    broker = SentBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g", timeout_ms=60_000) as producer,
    ):
        await producer.send(MESSAGE)
        receipts = await asyncio.gather(*(producer.send(MESSAGE) for _ in range(10_000)))

    assert len({receipt.message_id for receipt in receipts}) == 10_000
    assert len(broker.sends) == 10_001


@pytest.mark.usefixtures("virtual_time")
async def test_a_flush_returns_when_earlier_sends_have_ended() -> None:
    broker = ScriptedBroker("a", ResponseCode.SUCCESS, Act.STAY_SILENT, Act.STAY_SILENT)
    async with ScriptedCluster([broker]) as cluster, limited(cluster) as producer:
        await producer.flush()
        await producer.send(MESSAGE)
        sends = [producer.send_nowait(MESSAGE, timeout=limit) for limit in (0.2, 0.4)]
        await producer.flush()
        assert [type(send.exception()) for send in sends] == [SendTimeoutError] * 2


async def test_closing_refuses_the_sends_that_wait_for_room() -> None:
    broker = ScriptedBroker("a", Act.STAY_SILENT)
    async with ScriptedCluster([broker]) as cluster:
        async with limited(cluster, timeout_ms=50) as producer:
            first = producer.send_nowait(LARGE, timeout=60.0)
            waiting = asyncio.create_task(producer.send(LARGE, timeout=60.0))
            await broker.until(lambda: bool(broker.sends))
        results = await asyncio.gather(first, waiting, return_exceptions=True)
        for send in (producer.send, producer.send_soon):
            with pytest.raises(ClientClosedError):
                await send(MESSAGE)
        with pytest.raises(ClientClosedError):
            producer.send_nowait(MESSAGE)

    assert [str(result).partition(":")[0] for result in results] == [
        "the producer was closed",
        "not sent",
    ]


async def test_closing_waits_for_what_was_begun() -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster:
        async with Producer(cluster.address, group="g") as producer:
            sends = [producer.send_nowait(MESSAGE) for _ in range(20)]
        receipts = await asyncio.gather(*sends)

    assert len(receipts) == len(broker.sends) == 20


# --- hooks --------------------------------------------------------------------------------------


class Watching(SendHook):
    """Notes what it is told, and adds a property."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.last: SendContext | None = None

    def before_send(self, context: SendContext) -> None:
        self.calls.append("before")
        context.messages[0].properties["added"] = "by a hook"

    def after_attempt(self, context: SendContext) -> None:
        self.calls.append(f"try {context.attempts} {type(context.error).__name__}")

    def after_send(self, context: SendContext) -> None:
        self.calls.append("after")
        self.last = context


async def test_hooks_see_every_try_and_may_add_properties() -> None:
    broker, hook = SentBroker("a", ResponseCode.SYSTEM_BUSY), Watching()
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g", hooks=[hook]) as producer,
    ):
        receipt = await producer.send(Message("t", b"x", delay_level=2))

    assert hook.calls == ["before", "try 1 ResponseError", "try 2 NoneType", "after"]
    assert hook.last is not None
    assert (hook.last.receipt, hook.last.error) == (receipt, None)
    assert hook.last.kind is SendKind.DELAYED
    assert (hook.last.group, hook.last.address, hook.last.queue) == (
        "g",
        broker.address,
        receipt.queue,
    )
    assert decode_properties(broker.sends[-1].properties or "")["added"] == "by a hook"


@pytest.mark.parametrize("way", ["send_nowait", "send_oneway", "send_batch"])
async def test_hooks_see_every_way_of_sending(way: str) -> None:
    broker, hook = SentBroker(), Watching()
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g", hooks=[hook]) as producer,
    ):
        message: Any = [MESSAGE, MESSAGE] if way == "send_batch" else MESSAGE
        await getattr(producer, way)(message)
        await broker.until(lambda: bool(broker.sends))

    assert (hook.calls[0], hook.calls[-1]) == ("before", "after")
    assert hook.last is not None
    assert hook.last.oneway is (way == "send_oneway")
    assert hook.last.message_id
    assert MESSAGE.properties == {}


async def test_a_hook_that_fails_changes_nothing() -> None:
    class Failing(SendHook):
        def before_send(self, context: SendContext) -> None:
            raise ValueError("a bad hook")

        after_attempt = after_send = before_send

    broker, hook = SentBroker(), Watching()
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g", hooks=[Failing(), hook]) as producer,
    ):
        assert isinstance(await producer.send(MESSAGE), SendReceipt)

    assert hook.calls == ["before", "try 1 NoneType", "after"]


async def test_a_forbidding_hook_stops_the_send_before_others_see_it() -> None:
    class Forbidding(ForbiddenHook):
        def check(self, context: SendContext) -> None:
            raise ResponseError(1, f"not to {context.messages[0].topic}")

    broker, hook = SentBroker(), Watching()
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g", hooks=[hook, Forbidding()]) as producer,
    ):
        with pytest.raises(ResponseError, match="not to t"):
            await producer.send(MESSAGE)

    assert (hook.calls, broker.sends) == ([], [])


async def test_hooks_see_that_a_send_was_cancelled() -> None:
    broker, hook = SentBroker("a", Act.STAY_SILENT), Watching()
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="g", hooks=[hook]) as producer,
    ):
        sending = asyncio.ensure_future(producer.send(MESSAGE))
        await broker.until(lambda: bool(broker.sends))
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    assert hook.last is not None
    assert isinstance(hook.last.error, asyncio.CancelledError)


# --- what the client sends itself ---------------------------------------------------------------


async def test_the_client_s_own_messages_may_have_reserved_properties() -> None:
    """How often a message was delivered stands in the header, as with retry topics of Java."""
    broker = SentBroker()
    reserved = {"RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16", "ORIGIN_MESSAGE_ID": "ID"}
    async with ScriptedCluster([broker]) as cluster, ClientInstance(cluster.address) as instance:
        cluster.name_server.routes["%RETRY%g"] = cluster.name_server.routes["t"]
        inner = InnerProducer.of(core_of(instance))
        await inner.send(Message("%RETRY%g", b"x", properties=reserved), timeout=3.0)
        with pytest.raises(InvalidMessageError):
            await inner.send(
                Message("t", b"x", properties=reserved), timeout=3.0, allow_reserved=False
            )
        assert InnerProducer.of(core_of(instance)) is inner

    (header,) = broker.sends
    assert (header.reconsume_times, header.max_reconsume_times) == (3, 16)
    assert header.producer_group == INNER_GROUP
    properties = decode_properties(header.properties or "")
    assert properties["ORIGIN_MESSAGE_ID"] == "ID"
    assert not {"RECONSUME_TIME", "MAX_RECONSUME_TIMES"} & properties.keys()


async def test_durations_may_be_timedeltas(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    receipt = await producer.send(Message(topic, b"x"), timeout=timedelta(seconds=30))
    async with PullConsumer(name_servers, group=group) as consumer:
        result = await consumer.pull(
            receipt.queue, receipt.queue_offset, wait=timedelta(0), timeout=timedelta(seconds=30)
        )

    assert [message.body for message in result.messages] == [b"x"]
    with pytest.raises(ConfigError, match="timeout='30': expected a number of seconds"):
        await producer.send(Message(topic, b"x"), timeout="30")  # type: ignore[arg-type]
