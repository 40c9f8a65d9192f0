"""The console's pages and changes of topics and groups, over two brokers."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from cometmq.client import AdminClient, Message, PushConsumer, StoredMessage
from cometmq.console.app import Console, Options
from cometmq.console.groups import sample
from cometmq.console.groups.lag_history import LagHistories, LagHistory, LagQuery
from cometmq.console.live import TooManyViewersError
from cometmq.console.pages import NotFoundError
from cometmq.console.reads import Reads
from cometmq.console.topics.tail import (
    PULLED_MAX,
    VIEWERS_MAX,
    Follower,
    Tail,
    TailQuery,
    live,
    tail,
)
from cometmq.model.errors import ConfigError
from cometmq.testing import ThreadedCluster
from support.checks.waiting import until

LIMIT_S = 60.0
BROKERS = ["broker-0", "broker-1"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    settings = {
        "enablePropertyFilter": "true",
        # The disk of the machine may be fuller than a broker likes it.
        "diskSpaceCleanForciblyRatio": "97",
        "diskSpaceWarningLevelRatio": "98",
    }
    with ThreadedCluster(brokers=2, settings=settings) as running:
        yield running


@pytest.fixture
async def admin(cluster: ThreadedCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.name_servers) as running:
        yield running


@pytest.fixture
async def visits(admin: AdminClient) -> AsyncIterator[httpx.AsyncClient]:
    """A visitor of a console without sign-in."""
    console = Console(admin, Options())
    transport = httpx.ASGITransport(console.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8082") as client:
        yield client


async def read(visits: httpx.AsyncClient, path: str, **query: Any) -> Any:
    response = await visits.get(f"/api{path}", params=query)
    assert response.status_code == 200, response.text
    return response.json()


async def make(visits: httpx.AsyncClient, path: str, status: int = 200, **form: Any) -> Any:
    response = await visits.post(f"/api{path}", json=form)
    assert response.status_code == status, response.text
    return response.json()


# --- topics ---------------------------------------------------------------------------------------


async def test_a_topic_is_created_changed_and_deleted(
    visits: httpx.AsyncClient, admin: AdminClient
) -> None:
    made = await make(
        visits, "/topics/create", topic="made", queues=4, message_type="FIFO", ordered=True
    )
    assert [each["broker"] for each in made["brokers"]] == BROKERS
    assert made["brokers"][0]["after"] == (
        "4 read queues, 4 write queues, read and write, ordered, message.type=FIFO"
    )
    assert await admin.order_conf("made") == {"broker-0": 4, "broker-1": 4}
    assert "made" in {each["topic"] for each in (await read(visits, "/topics"))["topics"]}
    error = (await make(visits, "/topics/create", 400, topic="made"))["error"]
    assert "topic made exists" in error
    for name in BROKERS:  # as when a broker was away, or is new
        part = await make(visits, "/topics/create", topic="half", queues=1, brokers=[name])
        assert [each["broker"] for each in part["brokers"]] == [name]

    change = {"topic": "made", "broker": "broker-1", "read_queues": 2, "permission": "read"}
    for number in range(16):
        await admin.send(Message("made", b"x", keys=[str(number)]))
    preview = await read(visits, "/topics/change", **change, attributes="message.type=NORMAL")
    [row] = preview["brokers"]
    assert row == {
        "broker": "broker-1",
        "before": "4 read queues, 4 write queues, read and write, ordered, message.type=FIFO",
        "after": "2 read queues, 4 write queues, read, ordered, message.type=NORMAL",
    }
    assert re.search(r"the queues from 2 on, which have [1-9]\d* message", preview["warnings"][0])
    assert preview["warnings"][1:] == ["broker-1: producers are refused from now on"]
    await make(visits, "/topics/change", **change, attributes=["message.type=NORMAL"])
    configs = await admin.topic_configs("made")
    assert (configs["broker-0"].read_queue_nums, configs["broker-1"].read_queue_nums) == (4, 2)
    assert configs["broker-1"].attributes == {"message.type": "NORMAL"}
    await make(visits, "/topics/change", topic="made", attributes=["message.type="])
    assert (await admin.topic_configs("made"))["broker-0"].attributes == {}

    form = (await visits.get("/topics/delete", params={"topic": "made"})).text
    assert ">Preview</button>" in form
    preview = await read(visits, "/topics/delete", topic="made")
    assert [each["broker"] for each in preview["brokers"]] == BROKERS
    assert preview["messages"] == sum(each["messages"] for each in preview["brokers"]) > 0
    await make(visits, "/topics/delete", topic="made", broker="broker-0")
    await make(visits, "/topics/delete", topic="made")
    assert "made" not in await admin.topics()
    assert await admin.order_conf("made") == {}


@pytest.mark.parametrize(
    ("path", "form", "status", "text"),
    [
        ("create", {"topic": "%RETRY%shop"}, 400, "expected another name"),
        ("create", {"topic": "a b"}, 400, "a b"),
        ("create", {"topic": "x", "queues": 0}, 400, "queues"),
        ("create", {"topic": "x", "brokers": ["none"]}, 400, "broker none has no master"),
        ("create", {"topic": "x", "cluster": "none"}, 400, "cluster none has no master"),
        ("change", {"topic": "TBW102", "queues": 1}, 400, "unknown field"),
        ("change", {"topic": "TBW102", "read_queues": 1}, 400, "type system"),
        ("change", {"topic": "missing", "read_queues": 1}, 404, "there is no topic missing"),
        ("change", {"topic": "held"}, 400, "nothing to change"),
        ("change", {"topic": "held", "broker": "x", "read_queues": 1}, 404, "not on broker x"),
        ("change", {"topic": "held", "attributes": ["a"]}, 400, "expected name=value"),
        ("delete", {"topic": "TBW102"}, 400, "type system"),
        ("delete", {"topic": "held", "broker": "x"}, 404, "not on broker x"),
        ("send", {"topic": "SCHEDULE_TOPIC_XXXX", "body": "x"}, 400, "type system"),
        ("send", {"topic": "missing", "body": "x"}, 404, "there is no topic missing"),
        ("send", {"topic": "held", "body": ""}, 400, "body"),
        ("send", {"topic": "held", "body": "x", "properties": ["KEYS=a"]}, 400, "KEYS"),
    ],
)
async def test_a_wrong_change_of_a_topic_changes_nothing(
    visits: httpx.AsyncClient, admin: AdminClient, path: str, form: Any, status: int, text: str
) -> None:
    await admin.create_topic("held", queues=1)
    before = await admin.topic_configs("held"), await admin.topics()
    error = (await make(visits, f"/topics/{path}", status, **form))["error"]
    assert text in error
    assert (await admin.topic_configs("held"), await admin.topics()) == before


async def test_a_message_is_sent_with_all_that_the_form_has(
    visits: httpx.AsyncClient, admin: AdminClient
) -> None:
    await admin.create_topic("sent", queues=1)
    fields = {
        "topic": "sent", "body": "a\r\nb", "tag": "red", "keys": "k-1\nk-2",
        "properties": "colour=red\nsize = 4", "delay_seconds": "0", "delay_level": "0",
    }  # fmt: skip
    page = (await visits.post("/topics/send", data=fields)).text
    assert "Done." in page
    assert html.escape("/topics/topic?topic=sent") in page
    assert html.escape("/messages/message?topic=sent&broker=") in page

    async def stored() -> bool:
        return len(await admin.messages_by_key("sent", "k-2")) == 1

    await until(stored, timeout=LIMIT_S)
    [found] = await admin.messages_by_key("sent", "k-2")
    assert (found.body, found.tags, found.keys) == (b"a\nb", "red", ["k-1", "k-2"])
    assert (found.properties["colour"], found.properties["size"]) == ("red", "4")
    late = {"topic": "sent", "body": "later", "delay_seconds": "3600"}
    page = (await visits.post("/topics/send", data=late)).text
    assert "SEND_OK" in page
    assert "/messages/message" not in page


async def test_a_tail_follows_a_topic_on_all_its_brokers(admin: AdminClient) -> None:
    await admin.create_topic("followed", queues=2)
    for number in range(4):
        await admin.send(Message("followed", b"before %d" % number))
    [part] = live()

    async def get(tails: AsyncIterator[Tail], wanted: set[str]) -> Tail:
        """Return the first tail with these bodies."""
        async for each in tails:
            if {row.text for row in each.messages} == wanted:
                return each
        raise AssertionError("the tail has ended")

    old = {f"before {number}" for number in range(4)}
    async with part.events(Reads(admin), TailQuery(topic="followed")) as tails:
        await asyncio.wait_for(get(tails, old), LIMIT_S)
        for number in range(4):
            await admin.send(Message("followed", b"after %d" % number, tags="red", keys=["k"]))
        new = {f"after {number}" for number in range(4)}
        found = await asyncio.wait_for(get(tails, old | new), LIMIT_S)
    assert {row.broker for row in found.messages} == {*BROKERS}
    assert {row.text for row in found.messages[:4]} == new
    assert (found.messages[0].tag, found.messages[0].keys, found.left_out) == ("red", ["k"], 0)


@pytest.mark.parametrize(
    ("by", "filter"), [("tag", "red || blue"), ("sql", "colour IN ('red', 'blue')")]
)
async def test_a_tail_has_what_a_filter_selects(admin: AdminClient, by: Any, filter: str) -> None:
    topic = f"filtered-{by}"
    await admin.create_topic(topic, queues=1, brokers=["broker-0"])
    for colour in ("red", "green", "blue"):
        await admin.send(
            Message(topic, colour.encode(), tags=colour, properties={"colour": colour})
        )

    async def shown() -> bool:
        found = await tail(Reads(admin), TailQuery(topic=topic, by=by, filter=filter))
        return [row.text for row in found.messages] == ["blue", "red"]

    await until(shown, timeout=LIMIT_S)


async def test_a_tail_leaves_out_what_comes_too_fast(admin: AdminClient) -> None:
    await admin.create_topic("fast", queues=1, brokers=["broker-0"])
    follower = Follower(Reads(admin), TailQuery(topic="fast"))
    await follower.step()
    for number in range(PULLED_MAX + 8):
        await admin.send(Message("fast", b"%d" % number))
    [queue] = await admin.queue_bounds("fast")

    async def stored() -> bool:
        return (await admin.queue_bounds("fast"))[queue].max_offset == PULLED_MAX + 8

    await until(stored, timeout=LIMIT_S)
    assert await follower.step()
    assert (len(follower.tail.messages), follower.tail.left_out) == (PULLED_MAX, 8)
    assert follower.tail.messages[0].text == str(PULLED_MAX + 7)
    assert not await follower.step()


async def test_a_tail_goes_on_with_a_topic_that_is_created_anew(admin: AdminClient) -> None:
    follower = Follower(Reads(admin), TailQuery(topic="anew"))

    async def shows(text: str) -> bool:
        await follower.step()
        return text in {row.text for row in follower.tail.messages}

    for bodies in (["a", "b", "c"], ["d"]):
        await admin.create_topic("anew", queues=1, brokers=["broker-0"])
        for body in bodies:
            await admin.send(Message("anew", body.encode()))
        await until(partial(shows, bodies[-1]), timeout=LIMIT_S)
        await admin.delete_topic("anew")


async def test_a_tail_has_a_bound_of_viewers_and_names_what_is_wrong(admin: AdminClient) -> None:
    reads, [part] = Reads(admin), live()
    await admin.create_topic("held", queues=1)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(VIEWERS_MAX):
            await stack.enter_async_context(part.events(reads, TailQuery(topic="held")))
        with pytest.raises(TooManyViewersError, match="expected fewer"):
            await stack.enter_async_context(part.events(reads, TailQuery(topic="held")))
    with pytest.raises(NotFoundError, match="there is no topic missing"):
        await tail(reads, TailQuery(topic="missing"))
    with pytest.raises(ConfigError, match="filter is missing"):
        await tail(reads, TailQuery(topic="held", by="sql"))
    with pytest.raises(ConfigError, match="met the end"):
        await tail(reads, TailQuery(topic="held", by="sql", filter="amount >"))


# --- groups ---------------------------------------------------------------------------------------


async def test_a_group_is_created_changed_and_deleted(
    visits: httpx.AsyncClient, admin: AdminClient
) -> None:
    policy = '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":7000}}'
    made = await make(
        visits, "/groups/create", group="made", retry_max_times=3, consume_message_orderly=True,
        retry_policy=policy,
    )  # fmt: skip
    values = {(each["broker"], each["setting"]): each["after"] for each in made["settings"]}
    assert [values[broker, "Retry max times"] for broker in BROKERS] == ["3", "3"]
    assert "7000" in values["broker-0", "Group retry policy"]
    assert "made" in {each["group"] for each in (await read(visits, "/groups"))["groups"]}
    assert (
        "exists on broker-0" in (await make(visits, "/groups/create", 400, group="made"))["error"]
    )

    change = {"group": "made", "broker": "broker-1", "consume_enable": "no", "retry_max_times": 5}
    preview = await read(visits, "/groups/change", **change)
    assert [(each["setting"], each["before"], each["after"]) for each in preview["settings"]] == [
        ("Consume enable", "true", "false"), ("Retry max times", "3", "5"),
    ]  # fmt: skip
    assert preview["warnings"] == ["broker-1: members of the group get no messages any more"]
    await make(visits, "/groups/change", **change)
    shown = (await read(visits, "/groups/group", group="made"))["settings"]
    assert [(each["broker"], each["values"]["consumeEnable"]) for each in shown] == [
        ("broker-0", "True"), ("broker-1", "False"),
    ]  # fmt: skip
    assert shown[1]["values"]["consumeMessageOrderly"] == "True"  # what was not named stays

    await admin.create_topic("%DLQ%made", queues=1)
    await admin.send(Message("%DLQ%made", b"x"))
    preview = await read(visits, "/groups/delete", group="made")
    assert preview["topics"] == [{"topic": "%DLQ%made", "messages": 1}]
    assert "dead letters are deleted" in preview["warnings"][0]
    await make(visits, "/groups/delete", group="made", broker="broker-1")
    assert "%DLQ%made" in await admin.topics()
    await make(visits, "/groups/delete", group="made")
    assert "made" not in await admin.groups()
    assert "%DLQ%made" not in await admin.topics()


@pytest.mark.parametrize(
    ("path", "form", "status", "text"),
    [
        ("create", {"group": "TOOLS_CONSUMER"}, 400, "a group of the brokers"),
        ("create", {"group": "a b"}, 400, "a b"),
        ("create", {"group": "x", "retry_policy": "{"}, 400, "retry_policy: expected"),
        ("create", {"group": "x", "retry_policy": '{"x":' + "[" * 4_000}, 400, "retry_policy"),
        ("create", {"group": "x", "brokers": ["none"]}, 400, "broker none has no master"),
        ("change", {"group": "kept"}, 400, "nothing to change"),
        ("change", {"group": "missing", "retry_max_times": 1}, 404, "no group missing on a broker"),
        ("delete", {"group": "kept", "broker": "x"}, 404, "no group kept on broker x"),
        ("delete", {"group": "CID_RMQ_SYS_x"}, 400, "a group of the brokers"),
        ("reset", {"group": "kept", "topic": "missing", "to": "2h"}, 404, "no topic missing"),
        ("reset", {"group": "missing", "topic": "kept", "to": "2h"}, 404, "no group missing"),
        ("reset", {"group": "kept", "topic": "kept", "to": "later"}, 400, "ISO 8601"),
        ("reset-queue",
         {"group": "kept", "topic": "kept", "broker": "x", "queue": 0, "offset": 0},
         404, "no queue 0 on x"),
        ("reset-queue",
         {"group": "kept", "topic": "kept", "broker": "broker-0", "queue": 0, "offset": 9},
         400, "expected one of 0 to 0"),
        ("reset", {"group": "CID_RMQ_SYS_TRANS", "topic": "kept", "to": "2h"},
         400, "a group of the brokers"),
        ("skip", {"group": "missing", "topic": "kept"}, 404, "no group missing"),
    ],
)  # fmt: skip
async def test_a_wrong_change_of_a_group_changes_nothing(
    visits: httpx.AsyncClient, admin: AdminClient, path: str, form: Any, status: int, text: str
) -> None:
    await admin.create_topic("kept", queues=1)
    await admin.create_group("kept")
    before = await admin.groups(), await admin.committed("kept", "kept")
    assert text in (await make(visits, f"/groups/{path}", status, **form))["error"]
    assert (await admin.groups(), await admin.committed("kept", "kept")) == before


async def test_a_group_without_members_is_moved_as_the_preview_says(
    visits: httpx.AsyncClient, admin: AdminClient
) -> None:
    await admin.create_topic("moved", queues=1)
    await admin.create_group("moving")
    receipts = [await admin.send(Message("moved", b"%d" % number)) for number in range(10)]
    sent = Counter(receipt.queue.broker_name for receipt in receipts)

    async def stored() -> bool:
        return sum(each.max_offset for each in (await admin.queue_bounds("moved")).values()) == 10

    await until(stored, timeout=LIMIT_S)
    of = {"group": "moving", "topic": "moved"}

    async def offsets() -> dict[str, int | None]:
        return {queue.broker_name: at for queue, at in (await admin.committed(**of)).items()}

    preview = await read(visits, "/groups/skip", **of)
    assert (preview["skipped_messages"], preview["repeated_messages"]) == (10, 0)
    assert {each["broker"]: each["skips"] for each in preview["queues"]} == sent
    assert preview["notes"] == [
        "No member is online: the offsets are written, and members begin there."
    ]
    assert await offsets() == dict.fromkeys(BROKERS)
    await make(visits, "/groups/skip", **of)
    assert await offsets() == sent

    preview = await read(visits, "/groups/reset", **of, to="earliest")
    assert (preview["skipped_messages"], preview["repeated_messages"]) == (0, 10)
    last = max(
        (each for each in receipts if each.queue.broker_name == "broker-0"),
        key=lambda each: each.queue_offset,
    )
    one = {**of, "broker": "broker-0", "queue": 0, "offset": last.queue_offset}
    assert (await read(visits, "/groups/reset-queue", **one))["queues"] == [
        {"broker": "broker-0", "queue": 0, "committed": sent["broker-0"],
         "offset": last.queue_offset, "skips": 0, "repeats": 1}
    ]  # fmt: skip
    await make(visits, "/groups/reset-queue", **one)
    assert await offsets() == {**sent, "broker-0": last.queue_offset}
    await make(visits, "/groups/reset", **of, to="earliest")
    assert await offsets() == dict.fromkeys(BROKERS, 0)
    await make(visits, "/groups/reset", **of, to="0s")
    assert await offsets() == sent

    [row] = (await read(visits, "/topics/groups", topic="moved"))["groups"]
    assert (row["group"], row["members"], row["lag"], row["error"]) == ("moving", 0, 0, "")
    page = (await visits.get("/groups/group", params={"group": "moving"})).text
    for link in ("/groups/reset?group=moving&amp;topic=moved", "/groups/delete?group=moving"):
        assert link in page


async def test_a_reset_says_how_members_move_that_are_online(
    visits: httpx.AsyncClient, admin: AdminClient, cluster: ThreadedCluster
) -> None:
    await admin.create_topic("online", queues=1, brokers=["broker-0"])
    await admin.create_group("online")
    receipt = await admin.send(Message("online", b"x"))

    async def stored() -> bool:
        return await admin.message_in_queue(receipt.queue, 0) is not None

    await until(stored, timeout=LIMIT_S)
    assert await admin.skip_backlog("online", "online") == {receipt.queue: 1}

    async def handle(message: StoredMessage) -> None: ...

    async with PushConsumer(
        cluster.name_servers, group="online", subscriptions={"online": "*"}, handler=handle
    ):

        async def is_assigned() -> bool:
            group = await read(visits, "/groups/group", group="online", owners="true")
            owners = [each["client"] for each in group["queues"] if each["topic"] == "online"]
            return owners == [each["client"] for each in group["members"]]

        await until(is_assigned, timeout=LIMIT_S)
        preview = await read(visits, "/groups/reset", group="online", topic="online", to="1d")
        assert (preview["repeated_messages"], preview["members_online"]) == (1, 1)
        assert preview["notes"][-1] == "1 member online: each moves at its next pull."
        await make(visits, "/groups/reset", group="online", topic="online", to="1d")
        assert [*(await admin.committed("online", "online")).values()] == [0]


async def test_members_that_subscribe_differently_are_named(
    visits: httpx.AsyncClient, admin: AdminClient, cluster: ThreadedCluster
) -> None:
    for topic in ("paid", "extra"):
        await admin.create_topic(topic, queues=1)

    async def handle(message: StoredMessage) -> None: ...

    def member(name: str, **subscriptions: str) -> PushConsumer:
        return PushConsumer(
            cluster.name_servers, group="mixed", subscriptions=subscriptions, handler=handle,
            client_ip="127.0.0.1", instance_name=name,
        )  # fmt: skip

    async with member("one", paid="a || b"), member("two", paid="b||a"):
        found = await read(visits, "/groups/group", group="mixed")
        assert (len(found["members"]), found["differences"]) == (2, [])
        async with member("three", paid="a", extra="*"):
            found = await read(visits, "/groups/group", group="mixed")
            one, two, three = sorted(
                (each["client"] for each in found["members"]),
                key=lambda client: ("one", "two", "three").index(client.partition("@")[2]),
            )
            named = [
                (each["topic"], each["expression"], each["members"])
                for each in found["differences"]
            ]
            assert sorted(named) == [
                ("extra", "*", [three]), ("extra", "not subscribed", [one, two]),
                ("paid", "a", [three]), ("paid", "a || b", [one, two]),
            ]  # fmt: skip
            page = (await visits.get("/groups/group", params={"group": "mixed"})).text
            assert "Members subscribe differently" in page
        asked = {"group": "mixed", "client": one, "stacks": "true"}
        shown = await read(visits, "/groups/member", **asked)
        assert shown["subscriptions"] == [{"topic": "paid", "type": "TAG", "expression": "a || b"}]
        assert "handle" in shown["stacks"] or "File " in shown["stacks"]
        assert html.escape(one) in (await visits.get("/groups/member", params=asked)).text
    assert "no member" in (await visits.get("/api/groups/member", params=asked)).json()["error"]


async def test_the_lag_of_a_group_is_kept_while_somebody_looks(
    visits: httpx.AsyncClient, admin: AdminClient
) -> None:
    await admin.create_topic("behind", queues=1, brokers=["broker-0"])
    await admin.create_group("slow")
    await admin.skip_backlog("slow", "behind")
    histories = LagHistories(sample, interval_s=0.01)
    [part] = histories.live()

    async def with_lag(values: AsyncIterator[LagHistory], lag: int) -> LagHistory:
        async for each in values:
            if each.points[-1].lag == lag:
                return each
        raise AssertionError("the history has ended")

    async with part.events(Reads(admin), LagQuery(group="slow")) as values:
        await asyncio.wait_for(with_lag(values, 0), LIMIT_S)
        await admin.send(Message("behind", b"x"))
        found = await asyncio.wait_for(with_lag(values, 1), LIMIT_S)
    assert found.points[0].lag == 0
    age = found.points[-1].oldest_age_ms
    assert age is not None
    assert age >= 0
    first, second = [await read(visits, "/groups/group", group="slow") for _ in range(2)]
    assert (first["history"][-1]["lag"], second["history"][-1]["lag"]) == (1, 1)
    page = (await visits.get("/groups/group", params={"group": "slow"})).text
    assert 'aria-label="Lag in messages, last half hour: 1 to 1, now 1"' in page
