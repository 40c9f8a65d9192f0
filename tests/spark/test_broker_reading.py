"""Ranges of queues as readers get them, against brokers that do what real ones do rarely."""

from __future__ import annotations

import asyncio
import math
import queue
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cometmq.client.filters import Filter
from cometmq.client.library import ClientConnection
from cometmq.client.settings import ClientSettings
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.pull import PullMessageResponse
from cometmq.protocol.record import decode_messages
from cometmq.remoting import Request, Response
from cometmq.spark.brokers import reading
from cometmq.spark.brokers.reading import RangePump, Read
from cometmq.spark.brokers.routes import queue_of
from cometmq.spark.errors import (
    DataLossError,
    GoneError,
    RangeError,
    SourceError,
    UnreachableError,
)
from cometmq.spark.offsets import QueueKey, QueueRange
from cometmq.system.clock import Clock
from support.brokers.queue_broker import QueueBroker, QueueNameServer
from support.brokers.scripted import Act
from support.checks.manual_clock import ManualClock
from support.runner.tiers import rounds

PULL = RequestCode.PULL_MESSAGE
BUSY = Response(ResponseCode.SYSTEM_BUSY, "busy")
KEY = QueueKey("t", "a", 0)


def wanted(start: int, end: int, **more: object) -> Read:
    read = Read(QueueRange(KEY, start, end), Filter(), 1_024, 5.0, "g")
    return replace(read, **more)  # type: ignore[arg-type]


class LoopClock(Clock):
    """The time of the loop, which may be virtual."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass
class Reader:
    """Reads in the loop of the test."""

    connection: ClientConnection
    broker: QueueBroker
    names: QueueNameServer

    async def read(self, read: Read, clock: Clock | None = None) -> list[bytes]:
        pump = RangePump(self.connection, read, pieces := queue.SimpleQueue(), clock)
        await asyncio.wait([pump.start()])
        return drained(pieces)

    async def offsets(self, read: Read) -> list[int]:
        return offsets_in(await self.read(read))


def drained(pieces: reading.Pieces) -> list[bytes]:
    """Give what was handed over; raise if it ended with an error."""
    found: list[bytes] = []
    while (piece := pieces.get_nowait()) is not None:
        if isinstance(piece, Exception):
            piece.add_note(f"after offsets {offsets_in(found)}")
            raise piece
        found.append(piece)
    assert pieces.empty(), "something came behind the end"
    return found


def offsets_in(pieces: list[bytes]) -> list[int]:
    return [message.queue_offset for piece in pieces for message in decode_messages(piece)]


@asynccontextmanager
async def running(*brokers: QueueBroker, **more: Any) -> AsyncIterator[Reader]:
    """Brokers of one name, the first of them the master, and a client."""
    names = QueueNameServer()
    await names.start()
    for broker in brokers:
        await broker.start()
    names.serve({"a": {number: broker.address for number, broker in enumerate(brokers)}})
    settings = ClientSettings(name_servers=names.address, http_domain="", **more)
    try:
        async with ClientConnection(settings=settings) as connection:
            yield Reader(connection, brokers[0], names)
    finally:
        for peer in (names, *brokers):
            await peer.stop()


@pytest.fixture
async def reader() -> AsyncIterator[Reader]:
    async with running(QueueBroker()) as found:
        yield found


# --- all of a range, in order -----------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 7, 32, 5_000])
async def test_a_range_comes_whole_and_in_order_whatever_the_broker_gives_at_once(
    reader: Reader, limit: int
) -> None:
    reader.broker.put(0, 600)
    reader.broker.limit = limit
    assert await reader.offsets(wanted(0, 600)) == list(range(600))


async def test_no_message_is_asked_for_twice_while_a_broker_gives_the_same_number(
    reader: Reader,
) -> None:
    reader.broker.put(0, 3_200)
    assert await reader.offsets(wanted(0, 3_200)) == list(range(3_200))
    assert len(reader.broker.pulls) == 100
    assert len({pull.queue_offset for pull in reader.broker.pulls}) == 100


async def test_the_range_alone_is_asked_for(reader: Reader) -> None:
    """What lies behind a range is another task's."""
    reader.broker.put(0, 100)
    assert await reader.offsets(wanted(10, 75)) == list(range(10, 75))


async def test_an_answer_that_is_shorter_than_guessed_loses_and_doubles_nothing(
    reader: Reader,
) -> None:
    """What was asked for behind it began at the wrong place."""
    reader.broker.put(0, 1_000)
    reader.broker.holds = True
    reading_ = asyncio.create_task(reader.offsets(wanted(0, 1_000)))
    await reader.broker.until(lambda: len(reader.broker.held) == 1)
    reader.broker.let_go()
    reader.broker.holds = True
    await reader.broker.until(lambda: len(reader.broker.held) > 1)
    reader.broker.limit = 5
    reader.broker.let_go()
    assert await reading_ == list(range(1_000))


async def test_a_broker_that_gives_more_later_is_asked_for_more(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "RELEARN", 4)
    reader.broker.put(0, 2_000)
    reader.broker.limit = 2
    reader.broker.holds = True
    reading_ = asyncio.create_task(reader.offsets(wanted(0, 2_000)))
    await reader.broker.until(lambda: len(reader.broker.held) == 1)
    reader.broker.let_go()
    reader.broker.limit = 200
    assert await reading_ == list(range(2_000))
    assert len(reader.broker.pulls) < 100


async def test_holes_are_no_loss(reader: Reader) -> None:
    reader.broker.put(0, 40)
    reader.broker.put(0, 40, gap=300)
    reader.broker.max[0] += 7
    expected = [*range(40), *range(340, 380)]
    assert await reader.offsets(wanted(0, 387)) == expected


async def test_an_empty_range_asks_nobody(reader: Reader) -> None:
    assert await reader.read(wanted(5, 5)) == []
    assert not reader.broker.pulls


async def test_what_is_filtered_is_asked_for_one_after_the_other(reader: Reader) -> None:
    """Where the next answer begins cannot be guessed then."""
    reader.broker.put(0, 200)
    reader.broker.holds = True
    reading_ = asyncio.create_task(reader.offsets(wanted(0, 200, filter=Filter.tags("a || b"))))
    await reader.broker.until(lambda: len(reader.broker.held) == 1)
    reader.broker.let_go()
    assert await reading_ == list(range(200))
    assert [pull.subscription for pull in reader.broker.pulls] == ["a || b"] * len(
        reader.broker.pulls
    )
    assert reader.broker.waiting_max == 1


async def test_pieces_are_large_and_hold_whole_records(reader: Reader) -> None:
    reader.broker.put(0, 6_000, body=b"x" * 1_000)
    pieces = await reader.read(wanted(0, 6_000))
    assert offsets_in(pieces) == list(range(6_000))
    assert all(len(piece) >= reading.PIECE_BYTES for piece in pieces[:-1])


async def test_queues_of_a_static_topic_keep_their_numbers_when_they_move(reader: Reader) -> None:
    """Records have those of the broker that stored them."""
    reader.broker.put(7, 90)
    reader.broker.renumbers = (7, 1_000)
    pieces = await reader.read(wanted(1_010, 1_090))
    found = [message for piece in pieces for message in decode_messages(piece)]
    assert [message.queue_offset for message in found] == list(range(1_010, 1_090))
    assert {message.queue_id for message in found} == {0}
    assert {message.body for message in found} == {b"x"}


# --- bounds ----------------------------------------------------------------------------------


async def test_only_so_many_pulls_are_under_way(reader: Reader) -> None:
    reader.broker.put(0, 5_000)
    reading_ = asyncio.create_task(reader.offsets(wanted(0, 5_000)))
    await reader.broker.until(lambda: len(reader.broker.pulls) >= 1)
    reader.broker.holds = True
    await reader.broker.until(lambda: len(reader.broker.held) >= reading.PULLS_MAX)
    await asyncio.sleep(0)
    assert reader.broker.waiting_max == reading.PULLS_MAX
    reader.broker.let_go()
    assert await reading_ == list(range(5_000))


async def test_fewer_large_answers_are_under_way(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way is bounded by bytes, too."""
    monkeypatch.setattr(reading, "UNDER_WAY_BYTES", 450_000)
    reader.broker.put(0, 60, body=b"x" * 100_000)
    reader.broker.limit = 1
    reading_ = asyncio.create_task(reader.offsets(wanted(0, 60)))
    await reader.broker.until(lambda: len(reader.broker.pulls) >= 2)
    reader.broker.holds = True
    await reader.broker.until(lambda: len(reader.broker.held) >= 4)
    await reader.connection.max_offset(reader.broker.address, queue_of(KEY))
    assert reader.broker.waiting_max == 4
    reader.broker.let_go()
    assert await reading_ == list(range(60))


async def test_pulling_stops_while_nobody_takes_what_came(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(reading, "AHEAD_BYTES", 20_000)
    reader.broker.put(0, 5_000)
    pieces: reading.Pieces = queue.SimpleQueue()
    pump = RangePump(reader.connection, wanted(0, 5_000), pieces)
    task = pump.start()
    async with asyncio.timeout(60):
        while not pump.is_full:
            await asyncio.sleep(0.01)
    reader.broker.put(1, 1_000)
    other = Read(QueueRange(KEY._replace(queue_id=1), 0, 100), Filter(), 10, 5.0, "g")
    assert await reader.offsets(other) == list(range(100))  # time enough for more
    assert 2 <= pieces.qsize() <= 4

    found = []
    async with asyncio.timeout(60):
        while not task.done() or not pieces.empty():
            if pieces.empty():
                await asyncio.sleep(0.01)
                continue
            piece = pieces.get_nowait()
            if isinstance(piece, bytes):
                pump.taken(len(piece))
                found.append(piece)
    assert offsets_in(found) == list(range(5_000))


async def test_the_deadline_does_not_count_the_wait_for_a_slow_reader(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has responded all the time: its next refusal is the first one."""
    monkeypatch.setattr(reading, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(reading, "AHEAD_BYTES", 20_000)
    monkeypatch.setattr(reading, "PULLS_MAX", 1)  # so that the next response is a refusal
    reader.broker.put(0, 2_000)
    pieces: reading.Pieces = queue.SimpleQueue()
    clock = ManualClock()
    pump = RangePump(reader.connection, wanted(0, 2_000), pieces, clock)
    task = pump.start()
    async with asyncio.timeout(60):
        while not pump.is_full:
            await asyncio.sleep(0.01)
    clock.advance(60_000)
    reader.broker.script_of[PULL] = deque([BUSY, BUSY])

    found = []
    async with asyncio.timeout(60):
        while not task.done() or not pieces.empty():
            if pieces.empty():
                await asyncio.sleep(0.01)
            elif isinstance(piece := pieces.get_nowait(), bytes):
                pump.taken(len(piece))
                found.append(piece)
            elif piece is not None:
                raise piece
    assert offsets_in(found) == list(range(2_000))


async def test_a_reader_that_is_given_up_leaves_nothing_under_way(reader: Reader) -> None:
    reader.broker.put(0, 1_000)
    reader.broker.holds = True
    pieces: reading.Pieces = queue.SimpleQueue()
    task = RangePump(reader.connection, wanted(0, 1_000), pieces).start()
    await reader.broker.until(lambda: len(reader.broker.held) == 1)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert not [each for each in asyncio.all_tasks() if "BrokerCalls" in repr(each)]
    with pytest.raises(SourceError, match=r"topic t, queue 0 of a.*closed"):
        drained(pieces)


# --- what is not there -----------------------------------------------------------------------


async def test_what_has_expired_is_an_error_that_says_what_there_is(reader: Reader) -> None:
    reader.broker.put(0, 100)
    reader.broker.expire(0, 40)
    with pytest.raises(DataLossError, match=r"topic t, queue 0 of a.*10 to 90.*40 to 100"):
        await reader.read(wanted(10, 90))


async def test_what_came_before_the_loss_is_handed_over(reader: Reader) -> None:
    reader.broker.put(0, 100)
    reader.broker.limit = 20
    reader.broker.holds = True
    pieces: reading.Pieces = queue.SimpleQueue()
    task = RangePump(reader.connection, wanted(0, 100), pieces).start()
    await reader.broker.until(lambda: len(reader.broker.held) == 1)
    reader.broker.let_go()
    reader.broker.expire(0, 60)
    await asyncio.wait([task])
    first = pieces.get_nowait()
    assert isinstance(first, bytes)
    assert offsets_in([first]) == list(range(20))
    assert isinstance(pieces.get_nowait(), DataLossError)


@pytest.mark.parametrize("deleted", [50, 1_500], ids=["behind a success", "behind a retry"])
async def test_what_the_log_has_lost_is_expired_before_the_queue_says_so(
    reader: Reader, deleted: int
) -> None:
    """A broker deletes files of its log first, and corrects where queues begin later."""
    reader.broker.put(0, 2_000)
    reader.broker.delete_log(0, deleted)
    reading_ = asyncio.create_task(reader.offsets(wanted(0, 2_000)))
    await reader.broker.until(lambda: len(reader.broker.pulls) > 4)
    reader.broker.expire(0, deleted)
    with pytest.raises(DataLossError, match=f"0 on have expired.*{deleted} to 2000"):
        await reading_


async def test_what_the_log_loses_while_it_is_read_is_expired(reader: Reader) -> None:
    reader.broker.put(0, 2_000)
    reader.broker.holds = True
    reading_ = asyncio.create_task(reader.offsets(wanted(0, 2_000)))
    await reader.broker.until(lambda: len(reader.broker.held) == 1)
    reader.broker.let_go()
    reader.broker.delete_log(0, 500)
    asked = len(reader.broker.pulls)
    await reader.broker.until(lambda: len(reader.broker.pulls) > asked + 4)
    reader.broker.expire(0, 500)
    with pytest.raises(DataLossError, match=r"from 32 on have expired.*500 to 2000"):
        await reading_


@pytest.mark.usefixtures("virtual_time")
async def test_a_queue_that_never_says_so_is_an_error_in_time(reader: Reader) -> None:
    reader.broker.put(0, 100)
    reader.broker.delete_log(0, 60)
    lost = r"0 to 100: nothing came at 0 .*from 0 on were deleted, although the queue begins at 0"
    with pytest.raises(RangeError, match=lost):
        await reader.read(wanted(0, 100, timeout_s=0.3))


async def test_a_file_of_the_queue_that_is_missing_is_not_passed_over(reader: Reader) -> None:
    """The broker says that it found nothing, and where its next file begins."""
    reader.broker.put(0, 100)
    header = PullMessageResponse(
        suggest_which_broker_id=0, next_begin_offset=80, min_offset=0, max_offset=100
    )
    null = Response(ResponseCode.PULL_NOT_FOUND, "OFFSET_FOUND_NULL", header=header)
    reader.broker.script_of[PULL] = deque([null])
    assert await reader.offsets(wanted(0, 100)) == list(range(100))


@pytest.mark.usefixtures("virtual_time")
async def test_what_a_filtered_pull_says_was_deleted_is_not_passed_over(reader: Reader) -> None:
    """Of other offsets without a message, the filter is the reason."""
    reader.broker.put(0, 2_000)
    reader.broker.delete_log(0, 1_500)
    paid = wanted(0, 2_000, filter=Filter.tags("paid"), timeout_s=0.3)
    assert await reader.offsets(paid) == list(range(1_500, 2_000))
    reader.broker.empty = "MESSAGE_WAS_REMOVING"
    with pytest.raises(RangeError, match="from 0 on were deleted"):
        await reader.read(paid)


@pytest.mark.usefixtures("virtual_time")
async def test_a_queue_that_does_not_reach_the_end_is_an_error_in_time(reader: Reader) -> None:
    reader.broker.put(0, 50)
    with pytest.raises(RangeError, match=r"10 to 90.*at 50 .*0 to 50"):
        await reader.read(wanted(10, 90, timeout_s=0.3))


@pytest.mark.usefixtures("virtual_time")
async def test_a_queue_that_was_made_anew_is_an_error_in_time(reader: Reader) -> None:
    """Its offsets begin at 0 again."""
    reader.broker.put(0, 5)
    with pytest.raises(RangeError, match=r"10 to 90.*0 to 5"):
        await reader.read(wanted(10, 90, timeout_s=0.3))


async def test_what_comes_late_is_waited_for(reader: Reader) -> None:
    """A broker that has just restarted may not have found its newest messages yet."""
    reader.broker.put(0, 50)
    reading_ = asyncio.create_task(reader.offsets(wanted(0, 60)))
    await reader.broker.until(lambda: any(pull.queue_offset == 50 for pull in reader.broker.pulls))
    reader.broker.put(0, 10)
    assert await reading_ == list(range(60))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ResponseCode.TOPIC_NOT_EXIST, GoneError),
        (ResponseCode.NO_PERMISSION, GoneError),
        (ResponseCode.INVALID_PARAMETER, GoneError),
        (ResponseCode.SYSTEM_ERROR, SourceError),
    ],
)
async def test_a_refusal_is_an_error_at_once(
    reader: Reader, code: int, kind: type[SourceError]
) -> None:
    reader.broker.put(0, 50)
    reader.broker.script_of[PULL] = deque([Response(code, "no way")])
    with pytest.raises(SourceError, match=r"topic t, queue 0 of a, offsets 0 to 50.*no way") as met:
        await reader.read(wanted(0, 50))
    assert type(met.value) is kind
    assert len(reader.broker.pulls) == 0


async def test_an_unknown_group_is_told_how_to_name_one(reader: Reader) -> None:
    refusal = Response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")
    reader.broker.script_of[PULL] = deque([refusal])
    with pytest.raises(SourceError, match=r"no group g and creates none.*rocketmq\.group"):
        await reader.read(wanted(0, 50))


async def test_a_queue_that_is_gone_for_good_is_an_error_at_once(reader: Reader) -> None:
    reader.names.serve({"a": {0: reader.broker.address}}, queues=0)
    with pytest.raises(GoneError, match="topic t, queue 0 of a"):
        await reader.read(wanted(0, 50))


# --- who is away, and comes back -------------------------------------------------------------


@pytest.mark.parametrize("fault", [Act.HANG_UP, BUSY], ids=["cut", "busy"])
async def test_a_fault_in_the_middle_loses_and_doubles_nothing(
    reader: Reader, fault: Response | Act
) -> None:
    reader.broker.put(0, 500)
    reader.broker.limit = 10
    good: deque[Response | Act | None] = deque()
    reader.broker.script_of[PULL] = good
    reader.broker.holds = True
    reading_ = asyncio.create_task(reader.offsets(wanted(0, 500)))
    await reader.broker.until(lambda: len(reader.broker.held) == 1)
    reader.broker.let_go()
    good.append(fault)
    assert await reading_ == list(range(500))
    assert not good, "the fault did not happen"


async def test_the_time_counts_from_the_last_message_that_came(reader: Reader) -> None:
    """A large range may take as long as it takes."""
    reader.broker.put(0, 120)
    reader.broker.limit = 10
    reader.broker.script_of[PULL] = deque([None, *[BUSY, None] * 11])
    reading_ = reader.offsets(wanted(0, 120, timeout_s=6 * reading.PAUSE_S))
    assert await reading_ == list(range(120))
    assert len(reader.broker.script_of[PULL]) <= 2


async def test_a_broker_that_restarts_is_waited_for(reader: Reader) -> None:
    reader.broker.put(0, 500)
    reader.broker.holds = True
    reading_ = asyncio.create_task(reader.offsets(wanted(0, 500)))
    await reader.broker.until(lambda: len(reader.broker.held) == 1)
    reader.names.serve({})  # a name server forgets a broker whose connection is lost
    reader.names.routes.clear()
    await reader.broker.stop()
    await reader.names.until(lambda: reader.names.asked.count("t") > 1)

    later = QueueBroker()
    later.copy_from(reader.broker)
    await later.start()
    try:
        reader.names.serve({"a": {0: later.address}})
        assert await reading_ == list(range(500))
    finally:
        await later.stop()


async def test_a_reader_goes_on_while_no_name_server_answers(reader: Reader) -> None:
    reader.broker.put(0, 500)
    reader.broker.holds = True
    reading_ = asyncio.create_task(reader.offsets(wanted(0, 500)))
    await reader.broker.until(lambda: len(reader.broker.held) == 1)
    await reader.names.stop()
    reader.broker.let_go()
    assert await reading_ == list(range(500))


async def test_a_connection_over_which_nothing_comes_is_given_up(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is in between may have forgotten it."""
    monkeypatch.setattr(reading, "PULL_S", 1.1)
    reader.broker.put(0, 500)
    reader.broker.holds = True
    reading_ = asyncio.create_task(reader.offsets(wanted(0, 500)))
    await reader.broker.until(lambda: len(reader.broker.held) == 1)
    reader.broker.let_go()
    silent: deque[Response | Act | None] = deque([Act.STAY_SILENT] * reading.PULLS_MAX)
    reader.broker.script_of[PULL] = silent
    used = reader.connection._core.remoting.ready(reader.broker.address)
    await reader.broker.until(lambda: len(silent) < reading.PULLS_MAX)
    silent.extend([None] * 20)
    assert await reading_ == list(range(500))
    assert used is not None
    assert used.closed


async def test_pulls_are_signed_where_there_is_an_account() -> None:
    broker = QueueBroker()
    broker.put(0, 500)
    async with running(broker, access_key="who", secret_key="hush") as reader:
        assert await reader.offsets(wanted(0, 500)) == list(range(500))
    assert broker.signed == len(broker.pulls) > 10


async def test_a_broker_that_stays_away_is_an_error_in_time(reader: Reader) -> None:
    await reader.broker.stop()
    with pytest.raises(UnreachableError, match=r"topic t, queue 0 of a, offsets 0 to 50"):
        await reader.read(wanted(0, 50, timeout_s=0.3))


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("registered", [True, False])
async def test_a_task_of_a_stream_waits_for_a_broker_longer_than_for_messages(
    reader: Reader, registered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    reader.broker.put(0, 50)
    back = QueueBroker("a")
    back.copy_from(reader.broker)
    await reader.broker.stop()
    if not registered:
        reader.names.serve({})
    pieces: reading.Pieces = queue.SimpleQueue()
    waiting = wanted(0, 60, timeout_s=5.0, away_s=math.inf)
    task = RangePump(reader.connection, waiting, pieces, LoopClock()).start()
    await asyncio.sleep(30)
    assert not task.done()
    assert pieces.get_nowait() == b"", "the thread that reads hears that the pump waits"
    assert pieces.empty(), "and no more until it has taken that"
    await back.start()
    reader.names.serve({"a": {0: back.address}})
    await asyncio.wait([task])
    await back.stop()
    with pytest.raises(RangeError, match=r"nothing came at 50 for 5 s: .*0 to 50"):
        drained(pieces)
    assert caplog.text.count("the broker is away, the task waits") == 1
    assert caplog.text.count("the broker is there again") == 1


@pytest.mark.usefixtures("virtual_time")
async def test_a_task_of_a_stream_waits_as_long_as_its_option_says(reader: Reader) -> None:
    await reader.broker.stop()
    with pytest.raises(UnreachableError, match=r"nothing came at 0 for 20 s, last attempt"):
        await reader.read(wanted(0, 60, timeout_s=5.0, away_s=20.0), LoopClock())


async def test_a_broker_that_is_not_registered_may_come_back(reader: Reader) -> None:
    """So it is no loss of data, whatever was said about losses."""
    reader.names.serve({})
    with pytest.raises(UnreachableError, match="a is not registered"):
        await reader.read(wanted(0, 50, timeout_s=0.3))


async def test_a_copy_serves_when_the_master_does_not_answer() -> None:
    master, copy = QueueBroker(), QueueBroker()
    master.put(0, 300)
    copy.copy_from(master)
    async with running(master, copy) as reader:
        await master.stop()
        assert await reader.offsets(wanted(0, 300)) == list(range(300))
    assert copy.pulls


async def test_a_copy_that_lags_behind_is_not_the_last_word() -> None:
    """The master is asked for the rest."""
    master, copy = QueueBroker(), QueueBroker()
    master.put(0, 3_000)
    copy.put(0, 100)
    master.suggests = 1
    async with running(master, copy) as reader:
        assert await reader.offsets(wanted(0, 3_000)) == list(range(3_000))
    assert len(copy.pulls) < 40, "it was asked again and again"


async def test_the_replica_that_a_broker_suggests_is_read_from() -> None:
    """A master sends readers of old messages to a copy, to have its memory for new ones."""
    master, copy = QueueBroker(), QueueBroker()
    master.put(0, 1_000)
    copy.copy_from(master)
    master.suggests = copy.suggests = 1
    async with running(master, copy) as reader:
        assert await reader.offsets(wanted(0, 1_000)) == list(range(1_000))
    assert 1 <= len(master.pulls) <= 2
    assert len(copy.pulls) > 20


async def test_what_has_expired_on_a_copy_alone_is_read_from_the_master() -> None:
    """A replica may keep messages for a shorter time."""
    master, copy = QueueBroker(), QueueBroker()
    master.put(0, 300)
    copy.put(0, 300)
    copy.expire(0, 200)
    master.suggests = copy.suggests = 1
    async with running(master, copy) as reader:
        assert await reader.offsets(wanted(0, 300)) == list(range(300))
    assert copy.pulls


@pytest.mark.parametrize("deleted", [50, 1_500], ids=["behind a success", "behind a retry"])
async def test_what_the_log_of_a_copy_alone_has_lost_is_read_from_the_master(deleted: int) -> None:
    master, copy = QueueBroker(), QueueBroker()
    master.put(0, 2_000)
    copy.put(0, 2_000)
    copy.delete_log(0, deleted)
    master.suggests = copy.suggests = 1
    async with running(master, copy) as reader:
        assert await reader.offsets(wanted(0, 2_000)) == list(range(2_000))
    assert copy.pulls


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ],
)
async def test_what_a_copy_alone_refuses_is_read_from_the_master(code: ResponseCode) -> None:
    master, copy = QueueBroker(), QueueBroker()
    master.put(0, 300)
    copy.copy_from(master)
    master.suggests = copy.suggests = 1
    copy.script_of[PULL] = deque([Response(code, "not here")] * 20)
    async with running(master, copy) as reader:
        assert await reader.offsets(wanted(0, 300)) == list(range(300))
    assert len(copy.script_of[PULL]) < 20


async def test_what_has_expired_on_a_copy_is_no_loss_while_the_master_is_silent() -> None:
    master, copy = QueueBroker(), QueueBroker()
    copy.put(0, 300)
    copy.expire(0, 200)
    async with running(master, copy) as reader:
        await master.stop()
        with pytest.raises(UnreachableError, match=r"topic t, queue 0 of a, offsets 0 to 300"):
            await reader.read(wanted(0, 300, timeout_s=0.5))


async def test_what_has_expired_on_the_master_is_lost_whatever_a_copy_says() -> None:
    master, copy = QueueBroker(), QueueBroker()
    for broker, least in ((master, 100), (copy, 200)):
        broker.put(0, 300)
        broker.expire(0, least)
    async with running(master, copy) as reader:
        with pytest.raises(DataLossError, match="holds offsets 100 to 300"):
            await reader.read(wanted(0, 300))


# --- all at once -----------------------------------------------------------------------------


class MoodyBroker(QueueBroker):
    """Gives as much at once as it likes, refuses now and then, and hangs up."""

    def __init__(self, mood: random.Random) -> None:
        super().__init__()
        self._mood = mood
        self.faults = 0

    def _pull(self, request: Request) -> Response | None:
        self.limit = self._mood.choice((1, 3, 32, 32, 32, 32))
        fault = self._mood.random()
        if fault < 0.04:
            self.faults += 1
            return BUSY
        if fault < 0.06:
            self.faults += 1
            request.connection.abort()
            return None
        return super()._pull(request)


@pytest.mark.parametrize("seed", range(rounds(test=10, long=200)))
async def test_whatever_happens_a_range_comes_whole_and_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "RELEARN", 7)
    monkeypatch.setattr(reading, "PAUSE_S", 0.001)
    mood = random.Random(seed)
    broker = MoodyBroker(mood)
    for _ in range(mood.randrange(1, 8)):
        broker.put(0, mood.randrange(1, 150), gap=mood.choice((0, 0, 1, 40)))
    end = broker.max[0]
    start = mood.randrange(broker.min[0], end)
    async with running(broker) as reader:
        found = await reader.offsets(wanted(start, end))
    assert found == [offset for offset in sorted(broker.records[0]) if offset >= start]
