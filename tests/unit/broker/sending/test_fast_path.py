"""The fast path of sends beside the general path: the same records, the same responses."""

from __future__ import annotations

import asyncio
import base64
import errno
import gc
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.broker.durability.group_commit import GroupCommit
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.prerequisites import with_prerequisites
from cometmq.broker.sending.fast_path import SendFastPath, SendHeaderReader
from cometmq.broker.sending.flow_control import FlowControl, FlowLimits
from cometmq.broker.sending.handler import SendHandler
from cometmq.broker.sending.send import Send
from cometmq.broker.sending.validation import SendRules
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.stats.throughput import Throughput
from cometmq.model.errors import ResponseError
from cometmq.model.topic import TOPIC_CHARS_MAX
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.codes import FORWARDED, RequestCode, ResponseCode
from cometmq.protocol.command import Command, encode_command
from cometmq.protocol.record import encode_host
from cometmq.protocol.signed_fields import RequestCheck
from cometmq.remoting.latencies import Latencies
from cometmq.remoting.wire import FastPath, write_batch_of
from support.checks.cases import case
from support.checks.manual_clock import ManualClock
from support.runner.tiers import rounds
from support.stores.faulty_files import FaultyFiles, FaultyMappedFile
from support.stores.small_stores import all_messages, opened, put
from support.wire import request_variants
from support.wire.fake_transport import Wired
from support.wire.request_variants import LANGUAGES, OPAQUES, VERSIONS, headers
from unit.broker.conftest import Tables

BENCHMARK_FRAMES = Path(__file__).parents[4] / "benchmarks/frames"
HOST = encode_host("10.0.0.1", 10911)
RULES = SendRules(broker_ip="10.0.0.1", cluster="c", region="r", trace_on=True, body_bytes_max=2000)
FIELDS = {
    "a": "group", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1600000000000",
    "h": "0", "i": "KEYS\x01k\x02UNIQ_KEY\x01u\x02WAIT\x01true\x02", "j": "0", "k": "false",
    "m": "false", "n": "broker-a",
}  # fmt: skip

java = partial(request_variants.java_header, code="310")


class Side:
    """A store with the send handler, with the fast path before it or without."""

    def __init__(
        self, folder: Path, tables: Tables, *, fast: bool, sync: bool = False, scans: bool = True
    ) -> None:
        self.files = FaultyFiles()
        self.store = opened(
            folder,
            files=self.files,
            commit_log_file_bytes=2**20,
            consume_queue_file_bytes=2**15,
            index_entries=50_000,
        )
        clock = ManualClock()
        self.validation = tables.validation(RULES, "1s 5s", now_ms=clock.now_ms)
        # A busy machine may take long for an append, which is not what these tests are about.
        limits = FlowLimits(waiting_max=100, append_ms_max=600_000, lag_ms_max=200)
        self.flow = FlowControl(lambda: limits, clock=clock, role=tables.role)
        tables.role.on_change(self.flow.role_changed)
        self.stats = BrokerStats("c", clock=clock, is_system_topic=tables.topics.is_system)
        self.commit = GroupCommit(self.store) if sync else None
        self.latencies = Latencies()
        self.send = SendHandler(
            self.store,
            self.validation,
            self.flow,
            self.stats,
            Throughput(self.stats, clock=clock),
            durability=DurabilityWait(self.commit),
            store_host=HOST,
            latencies=self.latencies,
        )
        self.handled = 0
        self.fast_path: FastPath | None = SendFastPath(self.send, scans=scans) if fast else None
        if self.commit is not None:
            put(self.store, b"makes the files", topic="T", queue_id=1)
            self.commit.start()

    def _handle(self, request: Any) -> Any:
        self.handled += 1
        return with_prerequisites(self.send.handle)(request)

    def connect(self, peer: object = ("10.0.0.9", 51000)) -> Wired:
        codes = (310, 10, 320)
        return Wired(dict.fromkeys(codes, self._handle), peer=peer, fast_path=self.fast_path)

    def counts(self) -> dict[tuple[int, int], int]:
        """How many responses were counted for each code of requests and responses."""
        return {kind[:2]: sum(found.counts()) for kind, found in self.latencies.all()}

    def log_writes(self) -> int:
        """How often something was written to the log."""
        return self.files.writes

    def log(self, start: int = 0) -> bytes:
        """The records from a log offset on, as they lie in the log."""
        end = self.store.written_to
        parts = [
            segment.view[max(0, start - segment.base_offset) : max(0, end - segment.base_offset)]
            for segment in self.store._log.segments.items
        ]
        return b"".join(bytes(part) for part in parts)


class Both:
    """The two sides, given the same."""

    def __init__(self, folder: Path, tables: Tables) -> None:
        self.topic = tables.topic
        tables.topic("T", queues=4)
        tables.topic("Many", queues=4)
        tables.topic("%RETRY%G", queues=1)
        tables.topics.put_now([_changed(tables, "Many", topic_filter_type="MULTI_TAG")])
        self.fast = Side(folder / "fast", tables, fast=True)
        self.general = Side(folder / "general", tables, fast=False)

    async def same(self, *pieces: bytes, peer: object = ("10.0.0.9", 51000)) -> int:
        """Send the pieces to both, compare everything; returns how many took the general path."""
        fast, general = self.fast.connect(peer), self.general.connect(peer)
        handled, start = self.fast.handled, self.fast.store.written_to
        assert start == self.general.store.written_to
        for piece in pieces:
            for side in (fast, general):
                side.transport.send(piece)
            for side in (fast, general):
                await side.settled()
        assert read(fast) == read(general)
        assert self.fast.log(start) == self.general.log(start)
        assert self.fast.stats.put_messages == self.general.stats.put_messages
        assert fast.connection.closed == general.connection.closed
        assert self.fast.counts() == self.general.counts()
        return self.fast.handled - handled


def read(wired: Wired) -> list[tuple[Any, ...]]:
    return [
        (
            answer.opaque,
            answer.code,
            answer.remark,
            answer.fields,
            answer.flag,
            answer.body,
            answer.serialization,
        )
        for answer in wired.answers
    ]


def _changed(tables: Tables, topic: str, **changes: Any) -> Any:
    known = tables.topics.get(topic)
    assert known is not None
    return msgspec.structs.replace(known, **changes)


@pytest.fixture
async def both(tmp_path: Path, tables: Tables) -> AsyncIterator[Both]:
    made = Both(tmp_path, tables)
    yield made
    made.fast.store.abandon()
    made.general.store.abandon()


def frame(header: bytes, body: bytes = b"body") -> bytes:
    return request_variants.frame(header, body)


# --- what is plain ------------------------------------------------------------------------------


async def test_plain_sends_do_not_take_the_long_way(both: Both) -> None:
    stream = b"".join(
        frame(java(FIELDS | {"e": str(n % 4)}, opaque=str(n)), b"%d" % n) for n in range(100)
    )
    assert await both.same(stream) == 0
    assert len(all_messages(both.fast.store, "T", 1)) == 25


@pytest.mark.parametrize("cut", [1, 8, 40, 300])
async def test_sends_are_taken_whole_wherever_the_stream_is_cut(both: Both, cut: int) -> None:
    stream = b"".join(frame(java(FIELDS, opaque=str(n)), b"%d" % n * 50) for n in range(20))
    await both.same(*(stream[at : at + cut] for at in range(0, len(stream), cut)))


@pytest.mark.parametrize(
    "peer", [("2001:db8::1", 4000, 0, 0), ("::ffff:10.1.1.1", 4000, 0, 0), None]
)
async def test_peers_of_every_kind_are_noted_alike(both: Both, peer: object) -> None:
    await both.same(frame(java(FIELDS)), peer=peer)


async def test_other_requests_between_plain_ones_keep_their_place(both: Both) -> None:
    parts = [
        frame(java(FIELDS, opaque="1")),
        encode_command(Command(310, opaque=2, fields=FIELDS, body=b"x")),
        encode_command(Command(31999, opaque=3)),
        frame(java(FIELDS | {"b": "unknown", "c": "none"}, opaque="4")),
        frame(java(FIELDS, opaque="5")),
        encode_command(Command(RequestCode.SEND_BATCH_MESSAGE, opaque=6, fields=FIELDS, body=b"x")),
        frame(java(FIELDS | {"i": "DELAY\x011\x02"}, opaque="7")),
        frame(java(FIELDS, opaque="8", flag="2")),
        frame(java(FIELDS, opaque="9")),
    ]
    await both.same(b"".join(parts))


@pytest.mark.parametrize("step", [2, 7, 32, 33, 50])
async def test_sends_of_one_read_keep_their_order_around_others(both: Both, step: int) -> None:
    stream, long_way = b"", 0
    for number in range(150):
        is_plain = (number + 1) % step != 0
        topic = "T" if is_plain else ("unknown", "Many")[number % 2]
        fields = FIELDS | {"b": topic, "c": "none", "i": f"KEYS\x01{number}\x02"}
        stream += frame(java(fields, opaque=str(number)), b"%d" % number)
        long_way += not is_plain
    assert await both.same(stream) == long_way
    stored = [message.body for message in all_messages(both.fast.store, "T", 1)]
    assert stored == [b"%d" % number for number in range(150) if (number + 1) % step]


class CountedCheck(RequestCheck):
    """Allows every send."""

    def __init__(self) -> None:
        super().__init__()
        self.checked = 0

    def allows(self, *_: Any) -> bool:
        self.checked += 1
        return True


@pytest.mark.parametrize("step", [2, 7, 32, 33, 50])
async def test_no_send_is_checked_in_vain_because_of_others_before_it(
    both: Both, step: int
) -> None:
    """The check of a signature takes longer than anything else on the fast path."""
    side, check = both.fast, CountedCheck()
    stream, plain = b"", 0
    for number in range(150):
        is_plain = (number + 1) % step != 0
        odd = ({"i": "DELAY\x011\x02"}, {"e": "9"}, {"b": "Many"}, {"k": "1", "m": "1"})[number % 4]
        stream += frame(java(FIELDS if is_plain else FIELDS | odd, opaque=str(number)))
        plain += is_plain
    path = SendFastPath(side.send, scans=True, check=check)
    client = Wired(dict.fromkeys((310, 10, 320), side._handle), fast_path=path)
    client.transport.send(stream)
    assert [answer.opaque for answer in client.answers] == list(range(150))
    assert (check.checked, side.handled) == (plain, 150 - plain)


async def test_what_follows_malformed_input_is_not_stored(both: Both) -> None:
    good = frame(java(FIELDS))
    assert await both.same(good + b"\xff" * 12 + good) == 0
    assert len(all_messages(both.fast.store, "T", 1)) == 1


ITEMS = [
    BatchItem(0, b"one", b"KEYS\x01a b\x02TAGS\x01t\x02"),
    BatchItem(7, b"", b""),
    BatchItem(0, b"x" * 300, b"UNIQ_KEY\x01u"),
]
BATCH = FIELDS | {"i": "WAIT\x01true\x02", "m": "true"}


async def test_plain_batches_do_not_take_the_long_way(both: Both) -> None:
    body = encode_batch(ITEMS)
    stream = [frame(java(BATCH, opaque=str(n), code="320"), body) for n in range(5)]
    stream += [frame(java(BATCH | {"i": text}, code="310"), body) for text in ("", "WAIT\x01true")]
    stream.append(frame(java(FIELDS)))
    assert await both.same(b"".join(stream)) == 0
    stored = all_messages(both.fast.store, "T", 1)
    assert [message.body for message in stored[:3]] == [b"one", b"", b"x" * 300]
    assert len(stored) == 22
    assert len(both.fast.store.query("T", "b", 32, 0, 2**62).records) == 7


async def test_latencies_are_counted_by_code_whatever_codes_one_read_has(both: Both) -> None:
    codes = ["310", "310", "320", "320", "310", "320"]
    stream = b""
    for number, code in enumerate(codes):
        fields, body = (BATCH, encode_batch(ITEMS)) if code == "320" else (FIELDS, b"body")
        stream += frame(java(fields, opaque=str(number), code=code), body)
    assert await both.same(stream) == 0
    assert both.fast.counts() == {(310, 0): 3, (320, 0): 3}


@pytest.mark.parametrize("text", ["WAIT\x01false\x02", "a\x01b\x02", "DELAY\x011\x02"])
async def test_a_batch_that_says_more_of_itself_takes_the_long_way(both: Both, text: str) -> None:
    assert await both.same(frame(java(BATCH | {"i": text}, code="320"), encode_batch(ITEMS))) == 1


async def test_a_batch_cut_anywhere_is_refused_alike(both: Both) -> None:
    body = encode_batch(ITEMS)
    for end in range(len(body)):
        await both.same(frame(java(BATCH, code="320"), body[:end]))
    assert len(all_messages(both.fast.store, "T", 1)) == 1 + 2  # where a message ends


@pytest.mark.parametrize("form", request_variants.FORMS)
async def test_each_clients_sends_and_batches_are_read_fast(both: Both, form: str) -> None:
    code = "10" if form in ("go", "cpp", "binary 10") else "310"
    write = partial(request_variants.header_of, form, code=code)
    stream = [frame(write(FIELDS, opaque=str(n)), b"%d" % n) for n in range(3)]
    stream.append(frame(write(BATCH, opaque="3"), encode_batch(ITEMS)))
    stream.append(frame(write(FIELDS | {"i": "TAGS\x01t\x02CODE\x01c\x02"}, opaque="4")))
    stream.append(frame(write(FIELDS | {"b": "unknown", "c": "none"}, opaque="5")))
    assert await both.same(b"".join(stream)) == 1
    assert len(all_messages(both.fast.store, "T", 1)) == 7


@pytest.mark.parametrize("client", ["java", "java-binary", "go", "cpp", "node"])
async def test_recorded_sends_of_real_clients_are_read_fast(both: Both, client: str) -> None:
    recorded = json.loads((BENCHMARK_FRAMES / f"{client}.json").read_text())
    both.topic("bench-frames", queues=8)
    assert await both.same(base64.b64decode(recorded["frame"])) == 0


# --- anything at all ----------------------------------------------------------------------------

VALUES = [
    *request_variants.VALUES,
    *('"8"', '"12"', '"16"', '"32"', '"48"', '"TRUE"', '"Many"', '"%RETRY%G"'),
    *('"SCHEDULE_TOPIC_XXXX"', '"\\u00e9"', '"/"'),
]
UNIQUE = "UNIQ_KEY\x01u\x02"
TEXTS = [
    "", "KEYS\x01k", "KEYS\x01k\x02", UNIQUE, "UNIQ_KEY\x01\x02", "XUNIQ_KEY\x01u\x02",
    "KEYS\x01k\x02UNIQ_KEY\x01u", "WAIT\x01true\x02" + UNIQUE, UNIQUE + "WAIT\x01false\x02",
    UNIQUE + "AWAIT\x01false\x02", UNIQUE + "DELAY\x011\x02", UNIQUE + "MYDELAY\x011\x02",
    UNIQUE + "TRAN_MSG\x01true\x02", UNIQUE + "CLUSTER\x01x\x02", UNIQUE + "POP_CK\x01x\x02",
    UNIQUE + "TIMER_DELAY_SEC\x015\x02", UNIQUE + "MSG_REGION\x01x\x02", "\x02" + UNIQUE,
    UNIQUE + "a\x03b\x02", UNIQUE + "t\x01\t\x02", UNIQUE + 'q\x01"\x02', "UNIQ_KEY\x01é\x02",
    UNIQUE + "x\x01" + "y" * 32700, UNIQUE + "x\x01" + "y" * 33000, UNIQUE + "b\x01\\\x02",
    UNIQUE + "UNIQ_KEY\x01v\x02", "\x01" + UNIQUE, UNIQUE + "\x02\x02",
]  # fmt: skip
ODD = st.one_of(
    st.tuples(st.sampled_from("abcdefghjklmnxyz"), st.sampled_from(VALUES)),
    st.tuples(st.just("i"), st.sampled_from([*TEXTS, BATCH["i"]]).map(json.dumps)),
    st.just(("m", '"true"')),
)
HEADERS = headers(
    FIELDS,
    ODD,
    odd_max=2,
    left_out="abcdefghijkmn",
    codes=["310", "310", "310", "320", "10"],
    forms=request_variants.FORMS,
)
BODIES = st.sampled_from(
    [
        *(b"body", b"", b"\x00", bytes(2000), bytes(2001), b'{"code":310,"extFields":{"'),
        *(encode_batch(ITEMS), encode_batch(ITEMS)[:-1], encode_batch(ITEMS * 3)),
        encode_batch([BatchItem(0, b"b", b"x\x01" + b"y" * 32700)]),
    ]
)


@pytest.mark.parametrize("form", request_variants.FORMS)
async def test_each_odd_value_of_a_field_means_the_same_both_ways(both: Both, form: str) -> None:
    write = partial(request_variants.header_of, form, code="310")
    for name in "abcdefghjklmnx":
        for value in VALUES:
            with case(f"{name}={value}"):
                await both.same(frame(write(FIELDS, raw={name: value})))
        with case(f"no {name}"):
            await both.same(frame(write({key: FIELDS[key] for key in FIELDS if key != name})))


async def test_a_send_without_a_topic_does_not_go_where_the_last_one_went(both: Both) -> None:
    await both.same(frame(java(FIELDS)))
    await both.same(frame(java(FIELDS | {"b": ""})))


@pytest.mark.parametrize("form", request_variants.FORMS)
async def test_each_odd_property_string_means_the_same_both_ways(both: Both, form: str) -> None:
    write = partial(request_variants.header_of, form, code="310")
    for text in TEXTS:
        await both.same(frame(write(FIELDS | {"i": text})))
        await both.same(frame(write(FIELDS, raw={"i": json.dumps(text, ensure_ascii=False)})))
    for value in VALUES:
        await both.same(frame(write(FIELDS, raw={"i": value})))


@pytest.mark.parametrize("form", request_variants.FORMS)
async def test_each_odd_member_means_the_same_both_ways(both: Both, form: str) -> None:
    write = partial(request_variants.header_of, form, code="310")
    for opaque in OPAQUES:
        await both.same(frame(write(FIELDS, opaque=opaque)))
    for version in VERSIONS:
        await both.same(frame(write(FIELDS, version=version)))
    for language in LANGUAGES:
        await both.same(frame(write(FIELDS, language=language)))
    for flag in ("0", "1", "2", "3"):
        await both.same(frame(write(FIELDS, flag=flag)))


EXAMPLES = settings(
    max_examples=rounds(test=150, long=2000),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@EXAMPLES
@given(
    requests=st.lists(st.tuples(HEADERS, BODIES), min_size=1, max_size=4),
    good=st.sampled_from([0, 1, 5, 33]),
    times=st.sampled_from([1, 1, 2, 12]),
)
async def test_whatever_is_asked_the_two_ways_do_the_same(
    both: Both, requests: list[tuple[bytes, bytes]], good: int, times: int
) -> None:
    stream = b"".join(frame(header, body) for header, body in requests)
    if len(stream) > 10_000:
        times = 1
    await both.same((frame(java(FIELDS)) * good + stream) * times)


@EXAMPLES
@given(data=st.data())
async def test_whatever_happens_to_the_bytes_the_two_ways_do_the_same(
    both: Both, data: st.DataObject
) -> None:
    await both.same(*request_variants.damaged(data, FIELDS, frame))


# --- refusing and waiting -----------------------------------------------------------------------


async def test_sends_that_cannot_be_written_are_refused_all_of_them(both: Both) -> None:
    answers = []
    for side in (both.fast, both.general):
        client = side.connect()
        client.transport.send(frame(java(FIELDS)))
        side.files.fail_write = True
        client.transport.send(
            b"".join(frame(java(FIELDS, opaque=str(n))) for n in range(1, 4))
            + frame(java(BATCH, opaque="4"), encode_batch(ITEMS))
        )
        side.files.fail_write = False
        client.transport.send(frame(java(FIELDS, opaque="5")))
        answers.append(read(client))
        assert side.stats.put_failures == 5
    assert answers[0] == answers[1]
    assert [answer[1] for answer in answers[0]] == [0, 14, 14, 14, 14, 14]
    assert both.fast.log() == both.general.log()


async def test_a_broker_that_refuses_sends_refuses_plain_ones(both: Both) -> None:
    for side in (both.fast, both.general):
        side.flow.stop()
    assert await both.same(frame(java(FIELDS))) == 1


async def test_changed_rules_show_in_the_next_answer(both: Both) -> None:
    await both.same(frame(java(FIELDS)))
    for side in (both.fast, both.general):
        side.validation.change(
            SendRules(broker_ip="10.0.0.1", cluster="c2", region="100%", trace_on=False)
        )
    await both.same(frame(java(FIELDS)) * 2)


async def test_changed_topics_and_closed_brokers_show_in_the_next_send(both: Both) -> None:
    sends = frame(java(FIELDS | {"e": "3"}))
    assert await both.same(sends) == 0
    both.topic("T", queues=2)
    assert await both.same(sends) == 1
    both.topic("T", queues=4)
    assert await both.same(sends) == 0
    for is_writable, handled in ((False, 1), (True, 0)):
        for side in (both.fast, both.general):
            side.validation.change(msgspec.structs.replace(RULES, broker_writable=is_writable))
        assert await both.same(sends) == handled


async def test_a_full_disk_refuses_plain_sends_with_the_same_words(both: Both) -> None:
    for side in (both.fast, both.general):
        side.files.room_bytes = 0
    await both.same(b"".join(frame(java(FIELDS, opaque=str(n)), bytes(2000)) for n in range(700)))


# --- several connections in one turn of the loop --------------------------------------------------


async def test_what_one_turn_reads_from_several_connections_is_written_once(both: Both) -> None:
    side = both.fast
    clients = [side.connect(("10.0.0.9", port)) for port in range(51000, 51008)]
    clients[7].transport.send(frame(java(FIELDS)))
    writes, end = side.log_writes(), side.store.written_to
    for number, client in enumerate(clients):
        client.transport.arrive(frame(java(FIELDS, opaque=str(number))))
    assert side.store.written_to == end
    assert not any(client.answers for client in clients[:7])
    write_batch_of(asyncio.get_running_loop()).end()
    assert side.log_writes() == writes + 1
    assert [client.answers[-1].opaque for client in clients] == list(range(8))
    assert len(all_messages(side.store, "T", 1)) == 9


async def test_a_connection_that_is_read_twice_in_a_row_is_answered_at_once(both: Both) -> None:
    client = both.fast.connect()
    client.transport.send(frame(java(FIELDS)))
    client.transport.arrive(frame(java(FIELDS, opaque="8")))
    assert [answer.opaque for answer in client.answers] == [7, 8]


async def test_a_turn_that_cannot_be_written_refuses_all_its_connections(both: Both) -> None:
    side = both.fast
    clients = [side.connect(("10.0.0.9", port)) for port in range(51000, 51004)]
    clients[3].transport.send(frame(java(FIELDS)))
    side.files.fail_write = True
    for number, client in enumerate(clients):
        client.transport.arrive(frame(java(FIELDS, opaque=str(number))) * 2)
    write_batch_of(asyncio.get_running_loop()).end()
    for number, client in enumerate(clients):
        found = [(answer.opaque, answer.code) for answer in client.answers[-2:]]
        assert found == [(number, 14)] * 2
    assert side.stats.put_failures == 8
    assert len(all_messages(side.store, "T", 1)) == 1


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_sends_that_are_in_the_log_are_not_refused_with_those_behind_them(
    both: Both, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """One read has more records than are held back at a time; the second write of them fails."""
    side, writes = both.fast, 0
    items = encode_batch([BatchItem(0, b"", b"")] * 90)
    side.validation.change(msgspec.structs.replace(RULES, cluster="c" * 60, body_bytes_max=2**20))
    side.store._appender.message_bytes_max = 2**20
    real = FaultyMappedFile.write

    def write(self: FaultyMappedFile, start: int, data: Any) -> None:
        nonlocal writes
        writes += self.path.parent.name == "commitlog"
        if writes == 3:
            raise OSError(number, "the disk refuses")
        real(self, start, data)

    client = side.connect()
    client.transport.send(frame(java(FIELDS, opaque="0")))
    arrived: list[Any] = []
    side.store.notify_of_arrivals(lambda *what: arrived.append(what), {"T": 1})
    writes = 1
    monkeypatch.setattr(FaultyMappedFile, "write", write)
    client.transport.send(
        b"".join(frame(java(BATCH, opaque=str(n), code="320"), items) for n in range(1, 40))
    )
    monkeypatch.undo()
    codes = {answer.opaque: answer.code for answer in client.answers}
    stored = sum(code == 0 for opaque, code in codes.items() if opaque)
    assert 0 < stored < 39
    assert len(codes) == 40
    assert side.store.bounds("T", 1)[1] == 1 + 90 * stored
    assert len(arrived) == 90 * stored


@pytest.mark.parametrize("other", ["general", "unknown code", "append"])
async def test_whatever_else_comes_in_a_turn_has_the_sends_before_it_answered(
    both: Both, other: str
) -> None:
    side = both.fast
    first, second = side.connect(("10.0.0.9", 51000)), side.connect(("10.0.0.9", 51001))
    second.transport.send(frame(java(FIELDS)))
    first.transport.arrive(frame(java(FIELDS, opaque="1")))
    end = side.store.written_to
    if other == "general":
        second.transport.arrive(frame(java(FIELDS | {"i": "DELAY\x011\x02"}, opaque="2")))
    elif other == "unknown code":
        second.transport.arrive(encode_command(Command(31999, opaque=2)))
    else:
        put(side.store, b"of the broker itself", topic="T", queue_id=0)
    assert side.store.written_to > end
    write_batch_of(asyncio.get_running_loop()).end()
    assert [answer.opaque for answer in first.answers] == [1]
    if other != "append":
        assert [answer.opaque for answer in second.answers] == [7, 2]


async def test_a_connection_that_is_closed_is_answered_before(both: Both) -> None:
    side = both.fast
    first, second = side.connect(("10.0.0.9", 51000)), side.connect(("10.0.0.9", 51001))
    first.transport.arrive(frame(java(FIELDS, opaque="1")))
    second.transport.arrive(frame(java(FIELDS, opaque="2")))
    second.connection.close()
    assert [answer.opaque for answer in second.answers] == [2]
    first.connection.abort()
    write_batch_of(asyncio.get_running_loop()).end()
    assert len(all_messages(side.store, "T", 1)) == 2


async def test_very_many_sends_do_not_wait_for_the_end_of_the_turn(both: Both) -> None:
    side = both.fast
    clients = [side.connect(("10.0.0.9", port)) for port in range(51000, 51003)]
    clients[2].transport.send(frame(java(FIELDS)))
    for client in clients[:2]:
        stream = b"".join(frame(java(FIELDS, opaque=str(n))) for n in range(300))
        client.transport.arrive(stream)
    assert len(all_messages(side.store, "T", 1)) == 601


@pytest.fixture
async def synced(tmp_path: Path, tables: Tables) -> AsyncIterator[Side]:
    tables.topic("T", queues=4)
    side = Side(tmp_path, tables, fast=True, sync=True)
    yield side
    assert side.commit is not None
    await side.commit.stop()
    side.store.abandon()


async def test_plain_sends_wait_for_the_disk_together(synced: Side) -> None:
    wired, syncs = synced.connect(), synced.files.syncs
    wired.transport.send(b"".join(frame(java(FIELDS, opaque=str(n))) for n in range(50)))
    assert wired.transport.writes == []
    assert synced.flow.waiting == 50

    found = await wired.answered(50)
    assert [(answer.opaque, answer.code) for answer in found] == [(n, 0) for n in range(50)]
    assert synced.files.syncs == syncs + 1
    assert synced.flow.waiting == 0
    assert synced.handled == 0


async def test_each_plain_send_is_told_when_the_sync_fails(synced: Side) -> None:
    wired = synced.connect()
    synced.files.fail_sync = True
    wired.transport.send(b"".join(frame(java(FIELDS, opaque=str(n))) for n in range(5)))
    found = await wired.answered(5)

    assert [(answer.opaque, answer.code) for answer in found] == [(n, 14) for n in range(5)]
    assert all("the disk is gone" in (answer.remark or "") for answer in found)
    wired.transport.send(frame(java(FIELDS, opaque="9")))
    assert (await wired.answered(6))[-1].code == 14


async def test_a_sender_that_does_not_wait_takes_the_long_way(synced: Side) -> None:
    wired = synced.connect()
    wired.transport.send(frame(java(FIELDS | {"i": "UNIQ_KEY\x01u\x02WAIT\x01false\x02"})))

    assert (synced.handled, len(wired.answers)) == (1, 1)


async def test_plain_sends_are_bounded_while_they_wait(synced: Side) -> None:
    """Sends of one read may pass the limit together; the next read is refused."""
    wired = synced.connect()
    wired.transport.send(b"".join(frame(java(FIELDS, opaque=str(n))) for n in range(100)))
    wired.transport.send(frame(java(FIELDS, opaque="100")))
    found = {answer.opaque: answer.code for answer in await wired.answered(101)}

    assert found == dict.fromkeys(range(100), 0) | {100: 2}


async def test_a_frame_over_the_limit_is_left_for_the_connection_to_refuse(both: Both) -> None:
    data = bytearray(frame(java(FIELDS), b"x" * 1500))
    fast_path = SendFastPath(both.fast.send)
    small = Wired({}, fast_path=fast_path, frame_bytes_max=1024).connection
    assert fast_path.take(data, 0, len(data), small) == 0
    assert fast_path.take(data, 0, len(data), both.fast.connect().connection) == len(data)


@pytest.mark.parametrize("place", [0, 1, 40])
async def test_a_header_over_the_limit_closes_the_connection_wherever_it_is(
    both: Both, place: int
) -> None:
    frames = [frame(java(FIELDS, opaque=str(number))) for number in range(60)]
    frames[place] = frame(java(FIELDS | {"x": "y" * 1000}))
    found = []
    for side in (both.fast, both.general):
        client = side.connect()
        client.connection.header_bytes_max = 1000
        client.transport.send(b"".join(frames))
        assert client.connection.closed
        found.append([answer.opaque for answer in client.answers])
        assert len(all_messages(side.store, "T", 1)) == place
    assert found == [list(range(place))] * 2


async def test_names_that_no_topic_has_are_not_remembered(both: Both) -> None:
    topics: dict[bytes, str] = {}
    reader = SendHeaderReader(True, None, topics)
    for size in (TOPIC_CHARS_MAX, TOPIC_CHARS_MAX + 1, 100_000):
        header = bytearray(java(FIELDS | {"b": "x" * size}))
        assert reader.read(header, 0, len(header), False) == (size <= TOPIC_CHARS_MAX)
        assert await both.same(frame(bytes(header)) + frame(java(FIELDS))) == 1
    assert list(topics) == [b"x" * TOPIC_CHARS_MAX]


def sends_in_memory() -> list[Send]:
    gc.collect()
    return [found for found in gc.get_objects() if type(found) is Send]


@pytest.mark.parametrize("scans", [False, True])
async def test_nothing_of_a_read_is_kept_behind_it(
    tmp_path: Path, tables: Tables, scans: bool
) -> None:
    tables.topic("T", queues=4)
    known = {id(send) for send in sends_in_memory()}
    side = Side(tmp_path, tables, fast=True, scans=scans)
    stream = b"".join(frame(java(FIELDS, opaque=str(number))) for number in range(100))
    side.connect().transport.send(stream + frame(java(FIELDS | {"e": "9"})) + stream)
    sends = [send for send in sends_in_memory() if id(send) not in known]
    assert len(sends) >= 16
    for send in sends:
        assert (send.wire, send.header, bytes(send.source), bytes(send.text)) == (
            None, None, b"", b"",
        )  # fmt: skip
    assert len(all_messages(side.store, "T", 1)) == 200
    side.store.abandon()


@pytest.mark.parametrize("scans", [False, True])
async def test_forwarded_sends_take_the_long_way_in_each_build(
    tmp_path: Path, tables: Tables, scans: bool
) -> None:
    tables.topic("T", queues=4)
    side = Side(tmp_path, tables, fast=True, scans=scans)
    client = side.connect()
    for remark, handled in ((None, 0), ("found", 0), (FORWARDED, 1)):
        client.transport.send(encode_command(Command(310, fields=FIELDS, remark=remark, body=b"x")))
        await client.settled()
        assert side.handled == handled, remark
    assert len(all_messages(side.store, "T", 1)) == 3
    side.store.abandon()


SESSION = {"producerSession": "s", "producerEpoch": "3", "producerOwner": "o"}


@pytest.mark.parametrize("form", request_variants.FORMS)
async def test_sends_of_producer_sessions_take_the_long_way(both: Both, form: str) -> None:
    checked: list[tuple[object, ...]] = []

    def check(*session: object) -> None:
        checked.append(session)
        if session[2] != 3:
            raise ResponseError(ResponseCode.PRODUCER_FENCED, "fenced")

    for side in (both.fast, both.general):
        side.validation.check_session = check
    code = "10" if form in ("go", "cpp", "binary 10") else "310"
    write = partial(request_variants.header_of, form, code=code)
    fenced = SESSION | {"producerEpoch": "2"}
    stream = [frame(write(FIELDS | more)) for more in ({}, SESSION, fenced, {})]

    assert await both.same(b"".join(stream)) == 2

    assert sorted(checked) == [("T", "s", 2, "o")] * 2 + [("T", "s", 3, "o")] * 2
    assert len(all_messages(both.fast.store, "T", 1)) == 3


async def test_sends_of_producer_sessions_take_the_long_way_interpreted(
    tmp_path: Path, tables: Tables
) -> None:
    tables.topic("T", queues=4)
    side = Side(tmp_path, tables, fast=True, scans=False)
    client = side.connect()
    client.transport.send(frame(java(FIELDS)) + frame(java(FIELDS | SESSION)))
    await client.settled()
    assert side.handled == 1
    side.store.abandon()


@pytest.mark.parametrize("place", [0, 1, 20, 31, 32, 50])
async def test_a_defect_inside_a_read_leaves_nothing_for_the_next_one(
    both: Both, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """The sends before it are stored and responded to; those behind it end with the connection."""
    side = both.fast
    await both.same(frame(java(FIELDS | {"i": ""}, opaque="1000")))
    frames = [frame(java(FIELDS, opaque=str(number)), b"%d" % number) for number in range(60)]
    frames[place] = frame(java(FIELDS | {"e": "3"}, opaque=str(place)), b"not stored")

    def take_space(self: FaultyFiles, size_bytes: int) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(FaultyFiles, "take_space", take_space)  # the queue has no file yet
    client, other = side.connect(), side.connect(("10.0.0.8", 51000))
    with pytest.raises(RuntimeError, match="a defect"):
        client.transport.arrive(b"".join(frames))
    monkeypatch.undo()
    other.transport.arrive(frame(java(FIELDS | {"i": ""}, opaque="77"), b"of another"))
    write_batch_of(asyncio.get_running_loop()).end()

    assert [answer.opaque for answer in client.answers] == list(range(place))
    assert [(answer.opaque, answer.code) for answer in other.answers] == [(77, 0)]
    stored = all_messages(side.store, "T", 1)
    assert [message.body for message in stored[1:]] == [
        *(b"%d" % number for number in range(place)), b"of another",
    ]  # fmt: skip
    assert b"KEYS" not in stored[-1].properties
    assert all_messages(side.store, "T", 3) == []


async def test_sends_of_one_read_around_a_disk_that_fails_have_their_own_responses(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue without a file, and a delay topic, find the disk full in the middle of a run."""
    found = []
    for side in (both.fast, both.general):
        client = side.connect()
        client.transport.send(frame(java(FIELDS, opaque="1000")))
        real, left = FaultyFiles.take_space, 2

        def take_space(self: FaultyFiles, size_bytes: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(self, size_bytes)  # noqa: B023

        monkeypatch.setattr(FaultyFiles, "take_space", take_space)
        stream = b""
        for number in range(150):
            queue = "2" if number == 40 else "3" if number == 80 else "1"
            text = "DELAY\x011\x02" if number == 120 else f"KEYS\x01{number}\x02"
            stream += frame(java(FIELDS | {"e": queue, "i": text}, opaque=str(number)))
        client.transport.send(stream)
        monkeypatch.undo()
        found.append(read(client))
    assert found[0] == found[1]
    assert [answer[0] for answer in found[0]] == [1000, *range(150)]
    assert 0 < sum(answer[1] != 0 for answer in found[0]) < 150
    assert both.fast.log() == both.general.log()
