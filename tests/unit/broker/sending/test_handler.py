"""Sends: the response at once or after the sync, or a refusal with its reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.durability.group_commit import GroupCommit
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.prerequisites import with_prerequisites
from cometmq.broker.sending.flow_control import FlowControl, FlowLimits
from cometmq.broker.sending.handler import SendHandler
from cometmq.broker.sending.validation import SendRules
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.stats.throughput import Throughput
from cometmq.model.errors import ResponseError, StoreError
from cometmq.protocol.batch import encode_batch
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command, encode_command
from cometmq.protocol.frame import BINARY_HEADER, JSON_HEADER
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import encode_host
from support.checks.manual_clock import ManualClock
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import WAIT_S, Announced, all_messages, opened, put
from support.wire.fake_transport import Wired
from unit.broker.conftest import Tables

HOST = encode_host("10.0.0.1", 10911)
REGION = 'the "far" 100% region\\'
TRACE = {"MSG_REGION": REGION, "TRACE_ON": "true"}
LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
}  # fmt: skip


def fields_of(**changed: str) -> dict[str, str]:
    return {
        "a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1600000000000",
        "h": "7", "i": "KEYS\x01k\x02UNIQ_KEY\x01u\x02",
    } | changed  # fmt: skip


class World:
    """A store, the send handler before it, and a producer."""

    def __init__(self, folder: Path, tables: Tables, *, sync: bool, **limits: Any) -> None:
        self.files = FaultyFiles()
        self.clock = ManualClock()
        self.store = opened(
            folder,
            files=self.files,
            commit_log_file_bytes=2**18,
            consume_queue_file_bytes=2**14,
            index_entries=4000,
        )
        for queue_id in range(4):
            put(self.store, b"before", topic="T", queue_id=queue_id)  # makes the files
        self.rules = SendRules(
            broker_ip="10.0.0.1", cluster="c", region=REGION, trace_on=True, body_bytes_max=5000
        )
        tables.topic("T", queues=4)
        self.tables = tables
        self.validation = tables.validation(self.rules, "1s 5s", now_ms=self.clock.now_ms)
        self.limits = FlowLimits(
            **{"waiting_max": 100, "append_ms_max": 1000, "lag_ms_max": 200} | limits
        )
        self.flow = FlowControl(lambda: self.limits, clock=self.clock, role=tables.role)
        tables.role.on_change(self.flow.role_changed)
        self.stats = BrokerStats("c", clock=self.clock, is_system_topic=tables.topics.is_system)
        self.synced = Announced(self.store)
        self.commit = GroupCommit(self.synced, timeout_s=WAIT_S) if sync else None
        self.send = SendHandler(
            self.store,
            self.validation,
            self.flow,
            self.stats,
            Throughput(self.stats, clock=self.clock),
            durability=DurabilityWait(self.commit),
            store_host=HOST,
        )
        self.producer = self.connect()
        if self.commit is not None:
            self.commit.start()

    def connect(self, peer: object = ("10.0.0.9", 51000)) -> Wired:
        codes = (
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
        )
        handler = with_prerequisites(self.send.handle, self.send.failed)
        return Wired(dict.fromkeys(map(int, codes), handler), peer=peer)

    def ask(
        self,
        body: bytes = b"body",
        *,
        code: int = 310,
        opaque: int = 1,
        flag: int = 0,
        serialization: int = JSON_HEADER,
        by: Wired | None = None,
        **changed: str,
    ) -> None:
        fields = fields_of(**changed)
        if code == RequestCode.SEND_MESSAGE:
            fields = {LONG_NAMES[name]: value for name, value in fields.items()}
        command = Command(
            code, opaque=opaque, flag=flag, fields=fields, body=body, serialization=serialization
        )
        (by or self.producer).transport.send(encode_command(command))

    async def answers(self, count: int = 1) -> list[Command]:
        found = await self.producer.answered(count)
        assert len(found) == count
        return found

    async def answer(self) -> Command:
        return (await self.answers())[0]

    def stored(self, queue_id: int = 1) -> list[Any]:
        """What was stored since the beginning of the test."""
        return all_messages(self.store, "T", queue_id)[1:]


Make = Callable[..., World]


@pytest.fixture
async def make(tmp_path: Path, tables: Tables) -> AsyncIterator[Make]:
    worlds: list[World] = []

    def made(**options: Any) -> World:
        options.setdefault("sync", False)
        worlds.append(World(tmp_path / f"store{len(worlds)}", tables, **options))
        return worlds[-1]

    yield made
    for world in worlds:
        if world.commit is not None:
            await world.commit.stop()
        world.store.abandon()


both = pytest.mark.parametrize("sync", [False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])


# --- success ------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("serialization", [JSON_HEADER, BINARY_HEADER], ids=["JSON", "binary"])
@pytest.mark.parametrize("code", [10, 310])
async def test_the_answer_says_where_the_message_is(
    make: Make, sync: bool, code: int, serialization: int
) -> None:
    world = make(sync=sync)
    log_offset = world.store.written_to
    world.ask(b"hello", code=code, opaque=-5, serialization=serialization)
    answer = await world.answer()

    assert (answer.code, answer.opaque, answer.flag, answer.remark) == (0, -5, 1, None)
    assert answer.serialization == serialization
    assert answer.fields == TRACE | {
        "msgId": f"{HOST.hex().upper()}{log_offset:016X}", "queueId": "1", "queueOffset": "1",
        "transactionId": "u",
    }  # fmt: skip
    assert answer.body == b""
    (message,) = world.stored()
    assert (message.body, message.flag, message.queue_offset, message.log_offset) == (
        b"hello", 7, 1, log_offset
    )  # fmt: skip
    assert (message.born_time_ms, message.born_host) == (1_600_000_000_000, "10.0.0.9:51000")
    assert message.store_host == "10.0.0.1:10911"
    assert message.properties == {"KEYS": "k", "UNIQ_KEY": "u", "CLUSTER": "c"} | TRACE
    if sync:
        assert world.store.flushed_to == world.store.written_to


@pytest.mark.parametrize("serialization", [JSON_HEADER, BINARY_HEADER], ids=["JSON", "binary"])
@pytest.mark.parametrize("more", ["", "TRAN_MSG\x01true\x02", "DELAY\x011\x02"])
@pytest.mark.parametrize(
    ("text", "unique_id"),
    [
        ("UNIQ_KEY\x017F00000100002A139A5A\x02", "7F00000100002A139A5A"),
        ('UNIQ_KEY\x01a "quote", \\ \t é \U0001f600%s\x02', 'a "quote", \\ \t é \U0001f600%s'),
        ("UNIQ_KEY\x01first\x02KEYS\x01k\x02UNIQ_KEY\x01second\x02", "second"),
        ("KEYS\x01k\x02UNIQ_KEY\x01last", "last"),
        ("", "FRESH"),
    ],
)
async def test_the_response_has_the_unique_id_as_the_transaction_id(
    make: Make, text: str, unique_id: str, more: str, serialization: int
) -> None:
    """RocketMQ 5 sets it for every message; its proxy finds a half message by it."""
    world = make()
    world.ask(i=more + text, serialization=serialization)
    answer = await world.answer()
    assert answer.fields["transactionId"] == unique_id
    assert set(answer.fields) == {*TRACE, "msgId", "queueId", "queueOffset", "transactionId"}


@pytest.mark.parametrize("serialization", [JSON_HEADER, BINARY_HEADER], ids=["JSON", "binary"])
async def test_the_response_to_a_batch_has_the_unique_id_of_the_batch(
    make: Make, serialization: int
) -> None:
    world = make()
    items = [(0, b"one", b"UNIQ_KEY\x01u1\x02"), (0, b"two", b"UNIQ_KEY\x01u2\x02")]
    for text in ("WAIT\x01true\x02UNIQ_KEY\x01of-the-batch\x02", "WAIT\x01true\x02", ""):
        world.ask(encode_batch(items), code=320, m="true", i=text, serialization=serialization)
    with_id, without, bare = await world.answers(3)
    assert with_id.fields["transactionId"] == "of-the-batch"
    assert set(with_id.fields) - set(without.fields) == {"transactionId"}
    assert set(without.fields) == set(bare.fields)


async def test_a_success_is_written_as_any_other_json_answer_is(make: Make) -> None:
    world = make()
    world.ask(opaque=9)
    answer = await world.answer()
    short = json.loads(world.producer.transport.written[8:])
    long = json.loads(encode_command(answer)[8:])

    assert short == long
    assert list(short) == list(long)


@both
async def test_messages_of_one_read_are_stored_in_their_order(make: Make, sync: bool) -> None:
    world = make(sync=sync)
    stream = b"".join(
        encode_command(Command(310, opaque=n + 1, fields=fields_of(), body=b"%d" % n))
        for n in range(50)
    )
    world.producer.transport.send(stream)
    answers = await world.answers(50)

    assert [message.body for message in world.stored()] == [b"%d" % n for n in range(50)]
    places = {answer.opaque: int(answer.fields["queueOffset"]) for answer in answers}
    assert places == {n + 1: n + 1 for n in range(50)}


@both
async def test_a_oneway_send_is_stored_and_not_answered(make: Make, sync: bool) -> None:
    world = make(sync=sync)
    world.ask(b"oneway", flag=2, opaque=1)
    world.ask(b"", flag=2, opaque=2)
    world.ask(b"after", opaque=3)
    answer = await world.answer()

    assert answer.opaque == 3
    assert [message.body for message in world.stored()] == [b"oneway", b"after"]


@both
async def test_a_batch_is_stored_side_by_side_and_answered_once(make: Make, sync: bool) -> None:
    world = make(sync=sync)
    bodies = [b"one", b"two", b"three"]
    batch = encode_batch([(3, body, encode_properties({"TAGS": "t"})) for body in bodies])
    world.ask(batch, code=320, m="true", i="WAIT\x01true\x02")
    answer = await world.answer()

    stored = world.stored()
    assert [message.body for message in stored] == bodies
    assert [message.queue_offset for message in stored] == [1, 2, 3]
    assert {message.flag for message in stored} == {3}
    assert answer.code == 0
    ids = [f"{HOST.hex().upper()}{message.log_offset:016X}" for message in stored]
    expected = {"msgId": ",".join(ids), "queueId": "1", "queueOffset": "1"}
    assert answer.fields == TRACE | expected
    assert stored[0].properties == {"TAGS": "t", "WAIT": "true", "CLUSTER": "c"} | TRACE


@pytest.mark.parametrize("serialization", [JSON_HEADER, BINARY_HEADER], ids=["JSON", "binary"])
async def test_batch_is_what_the_field_says_whatever_the_code(
    make: Make, serialization: int
) -> None:
    world = make()
    batch = encode_batch([(0, b"one", b""), (0, b"two", b"")])
    world.ask(batch, code=310, opaque=1, m="true", serialization=serialization)
    world.ask(batch, code=320, opaque=2, m="false", serialization=serialization)
    first, second = await world.answers(2)

    assert first.fields["msgId"].count(",") == 1
    assert second.fields["msgId"].count(",") == 0
    assert [message.body for message in world.stored()] == [b"one", b"two", batch]


async def test_a_parked_message_is_answered_with_the_queue_it_asked_for(make: Make) -> None:
    world = make()
    world.ask(i="DELAY\x012\x02", e="3")
    answer = await world.answer()

    assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (0, "3", "0")
    assert world.stored(3) == []
    (waiting,) = all_messages(world.store, "SCHEDULE_TOPIC_XXXX", 1)
    assert waiting.properties["REAL_TOPIC"] == "T"


async def test_peers_by_ipv6_are_noted_in_the_record(make: Make) -> None:
    world = make()
    producer = world.connect(("2001:db8::7", 40000, 0, 0))
    world.ask(b"six", by=producer)
    (answer,) = producer.answers
    (message,) = world.stored()

    assert answer.code == 0
    assert message.born_host == "[2001:db8::7]:40000"


async def test_host_bits_of_the_request_are_not_believed(make: Make) -> None:
    """They say how long the hosts in the record are: a wrong one would break the record."""
    world = make()
    world.ask(f=str(0x10 | 0x20 | 2))
    answer = await world.answer()
    (message,) = world.stored()

    assert answer.code == 0
    assert message.sys_flag == 2
    assert message.born_host == "10.0.0.9:51000"


async def test_changed_rules_show_in_the_next_answer(make: Make) -> None:
    world = make()
    world.ask(opaque=1)
    world.validation.change(
        SendRules(broker_ip="10.0.0.1", cluster="c", region="near", trace_on=False)
    )
    world.ask(opaque=2)
    world.ask(b"", opaque=3)
    answers = await world.answers(3)
    found = [(answer.fields["MSG_REGION"], answer.fields["TRACE_ON"]) for answer in answers]

    assert found == [(REGION, "true"), ("near", "false"), ("near", "false")]


async def test_messages_are_counted(make: Make) -> None:
    world = make()
    world.ask(opaque=1)
    batch = encode_batch([(0, b"one", b""), (0, b"two", b"")])
    world.ask(batch, code=320, opaque=2, m="true")
    world.ask(b"", opaque=3)
    await world.answers(3)

    assert world.stats.put_messages == 3


@both
async def test_the_answer_to_a_half_message_names_its_place_in_the_half_queue(
    make: Make, sync: bool
) -> None:
    """And the queue that the producer chose; with synchronous flush it is on disk by then."""
    world = make(sync=sync)
    for opaque in (1, 2):
        world.ask(f="4", e="3", i="TRAN_MSG\x01true\x02PGROUP\x01g\x02", opaque=opaque)
    first, second = await world.answers(2)

    half = all_messages(world.store, "RMQ_SYS_TRANS_HALF_TOPIC")[1]
    assert (first.code, second.code) == (0, 0)
    assert second.fields == TRACE | {
        "msgId": f"{HOST.hex().upper()}{half.log_offset:016X}", "queueId": "3", "queueOffset": "1",
        "transactionId": "FRESH",
    }  # fmt: skip
    assert (half.sys_flag, half.properties["REAL_QID"]) == (0, "3")
    assert world.stored(3) == []


# --- refusal ------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("serialization", [JSON_HEADER, BINARY_HEADER], ids=["JSON", "binary"])
@pytest.mark.parametrize(
    ("changed", "body", "code", "remark"),
    [
        ({"b": "a b"}, b"x", 29, "illegal characters"),
        ({"b": "unknown", "c": "none"}, b"x", 17, "topic[unknown] not exist, apply first please!"),
        ({"e": "4"}, b"x", 29, "request queueId[4] is illegal"),
        ({"b": "SELF_TEST_TOPIC"}, b"x", 16, "is forbidden."),
        ({"f": "4"}, b"x", 13, "expected the property TRAN_MSG=true"),
        ({}, b"", 13, "Met a body of 0B"),
        ({}, bytes(5001), 13, "Met a body of 5001B"),
        ({"m": "true"}, b"\x00\x00\x00\x09junk", 13, ""),
        ({"m": "true", "i": "DELAY\x011\x02"}, b"x", 13, "a batch cannot be delayed"),
    ],
)  # fmt: skip
async def test_a_refusal_says_why_stores_nothing_and_tells_the_region(
    make: Make, sync: bool, serialization: int, changed: dict[str, str], body: bytes, code: int,
    remark: str,
) -> None:  # fmt: skip
    world = make(sync=sync)
    before = world.store.written_to
    world.ask(body, serialization=serialization, **changed)
    answer = await world.answer()

    assert answer.code == code
    assert remark in (answer.remark or "")
    assert answer.fields == TRACE
    assert world.store.written_to == before


@pytest.mark.parametrize("name", list("abcdefgh"))
async def test_a_request_that_lacks_a_field_gets_code_1_with_its_name(
    make: Make, name: str
) -> None:
    world = make()
    fields = fields_of()
    del fields[name]
    command = Command(310, opaque=1, fields=fields, body=b"x")
    world.producer.transport.send(encode_command(command))
    answer = await world.answer()

    assert answer.code == 1
    assert f"required field {name} is missing" in (answer.remark or "")


async def test_a_full_disk_refuses_with_14_and_takes_sends_again_when_there_is_room(
    make: Make,
) -> None:
    world = make()
    world.files.room_bytes = 0
    for number in range(200):
        world.ask(bytes(4000), opaque=number + 1)
    answers = await world.answers(200)
    codes = [answer.code for answer in answers]
    refused = codes.index(14)

    assert set(codes[:refused]) == {0}
    assert set(codes[refused:]) == {14}
    assert "disk" in (answers[-1].remark or "")
    assert answers[-1].fields == TRACE
    world.files.room_bytes = None
    world.ask(b"room again", opaque=201)
    assert (await world.answers(201))[-1].code == 0
    assert world.stored()[-1].body == b"room again"


async def test_a_file_that_cannot_be_made_is_code_1(make: Make) -> None:
    """For a reason other than a full disk."""
    world = make()

    def broken(path: Path) -> None:
        raise OSError(5, "I/O error")

    world.files.sync_dir = broken  # type: ignore[method-assign]
    for number in range(100):
        world.ask(bytes(4000), opaque=number + 1)
    answers = await world.answers(100)

    assert answers[-1].code == 1
    assert (answers[-1].remark or "").startswith(
        "create mapped file failed, server is busy or broken."
    )


async def test_a_store_that_is_shut_refuses_with_14(make: Make) -> None:
    world = make()
    world.store.close()
    world.ask()

    assert (await world.answer()).code == 14


async def test_a_broker_that_stops_refuses_with_14(make: Make) -> None:
    world = make()
    before = world.store.written_to
    world.flow.stop()
    world.ask()
    answer = await world.answer()

    assert (answer.code, answer.fields) == (14, TRACE)
    assert "stopping" in (answer.remark or "")
    assert world.store.written_to == before


# --- waiting for the disk -----------------------------------------------------------------------


async def test_with_synchronous_flush_no_answer_leaves_before_the_sync(make: Make) -> None:
    world = make(sync=True)
    syncs = world.files.syncs
    world.ask()

    assert world.producer.transport.writes == []
    assert world.flow.waiting == 1
    assert (await world.answer()).code == 0
    assert world.files.syncs == syncs + 1
    assert world.flow.waiting == 0


@pytest.mark.parametrize("said", ["false", "False", "no"])
@pytest.mark.parametrize("text", ["WAIT\x01{}\x02", "K\x01v\x02WAIT\x01{}\x02L\x01v", "WAIT\x01{}"])
async def test_a_sender_that_does_not_wait_is_answered_at_once_and_synced_soon(
    make: Make, said: str, text: str
) -> None:
    world = make(sync=True)
    world.ask(i=text.format(said))

    (answer,) = world.producer.answers or await world.answers()
    assert answer.code == 0
    assert world.flow.waiting == 0
    await world.synced.wait()
    assert world.store.flushed_to == world.store.written_to


@both
async def test_too_few_replicas_refuse_the_senders_that_wait_for_them(
    make: Make, sync: bool
) -> None:
    world = make(sync=sync)
    world.flow.replicas_changed(ResponseError(1, "in-sync replicas not enough"))
    world.ask()
    world.ask(opaque=2, i="WAIT\x01false\x02")
    refused, stored = sorted(await world.answers(2), key=lambda answer: answer.opaque)
    assert (refused.code, refused.remark) == (1, "in-sync replicas not enough")
    assert stored.code == 0
    assert [message.properties["WAIT"] for message in world.stored()] == ["false"]


@pytest.mark.parametrize(
    "text",
    [
        "", "WAIT\x01true\x02", "WAIT\x01TRUE\x02", "AWAIT\x01false\x02", "X\x01WAIT\x02",
        "WAITS\x01false\x02", "WAIT\x01false\x02WAIT\x01true\x02", "WAIT\x01\x02", "X_WAIT\x01no",
    ],
)  # fmt: skip
async def test_a_property_that_only_looks_like_it_does_not_lift_the_wait(
    make: Make, text: str
) -> None:
    world = make(sync=True)
    world.ask(i=text)

    assert world.producer.transport.writes == []
    assert (await world.answer()).code == 0


@pytest.mark.parametrize("serialization", [JSON_HEADER, BINARY_HEADER], ids=["JSON", "binary"])
async def test_a_failed_sync_is_answered_14_with_the_reason_and_so_is_all_that_follows(
    make: Make, serialization: int
) -> None:
    world = make(sync=True)
    world.files.fail_sync = True
    for opaque in (1, 2, 3):
        world.ask(opaque=opaque, serialization=serialization)
    answers = await world.answers(3)

    for answer in answers:
        assert answer.code == 14
        assert "not on disk" in (answer.remark or "")
        assert "the disk is gone" in (answer.remark or "")
        assert answer.fields == TRACE
    world.files.fail_sync = False
    before = world.store.written_to
    world.ask(opaque=4)
    late = (await world.answers(4))[-1]
    assert late.code == 14
    assert "the disk is gone" in (late.remark or "")
    assert world.store.written_to == before
    assert world.flow.waiting == 0


@pytest.mark.parametrize("serialization", [JSON_HEADER, BINARY_HEADER], ids=["JSON", "binary"])
async def test_a_sync_that_takes_too_long_is_answered_10_with_the_place(
    make: Make, serialization: int
) -> None:
    world = make(sync=True)
    assert world.commit is not None
    world.commit._timeout_s = -1.0
    world.ask(serialization=serialization)
    answer = await world.answer()

    assert answer.code == 10
    assert answer.fields["queueOffset"] == "1"
    assert answer.fields["MSG_REGION"] == REGION
    assert len(world.stored()) == 1


async def test_a_batch_waits_for_the_end_of_its_last_message(make: Make) -> None:
    world = make(sync=True)
    batch = encode_batch([(0, bytes(100), b"") for _ in range(10)])
    world.ask(batch, code=320, m="true")
    assert world.producer.transport.writes == []

    assert (await world.answer()).code == 0
    assert world.store.flushed_to == world.store.written_to


async def test_sends_that_wait_are_bounded(make: Make) -> None:
    world = make(sync=True, waiting_max=2)
    for opaque in (1, 2, 3):
        world.ask(opaque=opaque)
    answers = {answer.opaque: answer for answer in await world.answers(3)}

    assert [answers[opaque].code for opaque in (1, 2, 3)] == [0, 0, 2]
    assert (answers[3].remark or "").startswith("[OVERLOAD]")
    assert len(world.stored()) == 2


async def test_a_producer_that_left_before_the_sync_leaves_nothing_behind(make: Make) -> None:
    world = make(sync=True)
    world.ask()
    world.producer.connection.abort()
    assert world.commit is not None
    outcome = asyncio.get_running_loop().create_future()
    world.commit.wait(0, lambda synced, error: outcome.set_result(synced))  # after the send
    assert await asyncio.wait_for(outcome, WAIT_S)

    assert world.flow.waiting == 0
    assert len(world.stored()) == 1
    assert world.producer.transport.writes == []


async def test_a_send_whose_topic_cannot_be_created_is_refused_as_others_are(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()

    async def refuse(_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(world.tables.topics, "create_all", refuse)
    world.ask(b="Fresh")
    answer = await world.answer()
    assert (answer.code, answer.remark) == (14, "the disk is full")
    assert answer.fields == TRACE
    assert world.stats.put_failures == 1


async def test_sends_behind_the_first_one_of_a_topic_keep_their_order(make: Make) -> None:
    """The first waits until its topic is on disk; no other of its connection overtakes it."""
    world = make()
    for number in range(5):
        world.ask(b"%d" % number, opaque=number, b="Fresh", e="0")
    answers = await world.answers(5)
    assert [answer.opaque for answer in answers] == [0, 1, 2, 3, 4]
    assert [answer.fields["queueOffset"] for answer in answers] == ["0", "1", "2", "3", "4"]
