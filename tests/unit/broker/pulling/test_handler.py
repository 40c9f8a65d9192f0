"""Pulling, from the bytes of a client through a real store."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.prerequisites import with_prerequisites
from cometmq.model.flags import pull_sys_flag
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.record import decode_messages
from cometmq.remoting import Connection
from cometmq.store import MessageStore
from support.checks.waiting import until
from support.stores.small_stores import put
from support.wire.memory_link import link
from unit.broker.conftest import Pulls, Tables, by_tags, nothing_else, open_store

LONG_MS = 60_000


class Broker:
    """The part of a broker that pulls reach, with a topic T of two queues."""

    def __init__(self, tables: Tables, store: MessageStore) -> None:
        self.tables = tables
        self.store = store
        self.topic = tables.topic("T", queues=2)
        self.pulls = Pulls(tables, store, held_max=2)
        self.held, self.stats = self.pulls.held, self.pulls.stats
        store.notify_of_arrivals(self.held.arrived, self.held.awaited)
        pull = with_prerequisites(self.pulls.handler.handle)
        self._handlers = {RequestCode.PULL_MESSAGE: pull, RequestCode.LITE_PULL_MESSAGE: pull}

    def connect(self) -> Client:
        server, client = link(self._handlers, on_close=self.held.connection_closed)
        return Client(server, client)

    def set(self, **changes: Any) -> None:
        self.tables.settings = dataclasses.replace(self.tables.settings, **changes)

    def put(self, *tags: str, queue: int = 0) -> None:
        for tag in tags:
            properties = {"TAGS": tag} if tag else {}
            put(self.store, tag.encode() or b"untagged", "T", queue, properties)

    def online(self, server: Connection, *, expression: str = "*", model: str = "C") -> None:
        self.pulls.register(server, by_tags(expression), model=model)


class Client:
    """One client."""

    def __init__(self, server: Connection, connection: Connection) -> None:
        self.server = server
        self.connection = connection

    async def pull(
        self,
        offset: int = 0,
        *,
        expression: str | None = "*",
        kind: str = "TAG",
        suspend_ms: int = 0,
        commit: int | None = None,
        code: int = RequestCode.PULL_MESSAGE,
        **changes: Any,
    ) -> Command:
        flag = pull_sys_flag(
            commit_offset=commit is not None,
            suspend=suspend_ms > 0,
            subscription=expression is not None,
        )
        fields = {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": flag,
            "commitOffset": commit or 0,
            "suspendTimeoutMillis": suspend_ms,
            "subVersion": 0,
            "expressionType": kind,
        } | changes
        if expression is not None:
            fields["subscription"] = expression
        texts = {name: str(value) for name, value in fields.items()}
        return await self.connection.call(code, fields=texts, timeout=60)


def bodies(answer: Command) -> list[bytes]:
    assert answer.code == 0, answer.remark
    return [message.body for message in decode_messages(answer.body)]


def place(answer: Command) -> tuple[int, ...]:
    names = ("nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId")
    return tuple(int(answer.fields[name]) for name in names)


async def test_messages_come_in_order_with_the_place_to_go_on(broker: Broker) -> None:
    broker.put("a", "b", "c")
    answer = await broker.connect().pull(1)
    assert bodies(answer) == [b"b", b"c"]
    assert place(answer) == (3, 0, 3, 0)
    assert answer.remark == "FOUND"


@pytest.mark.parametrize(
    ("offset", "code", "remark", "next_offset"),
    [
        (2, 19, "OFFSET_OVERFLOW_ONE", 2),
        (3, 21, "OFFSET_OVERFLOW_BADLY", 2),
        (-1, 21, "OFFSET_TOO_SMALL", 0),
    ],
)
async def test_an_offset_outside_the_queue_is_corrected(
    broker: Broker, offset: int, code: int, remark: str, next_offset: int
) -> None:
    broker.put("a", "b")
    answer = await broker.connect().pull(offset)
    assert (answer.code, answer.remark) == (code, remark)
    assert place(answer) == (next_offset, 0, 2, 0)
    assert answer.body == b""


@pytest.mark.parametrize(("offset", "code"), [(0, 19), (4, 21)])
async def test_an_empty_queue_begins_at_0(broker: Broker, offset: int, code: int) -> None:
    answer = await broker.connect().pull(offset)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (code, "0")


@pytest.mark.parametrize("count", [0, -3, 1])
async def test_at_least_one_message_is_handed_out(broker: Broker, count: int) -> None:
    broker.put("a", "b")
    assert bodies(await broker.connect().pull(maxMsgNums=count)) == [b"a"]


async def test_a_client_that_reads_a_backlog_gets_more_messages_at_once(broker: Broker) -> None:
    broker.put(*("a" for _ in range(40)))
    client = broker.connect()
    assert len(bodies(await client.pull(maxMsgNums=1_000))) == 32
    assert len(bodies(await client.pull(maxMsgNums=1_000, bulk="false"))) == 32
    assert len(bodies(await client.pull(maxMsgNums=1_000, bulk="true"))) == 40
    assert len(bodies(await client.pull(maxMsgNums=35, bulk="true"))) == 35


async def test_tags_of_the_pull_decide_and_the_scan_moves_on(broker: Broker) -> None:
    broker.put("a", "b", "", "a")
    client = broker.connect()
    found = await client.pull(expression="a || x")
    assert (bodies(found), place(found)[0]) == ([b"a", b"a"], 4)
    nothing = await client.pull(expression="x")
    assert (nothing.code, nothing.remark) == (20, "NO_MATCHED_MESSAGE")
    assert place(nothing)[0] == 4


async def test_without_an_expression_the_heartbeat_decides(broker: Broker) -> None:
    broker.put("a", "b")
    client = broker.connect()
    broker.online(client.server, expression="b")
    assert bodies(await client.pull(expression=None, subVersion=5)) == [b"b"]


Change = dict[str, Any]


@pytest.mark.parametrize(
    ("changes", "code", "start"),
    [
        ({"consumerGroup": "a/b"}, 29, "the specified group[a/b]"),
        ({"topic": "U"}, 17, "topic[U] not exist, apply first please!"),
        ({"topic": "../T"}, 17, "topic[../T] not exist"),
        ({"queueId": 2}, 29, "queueId[2] is illegal, topic:[T] topicConfig.readQueueNums:[2]"),
        ({"queueId": -1}, 29, "queueId[-1] is illegal"),
        ({"expression": "||"}, 23, "parse the consumer's subscription failed"),
        ({"kind": "SQL92"}, 1, "The broker does not support consumer to filter message by SQL92"),
        ({"expression": None}, 24, "the consumer's group info not exist"),
        ({"queueOffset": "x"}, 1, ""),
        ({"queueOffset": 2**63}, 1, ""),
    ],
)
async def test_a_pull_that_makes_no_sense_is_refused(
    broker: Broker, changes: Change, code: int, start: str
) -> None:
    answer = await broker.connect().pull(**changes)
    assert answer.code == code
    assert answer.remark is not None
    assert answer.remark.startswith(start)


async def test_what_may_not_be_read_says_which_switch_it_was(broker: Broker) -> None:
    client = broker.connect()
    group = broker.tables.group("g")

    async def forbidden(**changes: Any) -> int:
        answer = await client.pull(**changes)
        assert answer.code == 16, answer
        return int(answer.fields["forbiddenType"])

    broker.online(client.server, model="BROADCASTING")
    group.consume_broadcast_enable = False
    assert await forbidden(expression=None) == 4
    broker.online(client.server)
    await broker.tables.groups.set_readable("g", "T", False)
    assert await forbidden(expression=None) == 5
    broker.topic.perm = 2
    assert await forbidden() == 3
    group.consume_enable = False
    assert await forbidden() == 2
    broker.set(broker_permission=2)
    assert await forbidden() == 1


async def test_an_unsubscribed_topic_and_an_old_subscription_are_told_apart(
    broker: Broker,
) -> None:
    client = broker.connect()
    broker.online(client.server)
    assert (await client.pull(expression=None, subVersion=6)).code == 25
    broker.tables.topic("U")
    assert (await client.pull(expression=None, topic="U")).code == 24


async def test_lite_pulls_can_be_switched_off(broker: Broker) -> None:
    client = broker.connect()
    assert (await client.pull(code=RequestCode.LITE_PULL_MESSAGE)).code == 19
    broker.set(lite_pull_message_enable=False)
    assert (await client.pull(code=RequestCode.LITE_PULL_MESSAGE)).code == 16
    assert (await client.pull()).code == 19


async def test_unknown_groups_are_refused_where_groups_are_not_made(broker: Broker) -> None:
    broker.set(auto_create_subscription_group=False)
    answer = await broker.connect().pull()
    assert answer.code == 26
    assert answer.remark is not None
    assert answer.remark.startswith("subscription group [g] does not exist, ")


async def test_the_offset_that_travels_with_a_pull_is_committed(broker: Broker) -> None:
    client, offsets = broker.connect(), broker.tables.offsets
    broker.put("a", "b")
    await client.pull(0, commitOffset=1)
    assert offsets.committed("g", "T", 0) is None
    await client.pull(2, commit=2)
    assert offsets.committed("g", "T", 0) == 2
    await client.pull(2, commit=1, topic="U")
    await client.pull(2, commit=-1)
    assert offsets.committed("g", "T", 0) == 2
    offsets.next_offset = broker.store.next_offset
    await client.pull(1, commit=1)
    await client.pull(2, commit=10**12)
    assert offsets.committed("g", "T", 0) == 2, "the end of the queue"


async def test_a_pending_reset_is_told_once_and_not_overwritten(broker: Broker) -> None:
    client, offsets = broker.connect(), broker.tables.offsets
    broker.put("a", "b")
    offsets.reset("g", "T", 0, 1)
    told = await client.pull(2, commit=2)
    assert (told.code, told.remark) == (21, "OFFSET_RESET")
    assert place(told) == (1, 0, 2, 0)
    assert offsets.committed("g", "T", 0) == 1
    assert bodies(await client.pull(1)) == [b"b"]


async def test_a_held_pull_is_answered_with_what_arrives(broker: Broker) -> None:
    client = broker.connect()
    waiting = asyncio.ensure_future(client.pull(suspend_ms=LONG_MS, commit=7))
    await held(broker, 1)
    assert broker.tables.offsets.committed("g", "T", 0) == 7
    broker.put("elsewhere", queue=1)
    broker.put("a", "b")
    assert bodies(await waiting) == [b"a", b"b"]


async def test_a_held_pull_waits_for_its_own_tags(broker: Broker) -> None:
    client = broker.connect()
    waiting = asyncio.ensure_future(client.pull(expression="b", suspend_ms=LONG_MS))
    await held(broker, 1)
    broker.put("a")
    await asyncio.sleep(0)
    assert len(broker.held) == 1
    broker.put("b")
    answer = await waiting
    assert (bodies(answer), place(answer)[0]) == ([b"b"], 2)


async def test_a_held_pull_ends_on_time(broker: Broker) -> None:
    answer = await broker.connect().pull(suspend_ms=20)
    assert (answer.code, answer.remark) == (19, "NO_MESSAGE_IN_QUEUE")


@pytest.mark.usefixtures("virtual_time")
async def test_a_short_poll_ends_after_its_time(broker: Broker) -> None:
    broker.set(long_polling_enable=False, short_polling_time_ms=50)
    waiting = asyncio.ensure_future(broker.connect().pull(suspend_ms=LONG_MS))
    await held(broker, 1)
    broker.put("a")
    await asyncio.sleep(0)
    assert len(broker.held) == 1
    assert bodies(await waiting) == [b"a"]


async def test_a_held_pull_over_unwanted_messages_moves_on_when_it_ends(broker: Broker) -> None:
    waiting = asyncio.ensure_future(broker.connect().pull(expression="b", suspend_ms=50))
    await held(broker, 1)
    broker.put("a", "a")
    answer = await waiting
    assert (answer.code, place(answer)[0]) == (20, 2)


async def test_only_so_many_pulls_are_held(broker: Broker) -> None:
    client = broker.connect()
    waiting = [asyncio.ensure_future(client.pull(suspend_ms=LONG_MS)) for _ in range(2)]
    await held(broker, 2)
    refused = await client.pull(suspend_ms=LONG_MS)
    assert refused.code == 2
    assert refused.remark == "[OVERLOAD]the broker holds 2 pulls and can hold no more"
    broker.put("a")
    assert [bodies(answer) for answer in await asyncio.gather(*waiting)] == [[b"a"]] * 2


async def test_a_stopping_broker_says_that_it_stops_instead_of_holding_a_pull(
    broker: Broker,
) -> None:
    client = broker.connect()
    broker.held.close()
    refused = await client.pull(suspend_ms=LONG_MS)
    assert refused.code == 14
    assert refused.remark == "service not available now: the broker is stopping"


async def test_a_held_pull_is_refused_when_its_topic_has_gone(broker: Broker) -> None:
    waiting = asyncio.ensure_future(broker.connect().pull(suspend_ms=LONG_MS))
    await held(broker, 1)
    await broker.tables.topics.delete("T", nothing_else)
    broker.held.rerun_topic("T")
    assert (await waiting).code == 17


async def test_a_held_pull_is_repeated_by_its_client_when_its_group_has_gone(
    broker: Broker,
) -> None:
    waiting = asyncio.ensure_future(broker.connect().pull(suspend_ms=LONG_MS))
    await held(broker, 1)
    await broker.tables.groups.delete("g")
    broker.put("a")
    answer = await waiting
    assert (answer.code, answer.remark) == (20, "the group was deleted while its pull was held")
    assert answer.fields["nextBeginOffset"] == "0"


async def test_a_pull_whose_connection_closed_meanwhile_is_not_held(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group is created first; nobody would take the pull out again."""
    creating_it, go_on = asyncio.Event(), asyncio.Event()
    create = broker.tables.groups.create_all

    async def slowly(names: Any, request: Any) -> Any:
        creating_it.set()
        await go_on.wait()
        return await create(names, request)

    monkeypatch.setattr(broker.tables.groups, "create_all", slowly)
    client = broker.connect()
    waiting = asyncio.ensure_future(client.pull(consumerGroup="fresh", suspend_ms=LONG_MS))
    await creating_it.wait()
    client.server.abort()
    with pytest.raises(Exception, match="closed"):
        await waiting
    go_on.set()
    while client.server.busy:
        await asyncio.sleep(0)
    assert "fresh" in broker.tables.groups
    assert len(broker.held) == 0


async def test_a_client_that_leaves_takes_its_held_pulls_with_it(broker: Broker) -> None:
    client = broker.connect()
    waiting = asyncio.ensure_future(client.pull(suspend_ms=LONG_MS))
    await held(broker, 1)
    client.connection.close()
    await held(broker, 0)
    broker.put("a")
    with pytest.raises(Exception, match="closed"):
        await waiting


async def held(broker: Broker, count: int) -> None:
    """Wait until so many pulls are held."""
    await until(lambda: len(broker.held) == count, timeout=60, pause_s=0)


async def test_what_was_handed_out_is_counted(broker: Broker) -> None:
    broker.put("a", "b")
    client = broker.connect()
    await client.pull()
    await client.pull(2)
    assert (broker.stats.get_messages, broker.stats.get_found, broker.stats.get_missed) == (2, 1, 1)


async def test_consumers_far_behind_are_sent_to_a_slave(tables: Tables, tmp_path: Path) -> None:
    store = open_store(tmp_path / "slow", tables, memory_ratio=0)
    broker = Broker(tables, store)
    broker.put("a", "b")
    assert place(await broker.connect().pull())[3] == 0
    broker.set(slave_read_enable=True)
    assert place(await broker.connect().pull())[3] == 1
    tables.role.change("SLAVE", 1)
    assert place(await broker.connect().pull())[3] == 1
    store.assume_in_memory(100)
    assert place(await broker.connect().pull())[3] == 0
    store.close()
