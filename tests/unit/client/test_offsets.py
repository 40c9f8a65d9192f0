"""Offset stores: the local file and the table of a broker."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.client import ClientInstance, PushConsumer, StartFrom, StoredMessage
from cometmq.client._connection.instance import ClientCore
from cometmq.client.offsets import (
    DEFAULT_FOLDER,
    LocalOffsetStore,
    RemoteOffsetStore,
    offset_file,
    parse,
    render,
)
from cometmq.model.errors import ConfigError, ResponseError, StoreError
from cometmq.model.flags import PullSysFlag
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.pull import PullMessageRequest
from cometmq.remoting import OutgoingCall, Request, Response
from cometmq.system.files import Files
from support.brokers.group_broker import GroupBroker, pulled
from support.brokers.scripted import ScriptedCluster, route
from unit.client._push.test_pull_loop import record

FIRST = MessageQueue("news", "broker-a", 3)
SECOND = MessageQueue("news", "broker-b", 0)
TABLE = {FIRST: QueueOffset(23), SECOND: QueueOffset(7)}

COMPACT = (
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"news"}:23,'
    b'{"brokerName":"broker-b","queueId":0,"topic":"news"}:7}}'
)
PRETTY = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":3,
\t\t\t"topic":"news"
\t\t}:23,{
\t\t\t"brokerName":"broker-b",
\t\t\t"queueId":0,
\t\t\t"topic":"news"
\t\t}:7
\t}
}"""


def store(folder: Path, **options: object) -> LocalOffsetStore:
    return LocalOffsetStore(folder, "10.0.0.1@DEFAULT", "readers", **options)  # type: ignore[arg-type]


async def written(folder: Path, table: dict[MessageQueue, QueueOffset]) -> Path:
    """Keep a table of offsets, and give the file."""
    made = store(folder)
    for queue, offset in table.items():
        made.update(queue, offset)
    await made.persist(table)
    return made.path


def test_the_file_lies_under_the_client_id_and_the_group() -> None:
    assert offset_file(Path("/data"), "10.0.0.1@DEFAULT", "readers") == Path(
        "/data/10.0.0.1@DEFAULT/readers/offsets.json"
    )
    assert offset_file(None, "c", "g").is_relative_to(DEFAULT_FOLDER.expanduser())


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "a\\b", "a\0b"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="client id"):
        offset_file(None, name, "g")
    with pytest.raises(ConfigError, match="group"):
        offset_file(None, "c", name)


@pytest.mark.parametrize("text", [COMPACT, PRETTY, render(TABLE, strict=True)])
def test_both_forms_are_read(text: bytes) -> None:
    assert parse(text) == TABLE


def test_the_usual_form_is_rocketmqs_own() -> None:
    assert render(TABLE) == COMPACT


def test_the_strict_form_is_json() -> None:
    found = json.loads(render(TABLE, strict=True))

    assert {
        json.loads(queue)["queueId"]: offset for queue, offset in found["offsetTable"].items()
    } == {
        3: 23,
        0: 7,
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[]", "expected under offsetTable"),
        (b"{}", "expected under offsetTable"),
        (b'{"offsetTable":[1]}', "expected under offsetTable"),
        (b'{"offsetTable":{{"topic":"t"}:1}}', "is not a queue"),
        (b'{"offsetTable":{"[1]":1}}', "is not a queue"),
        (b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:-1}}', "-1 is not an offset"),
        (
            b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:"x"}}',
            "'x' is not an offset",
        ),
    ],
)
def test_what_is_no_table_of_offsets_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)


async def test_offsets_are_there_after_a_restart(tmp_path: Path) -> None:
    await written(tmp_path, TABLE)

    fresh = store(tmp_path)
    await fresh.load()

    assert fresh.table() == TABLE
    assert await fresh.stored(FIRST) == 23
    assert await fresh.stored(MessageQueue("news", "broker-a", 9)) is None


async def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    fresh = store(tmp_path)
    await fresh.load()

    assert fresh.table() == {}


@pytest.mark.parametrize("damage", [b"", b'{"offsetTable":{{"bro', None])
async def test_the_copy_is_read_when_the_file_is_empty_broken_or_gone(
    tmp_path: Path, damage: bytes | None
) -> None:
    await written(tmp_path, {FIRST: QueueOffset(22)})
    path = await written(tmp_path, {FIRST: QueueOffset(23)})
    path.unlink() if damage is None else path.write_bytes(damage)

    fresh = store(tmp_path)
    await fresh.load()

    assert fresh.table() == {FIRST: 22}


async def test_loading_fails_when_file_and_copy_are_broken(tmp_path: Path) -> None:
    path = await written(tmp_path, TABLE)
    path.write_bytes(b"x")
    path.with_name("offsets.json.bak").write_bytes(b"y")

    with pytest.raises(StoreError, match=r"offsets\.json"):
        await store(tmp_path).load()


async def test_queues_that_are_not_written_now_stay_in_the_file(tmp_path: Path) -> None:
    path = await written(tmp_path, TABLE)
    again = store(tmp_path)
    await again.load()
    again.update(FIRST, QueueOffset(24))
    again.forget(SECOND)

    await again.persist([FIRST])

    assert parse(path.read_bytes()) == {FIRST: 24, SECOND: 7}


async def test_nothing_is_written_when_nothing_has_changed(tmp_path: Path) -> None:
    again = store(tmp_path)
    again.update(FIRST, QueueOffset(1))
    await again.persist([FIRST])
    again.path.unlink()

    await again.persist([FIRST])

    assert not again.path.exists()


class FullDisk(Files):
    """A disk that has no room while it is full."""

    full = True

    def write(self, path: Path, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left")
        super().write(path, data)


async def test_a_disk_that_refuses_is_logged_and_all_is_written_next_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    made = store(tmp_path, files=disk)
    made.update(FIRST, QueueOffset(1))
    with caplog.at_level(logging.ERROR):
        await made.persist([FIRST])
    assert "cannot write offsets" in caplog.text

    disk.full = False
    await made.persist([FIRST])

    assert parse(made.path.read_bytes()) == {FIRST: 1}


async def test_writes_at_the_same_time_leave_a_whole_file_with_the_newest_offsets(
    tmp_path: Path,
) -> None:
    made = store(tmp_path)

    async def move(offset: int) -> None:
        made.update(FIRST, QueueOffset(offset))
        await made.persist([FIRST])

    await asyncio.gather(*(move(offset) for offset in range(1, 20)))

    assert parse(made.path.read_bytes()) == {FIRST: 19}


async def test_a_frozen_queue_stays_where_it_is_until_it_is_forgotten(tmp_path: Path) -> None:
    made = store(tmp_path)
    made.freeze(FIRST, QueueOffset(5))
    made.update(FIRST, QueueOffset(9))
    assert made.position(FIRST) == 5

    made.forget(FIRST)
    made.update(FIRST, QueueOffset(9))
    assert made.position(FIRST) == 9


def test_an_offset_that_may_only_grow_does_not_go_back(tmp_path: Path) -> None:
    made = store(tmp_path)
    made.update(FIRST, QueueOffset(5))
    made.update(FIRST, QueueOffset(4), increase_only=True)
    assert made.position(FIRST) == 5
    made.update(FIRST, QueueOffset(4))
    assert made.position(FIRST) == 4


ONE, TWO = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)
ELSEWHERE = MessageQueue("t", "gone", 0)


class Kept:
    """A store and the broker behind it."""

    def __init__(self, broker: GroupBroker, store: RemoteOffsetStore) -> None:
        self.broker = broker
        self.store = store

    @property
    def commits(self) -> list[tuple[int, int]]:
        """Queue and offset of each commit that came."""
        return [(commit.queue_id, commit.commit_offset) for commit in self.broker.commits]


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    broker = GroupBroker()
    async with ScriptedCluster([broker]) as cluster, ClientCore(cluster.address) as instance:
        yield Kept(broker, RemoteOffsetStore(instance, "g"))


async def test_offsets_are_told_for_the_group_and_the_queues_asked_for(kept: Kept) -> None:
    kept.store.update(ONE, QueueOffset(5))
    kept.store.update(TWO, QueueOffset(6))

    await kept.store.persist([TWO])

    assert kept.commits == [(1, 6)]
    assert kept.broker.commits[0].consumer_group == "g"


async def test_an_offset_that_did_not_move_is_told_again_only_now_and_then(kept: Kept) -> None:
    kept.store.update(ONE, QueueOffset(5))
    for _ in range(13):
        await kept.store.persist([ONE])

    assert kept.commits == [(0, 5), (0, 5)]


async def test_an_offset_is_told_again_after_the_broker_was_away(kept: Kept) -> None:
    """A broker that was killed, or another master, may lack it."""
    kept.store.update(ONE, QueueOffset(5))
    await kept.store.persist([ONE])
    await kept.broker.be_away(0.0)
    await kept.store.stored(TWO)  # opens a connection
    for _ in range(3):
        await kept.store.persist([ONE])

    assert kept.commits == [(0, 5), (0, 5)]


async def test_an_offset_is_told_to_a_broker_that_becomes_the_master() -> None:
    old, new = GroupBroker(), GroupBroker()
    async with ScriptedCluster([old, new]) as cluster, ClientCore(cluster.address) as instance:
        cluster.name_server.routes["t"] = route({"a": old.address})
        store = RemoteOffsetStore(instance, "g")
        store.update(ONE, QueueOffset(5))
        await store.persist([ONE])
        cluster.name_server.routes["t"] = route({"a": new.address})
        await instance.routes.refresh("t")
        for _ in range(3):
            await store.persist([ONE])

    assert [len(broker.commits) for broker in (old, new)] == [1, 1]


async def test_a_queue_without_an_offset_is_not_told(kept: Kept) -> None:
    await kept.store.persist([ONE])

    assert kept.commits == []


async def test_what_the_broker_just_said_is_not_told_back(kept: Kept) -> None:
    kept.broker.committed["t", 0] = 9

    assert await kept.store.stored(ONE) == 9
    await kept.store.persist([ONE])

    assert kept.store.position(ONE) == 9
    assert kept.commits == []


async def test_a_zero_that_the_broker_said_is_told_back_once(kept: Kept) -> None:
    """It may stand for no offset at all."""
    kept.broker.committed["t", 0] = 0

    assert await kept.store.stored(ONE) == 0
    for _ in range(3):
        await kept.store.persist([ONE])

    assert kept.commits == [(0, 0)]


async def test_a_queue_that_is_forgotten_while_offsets_are_stored_is_passed_over() -> None:
    """It is forgotten while the first offset of the topic is in flight."""
    broker, forgetting = GroupBroker(), ForgettingHook()
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientCore(cluster.address, hooks=[forgetting]) as instance,
    ):
        store = forgetting.store = RemoteOffsetStore(instance, "g")
        for queue in (ONE, TWO):
            store.update(queue, QueueOffset(5))
        assert await store.persist([ONE, TWO]) == {}

    assert len(broker.commits) == 1
    assert list(store.table()) == [ONE if broker.commits[0].queue_id == 0 else TWO]


async def test_an_offset_that_moves_while_the_stored_one_is_read_does_not_go_back() -> None:
    broker, moving = GroupBroker(), MovingHook()
    broker.committed["t", 0] = 3
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientCore(cluster.address, hooks=[moving]) as instance,
    ):
        store = moving.store = RemoteOffsetStore(instance, "g")
        store.update(ONE, QueueOffset(3))
        assert await store.stored(ONE) == 3
        assert store.position(ONE) == 7
        assert await store.persist([ONE]) == {}

    assert [commit.commit_offset for commit in broker.commits] == [7]


class MovingHook:
    """Moves the offset of a queue when the broker responds with the stored one."""

    store: RemoteOffsetStore

    def before_request(self, address: str, call: OutgoingCall) -> None:
        """Nothing is looked at."""

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        if call.code == RequestCode.QUERY_CONSUMER_OFFSET:
            self.store.update(ONE, QueueOffset(7))


class ForgettingHook:
    """Forgets one of two queues when the commit of the other is sent."""

    store: RemoteOffsetStore

    def before_request(self, address: str, call: OutgoingCall) -> None:
        if call.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.store.forget(TWO if call.fields["queueId"] == "0" else ONE)

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Nothing is looked at."""


async def test_an_offset_the_broker_refused_is_told_again_next_time(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.store.update(ONE, QueueOffset(5))
    kept.broker.refuse[RequestCode.UPDATE_CONSUMER_OFFSET] = Response(
        ResponseCode.SYSTEM_ERROR, "not now"
    )
    caplog.set_level(logging.INFO, "cometmq.client.offsets")
    failures = await kept.store.persist([ONE])
    await kept.store.persist([ONE])
    assert [type(failure) for failure in failures.values()] == [ResponseError]
    assert list(failures) == [ONE]

    kept.broker.refuse.clear()
    for _ in range(2):
        await kept.store.persist([ONE])

    assert kept.commits == [(0, 5)]
    first, second = [each.message for each in caplog.records if each.name.endswith(".offsets")]
    assert first.startswith("cannot commit an offset, retrying broker=a group=g error=")
    assert second == "offsets are committed again broker=a group=g"


async def test_a_broker_that_is_away_keeps_no_other_queue_from_being_told(kept: Kept) -> None:
    kept.store.update(ELSEWHERE, QueueOffset(1))
    kept.store.update(ONE, QueueOffset(2))

    await kept.store.persist([ELSEWHERE, ONE])

    assert kept.commits == [(0, 2)]


async def test_a_forgotten_queue_is_not_told_and_asked_for_anew(kept: Kept) -> None:
    kept.store.update(ONE, QueueOffset(5))
    kept.store.forget(ONE)
    await kept.store.persist([ONE])
    kept.broker.committed["t", 0] = 3

    assert kept.commits == []
    assert kept.store.table() == {}
    assert await kept.store.stored(ONE) == 3


async def test_a_frozen_offset_is_what_the_broker_gets(kept: Kept) -> None:
    kept.store.freeze(ONE, QueueOffset(5))
    kept.store.update(ONE, QueueOffset(99))

    await kept.store.persist([ONE])

    assert kept.commits == [(0, 5)]


class Order:
    """Notes which commits were asked for and answered, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def before_request(self, address: str, call: OutgoingCall) -> None:
        if call.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.events.append(f"ask {call.fields['queueId']}")

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        if call.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.events.append(f"told {call.fields['queueId']}")


async def test_the_first_offset_of_a_topic_is_told_before_all_others() -> None:
    """Real brokers lose one of two that come together while they know none of the group."""
    order, queues = Order(), [MessageQueue("t", "a", number) for number in range(3)]
    async with (
        ScriptedCluster([GroupBroker()]) as cluster,
        ClientCore(cluster.address, hooks=[order]) as instance,
    ):
        store = RemoteOffsetStore(instance, "g")
        for turn in (1, 2):
            for queue in queues:
                store.update(queue, QueueOffset(turn))
            await store.persist(queues)

    first, second = order.events[:6], order.events[6:]
    assert first[:2] == [first[0], first[0].replace("ask", "told")]
    assert [event.split()[0] for event in first[2:4]] == ["ask", "ask"]
    assert [event.split()[0] for event in second[:3]] == ["ask", "ask", "ask"]


class OrderBroker(GroupBroker):
    """Keeps the offsets that pulls and requests commit, in the order of their frames."""

    def __init__(self, messages: int) -> None:
        super().__init__()
        self.order: list[tuple[str, int]] = []
        self._messages = messages

    def _commit(self, request: Request) -> Response:
        response = super()._commit(request)
        self.order.append(("request", self.commits[-1].commit_offset))
        return response

    def _pull(self, request: Request) -> Response | None:
        header = request.header(PullMessageRequest)
        if header.sys_flag & PullSysFlag.COMMIT_OFFSET:
            self.order.append(("pull", header.commit_offset))
        offset = header.queue_offset
        if offset < self._messages:
            self.pull_answers.append(
                pulled(ResponseCode.SUCCESS, offset + 1, records=[record(offset)])
            )
        return super()._pull(request)


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
@pytest.mark.parametrize("hooks", [False, True], ids=["fast path", "general path"])
async def test_no_frame_takes_back_the_offset_of_an_earlier_one(ordered: bool, hooks: bool) -> None:
    """Pulls commit too; a broker stores the offset of whichever frame it handles last."""
    broker, handled = OrderBroker(messages := 60), asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        await asyncio.sleep(0.037)
        if message.queue_offset == messages - 1:
            handled.set()

    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address, hooks=[Order()] if hooks else []) as instance,
    ):
        cluster.name_server.routes["t"] = route({"a": broker.address}, queues=1)
        broker.members = [instance.client_id]
        async with PushConsumer(
            instance=instance,
            group="g",
            handler=handle,
            ordered=ordered,
            subscriptions={"t": "*"},
            start_from=StartFrom.FIRST,
            persist_ms=100,
            queue_messages_max=3,
        ):
            await handled.wait()

    offsets = [offset for _, offset in broker.order]
    assert offsets == sorted(offsets)
    assert offsets[-1] == messages
    assert {kind for kind, _ in broker.order} == {"pull", "request"}
    assert len(set(offsets)) > messages // 10
