"""The fast path of pulls beside the general path: the same responses, byte for byte."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.broker.fast_paths import FastPaths
from cometmq.broker.prerequisites import with_prerequisites
from cometmq.broker.pulling.fast_path import PullFastPath
from cometmq.model.topic import GROUP_CHARS_MAX, RETRY_PREFIX
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command, encode_command
from cometmq.remoting.wire import JOIN_BYTES_MAX, FastPath, Wire
from cometmq.store import MessageStore
from support.checks.cases import case
from support.checks.waiting import until
from support.runner.tiers import rounds
from support.stores.small_stores import put
from support.wire import request_variants
from support.wire.fake_transport import Wired
from support.wire.request_variants import frame, headers
from unit.broker.conftest import Pulls, Tables, by_tags, open_store

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
FIELDS = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": str(SUBSCRIPTION), "commitOffset": "0", "suspendTimeoutMillis": "15000",
    "subscription": "*", "subVersion": "0", "expressionType": "TAG", "bname": "broker-a",
}  # fmt: skip

FORMS = ["java", "node", "mixed", "spaced", "binary"]

java = partial(request_variants.java_header, code="11")


class Nothing(FastPath):
    """A fast way that knows no frame."""

    def take(self, data: bytearray, start: int, end: int, wire: Wire) -> int:
        return 0


class Side:
    """The pull handler, with the fast path before it or without."""

    def __init__(self, tables: Tables, store: MessageStore, *, fast: bool) -> None:
        self.tables = tables
        self.pulls = Pulls(tables, store, held_max=2)
        self.held, self.stats = self.pulls.held, self.pulls.stats
        self.handled = 0
        fast_path = FastPaths(Nothing(), PullFastPath(self.pulls.handler)) if fast else None
        codes = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
        self.wired = Wired(dict.fromkeys(codes, self._handle), fast_path=fast_path)

    def _handle(self, request: Any) -> Any:
        self.handled += 1
        return with_prerequisites(self.pulls.handler.handle)(request)

    def online(self, expression: str) -> None:
        self.pulls.register(self.wired.connection, by_tags(expression))


class Both:
    """The two sides, given the same; they share a store with five messages in queue 0."""

    def __init__(self, tables: Tables, store: MessageStore) -> None:
        self.tables = tables
        self.store = store
        tables.topic("T", queues=2)
        tables.group("g")
        self.fast = Side(tables, store, fast=True)
        self.general = Side(tables, store, fast=False)
        store.notify_of_arrivals(self._arrived, {"T": 1})
        for tag in ("a", "b", "a", "b", "a"):
            self.put(tag)

    def _arrived(self, *what: Any) -> None:
        self.fast.held.arrived(*what)
        self.general.held.arrived(*what)

    def put(self, tag: str, queue: int = 0) -> None:
        put(self.store, tag.encode(), "T", queue, {"TAGS": tag})

    def set(self, **changes: Any) -> None:
        self.tables.settings = dataclasses.replace(self.tables.settings, **changes)

    async def same(self, *pieces: bytes) -> int:
        """Send the pieces to both, compare everything; returns how many took the general path."""
        handled = self.fast.handled
        for piece in pieces:
            for side in (self.fast, self.general):
                side.wired.transport.send(piece)
            for side in (self.fast, self.general):
                await side.wired.settled()
        self.compare()
        return self.fast.handled - handled

    def compare(self) -> None:
        fast, general = self.fast, self.general
        assert fast.wired.transport.written == general.wired.transport.written
        assert len(fast.held) == len(general.held)
        assert fast.stats.get_messages == general.stats.get_messages
        assert fast.stats.get_missed == general.stats.get_missed
        assert fast.wired.connection.closed == general.wired.connection.closed

    @property
    def codes(self) -> list[int]:
        return [answer.code for answer in self.fast.wired.answers]


@pytest.fixture
async def both(tables: Tables, store: MessageStore) -> AsyncIterator[Both]:
    made = Both(tables, store)
    yield made
    made.fast.held.close()
    made.general.held.close()


def pull(**changes: str) -> bytes:
    return frame(java(FIELDS | changes))


async def test_plain_pulls_do_not_take_the_long_way(both: Both) -> None:
    assert await both.same(b"".join(pull(queueOffset=str(at)) for at in range(5))) == 0
    assert both.codes == [0] * 5


@pytest.mark.parametrize("form", FORMS)
async def test_each_clients_pulls_are_read_fast(both: Both, form: str) -> None:
    write = partial(request_variants.header_of, form, code="11")
    found = [frame(write(FIELDS | {"queueOffset": str(at)}, opaque=str(at))) for at in range(5)]
    missed = [frame(write(FIELDS | {"queueOffset": "9"})), frame(write(FIELDS | {"topic": "none"}))]
    assert await both.same(b"".join(found + missed)) == 0
    assert both.codes == [0] * 5 + [21, 17]


async def test_no_pulls_are_handled_behind_a_large_response_that_is_not_read(both: Both) -> None:
    put(both.store, bytes(2 * JOIN_BYTES_MAX), "T", 1)
    sides = (both.fast, both.general)
    for side in sides:
        side.wired.transport.set_write_buffer_limits(high=JOIN_BYTES_MAX)
        side.wired.transport.stuck = True
    assert await both.same(pull(queueId="1") * 8) == 0
    assert [side.stats.get_messages for side in sides] == [1, 1]
    for side in sides:
        side.wired.transport.take()
        await side.wired.answered(8)
    both.compare()


@pytest.mark.parametrize("cut", [1, 8, 40, 300])
async def test_pulls_are_taken_whole_wherever_the_stream_is_cut(both: Both, cut: int) -> None:
    stream = b"".join(pull(queueOffset=str(at % 5)) for at in range(10))
    await both.same(*(stream[at : at + cut] for at in range(0, len(stream), cut)))
    assert both.codes == [0] * 10


async def test_every_answer_and_refusal_is_the_same(both: Both) -> None:
    assert not await both.same(pull(subscription="a || c"), pull(subscription="none"))
    assert not await both.same(
        pull(queueOffset="5"), pull(queueOffset="99"), pull(queueOffset="-1")
    )
    assert not await both.same(pull(queueId="1"), pull(queueId="1", queueOffset="3"))
    assert not await both.same(pull(queueId="7"), pull(queueId="-1"), pull(topic="unknown"))
    assert not await both.same(
        pull(expressionType="SQL92"), pull(subscription="a ||", subVersion="9")
    )
    assert not await both.same(pull(consumerGroup="bad name!"), pull(consumerGroup=""))
    assert not await both.same(pull(maxMsgNums="2"), pull(maxMsgNums="0"), pull(maxMsgBytes="200"))
    assert await both.same(pull(maxMsgNums="1000", bulk="true")) == 1
    assert len(set(both.codes)) > 5


async def test_the_group_s_own_subscription_counts_where_the_pull_brings_none(both: Both) -> None:
    asked = [pull(sysFlag="0", subVersion=version) for version in ("0", "5", "6")]
    assert not await both.same(*asked)
    both.fast.online("b")
    both.general.online("b")
    assert not await both.same(*asked)
    assert both.codes == [24, 24, 24, 0, 0, 25]


async def test_switches_refuse_plain_pulls_too(both: Both) -> None:
    both.set(broker_permission=2)
    await both.same(pull())
    both.set(broker_permission=6, lite_pull_message_enable=False)
    await both.same(pull(), frame(java(FIELDS, code="361")))
    assert both.codes == [16, 0, 16]


async def test_an_offset_that_travels_with_a_plain_pull_is_committed(both: Both) -> None:
    await both.same(pull(sysFlag=str(SUBSCRIPTION | COMMIT), commitOffset="3"))
    assert both.tables.offsets.committed("g", "T", 0) == 3


async def test_a_held_pull_is_answered_with_what_arrives(both: Both) -> None:
    held = str(SUBSCRIPTION | SUSPEND)
    await both.same(
        pull(sysFlag=held, queueOffset="5", subscription="a"),
        frame(java(FIELDS | {"sysFlag": held, "queueId": "1"}, opaque="8")),
    )
    assert both.codes == []
    assert len(both.fast.held) == 2
    assert await both.same(frame(java(FIELDS | {"sysFlag": held, "queueId": "1"}, opaque="9"))) == 0
    assert both.codes == [2]  # no more than two are held
    both.put("b")
    await asyncio.sleep(0)
    both.compare()
    both.put("a")
    both.put("a", queue=1)
    async with asyncio.timeout(60):  # the work of a turn of the loop has a limit in time
        while min(len(side.wired.answers) for side in (both.fast, both.general)) < 3:
            await asyncio.sleep(0)
    both.compare()
    assert [answer.opaque for answer in both.fast.wired.answers] == [9, 7, 8]
    assert both.codes == [2, 0, 0]


async def test_a_pull_finds_what_is_stored_and_waits_for_the_end_of_the_turn(both: Both) -> None:
    """Else nobody would tell it of that message."""
    appender = both.store.appender
    appender.defer()
    both.put("a")
    appender.on_finish_deferred = appender.write_staged
    assert await both.same(pull(sysFlag=str(SUBSCRIPTION | SUSPEND), queueOffset="5")) == 0
    assert both.codes == [0]


@pytest.mark.usefixtures("virtual_time")
async def test_a_held_pull_ends_on_time(both: Both) -> None:
    await both.same(
        pull(sysFlag=str(SUBSCRIPTION | SUSPEND), queueOffset="5", suspendTimeoutMillis="20")
    )
    await until(lambda: not (len(both.fast.held) or len(both.general.held)), timeout=60)
    await asyncio.sleep(0)
    both.compare()
    assert both.codes == [19]


async def test_a_held_pull_of_a_connection_that_is_gone_is_not_answered(both: Both) -> None:
    await both.same(pull(sysFlag=str(SUBSCRIPTION | SUSPEND), queueOffset="5"))
    for side in (both.fast, both.general):
        side.wired.connection.abort()
    both.put("a")
    await asyncio.sleep(0)
    both.compare()
    assert both.codes == []


async def test_a_pending_reset_is_told(both: Both) -> None:
    for side in (both.fast, both.general):
        both.tables.offsets.reset("g", "T", 0, 2)
        side.wired.transport.send(pull())
    both.compare()
    assert both.codes == [21]


async def test_other_requests_between_plain_ones_keep_their_place(both: Both) -> None:
    parts = [
        pull(),
        encode_command(Command(31999, opaque=3)),
        encode_command(Command(11, opaque=4, fields=FIELDS)),
        pull(topic="unknown"),
        frame(java(FIELDS, opaque="5"), b"a body"),
        frame(java(FIELDS, opaque="6", flag="2")),
        frame(java(FIELDS, opaque="8", flag="1")),
        frame(java(FIELDS, opaque="9", code="361")),
        pull(),
    ]
    assert await both.same(b"".join(parts)) == 3  # with a body, oneway, and the lite one


async def test_what_follows_malformed_input_is_not_answered(both: Both) -> None:
    assert await both.same(pull() + b"\xff" * 12 + pull()) == 0
    assert both.fast.wired.connection.closed


async def test_a_pull_that_breaks_is_answered_with_what_broke(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a broken table")

    monkeypatch.setattr(both.tables.offsets, "note_pulled", broken)
    assert await both.same(pull()) == 0
    assert both.codes == [1]


# --- anything at all ----------------------------------------------------------------------------

VALUES = [
    *request_variants.VALUES,
    *('"5"', '"6"', '"7"', '"a"', '"a || b"', '"TAG"', '"SQL92"', '"g"'),
]
NAMES = [
    *FIELDS,
    "maxMsgBytes",
    "requestSource",
    "ReqT",
    "proxyFrowardClientId",
    "lo",
    "nsd",
    "Topic",
    "x",
]
HEADERS = headers(
    FIELDS,
    st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)),
    odd_max=3,
    left_out=FIELDS,
    codes=["11", "11", "11", "361"],
    forms=FORMS,
)


@pytest.mark.parametrize("form", FORMS)
async def test_each_odd_value_of_a_field_means_the_same_both_ways(both: Both, form: str) -> None:
    write = partial(request_variants.header_of, form, code="11")
    for name in NAMES:
        for value in VALUES:
            with case(f"{name}={value}"):
                await both.same(frame(write(FIELDS, raw={name: value})))
        with case(f"no {name}"):
            await both.same(frame(write({key: FIELDS[key] for key in FIELDS if key != name})))
    assert not both.fast.wired.connection.closed, "the last cases were not read"


@settings(
    max_examples=rounds(test=60, long=2000),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_header_means_the_same_both_ways(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    headers = data.draw(st.lists(HEADERS, min_size=1, max_size=4))
    cut_at = data.draw(st.integers(0, 400))
    flipped = data.draw(st.one_of(st.none(), st.tuples(st.integers(0, 300), st.integers(0, 255))))

    async def run() -> None:
        folder: Path = tmp_path_factory.mktemp("pulls")
        tables = Tables(folder / "config")
        store = open_store(folder / "store", tables)
        both = Both(tables, store)
        stream = bytearray(b"".join(frame(header) for header in headers))
        if flipped is not None and 8 + flipped[0] < len(stream):
            stream[8 + flipped[0]] = flipped[1]
        await both.same(bytes(stream[:cut_at]), bytes(stream[cut_at:]))
        both.fast.held.close()
        both.general.held.close()
        both.compare()
        store.abandon()

    asyncio.run(run())


@pytest.mark.parametrize("name", ["topic", "consumerGroup", "subscription", "expressionType"])
async def test_texts_that_are_too_long_to_be_remembered_take_the_general_path(
    both: Both, name: str
) -> None:
    limit = 1024 if name == "subscription" else GROUP_CHARS_MAX + len(RETRY_PREFIX)
    assert await both.same(pull(**{name: "x" * limit})) == 0
    assert await both.same(pull() + pull(**{name: "x" * (limit + 1)}) + pull()) == 1


@pytest.mark.parametrize("place", [0, 1, 40])
async def test_a_header_over_the_limit_closes_the_connection_wherever_it_is(
    both: Both, place: int
) -> None:
    pulls = [pull() for _ in range(60)]
    pulls[place] = pull(x="y" * 1000)
    for side in (both.fast, both.general):
        side.wired.connection.header_bytes_max = 1000
    await both.same(b"".join(pulls))
    assert both.fast.wired.connection.closed
    assert both.codes == [0] * place


async def test_a_frame_over_the_limit_closes_the_connection(tables: Tables, both: Both) -> None:
    path = PullFastPath(both.fast.pulls.handler)
    wired = Wired({}, fast_path=path, frame_bytes_max=1024)
    wired.transport.send(pull() + pull(x="y" * 1024))
    assert wired.connection.closed
    assert [answer.code for answer in wired.answers] == [0]
