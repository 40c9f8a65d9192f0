"""Streams of log files: what each batch takes, and what failures, losses and changes do to them."""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from cometmq.spark.compat import ReadAllAvailable, ReadMaxBytes
from cometmq.spark.errors import BadRecordError, DataLossError, SourceError
from cometmq.spark.offsets import without_start
from cometmq.spark.schema import log_columns
from cometmq.spark.sources.log.stream import LogStreamReader
from support.checks.manual_clock import ManualClock
from support.spark.log_files import FilledStore, log_options
from support.spark.stream_protocol import Checkpoint, Row, SinkError, StreamProtocol
from support.stores.small_stores import LOG_FILE_BYTES

COLUMNS = log_columns(properties=False, validate=False)


class Query:
    """A query with its options and its checkpoint; `start` starts it as a new process would."""

    def __init__(self, path: Path | None, **options: Any):
        given = {"startingOffsets": "earliest"} | options
        self.options = log_options(path, **{k: v for k, v in given.items() if v is not None})
        self.checkpoint = Checkpoint()

    def reader(self) -> LogStreamReader:
        return LogStreamReader(self.options, COLUMNS)

    def start(self, **how: Any) -> StreamProtocol:
        return StreamProtocol(self.reader, self.checkpoint, **how)

    def once(self, **how: Any) -> list[Row]:
        """Start, read all there is, end."""
        return self.start(**how).drain()

    def ends(self) -> list[Any]:
        """Where batches end; the first one also says where it begins."""
        return [without_start(json.loads(end)) for end in self.checkpoint.ends]


@pytest.fixture
def filled(tmp_path: Path) -> FilledStore:
    store = FilledStore(tmp_path / "store")
    store.fill(100)
    yield store
    store.close()


def rows(start: int, stop: int) -> list[Row]:
    """What the messages of these numbers are, in two queues."""
    return sorted(("orders", number % 2, number // 2) for number in range(start, stop))


def later() -> ManualClock:
    """A clock a minute after the one that stores of tests begin with."""
    clock = ManualClock()
    clock.advance(60_000)
    return clock


def ends_of(*offsets: int) -> list[Any]:
    return [{"log": {"phy": offset}} for offset in offsets]


# --- batches -------------------------------------------------------------------------------------


def test_a_query_from_the_earliest_reads_everything_once(filled: FilledStore) -> None:
    query = Query(filled.root)
    assert sorted(query.once()) == rows(0, 100)
    assert query.once() == []
    filled.fill(7)
    assert sorted(query.once()) == rows(100, 107)
    assert query.ends() == ends_of(filled.offsets[100], filled.end)


@pytest.mark.parametrize(("planned", "restarted"), [("earliest", "latest"), ("latest", "earliest")])
def test_a_failed_first_batch_is_repeated_from_its_own_start_whatever_the_option_says_now(
    filled: FilledStore, planned: str, restarted: str
) -> None:
    query = Query(filled.root, startingOffsets=planned)
    with pytest.raises(SinkError):
        query.start().trigger(fails=True)
    filled.fill(10)
    query.options = log_options(filled.root, startingOffsets=restarted)

    assert sorted(query.once()) == rows(0 if planned == "earliest" else 100, 110)


def test_no_news_is_the_same_text(filled: FilledStore) -> None:
    run = Query(filled.root).start()
    assert run.trigger()
    assert run.trigger() is None
    assert run.reader.reportLatestOffset() == ends_of(filled.end)[0]


def test_a_growing_log_is_followed_over_its_files(filled: FilledStore) -> None:
    run = Query(filled.root).start()
    met = run.drain()
    for count in (1, 80, 3, 90):
        filled.fill(count)
        met += run.drain()
    assert sorted(met) == rows(0, 274)


def test_bytes_bound_a_batch_which_ends_with_a_whole_record(filled: FilledStore) -> None:
    query = Query(filled.root, maxBytesPerTrigger=3000, maxPartitionBytes=1000)
    run = query.start()
    assert isinstance(run.reader.getDefaultReadLimit(), ReadMaxBytes)
    assert sorted(run.drain()) == rows(0, 100)
    ends = [end["log"]["phy"] for end in query.ends()]
    assert len(ends) >= filled.end // 3201
    assert set(ends[:-1]) <= {*filled.offsets, *blanks(filled)}
    sizes = [high - low for low, high in zip([0, *ends], ends, strict=False)]
    assert max(sizes) <= 3000 + filled.records[0].size_bytes + 8


def blanks(filled: FilledStore) -> set[int]:
    """Where fillers begin."""
    pairs = zip(filled.records, filled.offsets[1:], strict=False)
    return {r.log_offset + r.size_bytes for r, at in pairs if r.log_offset + r.size_bytes != at}


def test_bytes_smaller_than_a_record_still_go_on(filled: FilledStore) -> None:
    run = Query(filled.root, maxBytesPerTrigger=1).start()
    met = [run.trigger() for _ in range(5)]
    assert [row for batch in met for row in batch or ()] == [
        ("orders", n % 2, n // 2) for n in range(5)
    ]


def test_trigger_once_takes_all_there_is(filled: FilledStore) -> None:
    run = Query(filled.root, maxBytesPerTrigger=1000).start(limit=ReadAllAvailable())
    assert sorted(run.trigger() or ()) == rows(0, 100)


def test_available_now_stops_at_what_there_was(filled: FilledStore) -> None:
    query = Query(filled.root, maxBytesPerTrigger=5000)
    run = query.start(available_now=True)
    filled.fill(50)
    assert sorted(run.drain()) == rows(0, 100)
    assert sorted(query.once(available_now=True)) == rows(100, 150)


def test_tasks_share_a_batch(filled: FilledStore) -> None:
    run = Query(filled.root, minPartitions=6).start()
    assert sorted(run.trigger() or ()) == rows(0, 100)
    assert 6 <= run.partitions <= 8


def test_several_logs_share_a_batch_in_proportion(filled: FilledStore, tmp_path: Path) -> None:
    other = FilledStore(tmp_path / "other")
    other.fill(10)
    paths = json.dumps({"b-2": str(other.root), "b-1": str(filled.root)})
    query = Query(None, brokers=paths, maxBytesPerTrigger=2300)
    run = query.start()
    assert run.trigger()
    first = query.ends()[0]
    assert list(first) == ["b-1", "b-2"]
    assert first["b-1"]["phy"] > first["b-2"]["phy"] > 0
    assert len(run.drain()) + 0 > 90
    assert query.ends()[-1] == {"b-1": {"phy": filled.end}, "b-2": {"phy": other.end}}
    other.close()


def test_a_log_without_segments_is_waited_for(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    run = Query(root).start()
    run.drain()
    store = FilledStore(root)
    store.fill(4)
    assert sorted(run.drain()) == rows(0, 4)
    store.close()


def test_a_broker_that_is_added_is_read_from_its_begin(filled: FilledStore, tmp_path: Path) -> None:
    query = Query(None, brokers=json.dumps({"b-1": str(filled.root)}))
    assert sorted(query.once()) == rows(0, 100)
    other = FilledStore(tmp_path / "other")
    other.fill(6)
    both = json.dumps({"b-1": str(filled.root), "b-2": str(other.root)})
    query.options = Query(None, brokers=both).options
    assert sorted(query.once()) == rows(0, 6)
    query.options = Query(None, brokers=json.dumps({"b-2": str(other.root)})).options
    with pytest.raises(DataLossError, match="log of b-1: the query has read it"):
        query.once()
    other.close()


# --- where to begin ------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [None, "latest", '{"log": -1}'])
def test_rows_between_a_failed_first_batch_and_the_next_start_are_read(
    filled: FilledStore, start: str | None
) -> None:
    """Spark asks for the first start again, which would be a later one by then."""
    query = Query(filled.root, startingOffsets=start)
    with pytest.raises(SinkError):
        query.start().trigger(fails=True)
    filled.fill(9)
    assert sorted(query.once()) == rows(100, 109)


def test_a_failed_first_batch_from_the_earliest_is_read_again(filled: FilledStore) -> None:
    query = Query(filled.root)
    with pytest.raises(SinkError):
        query.start().trigger(fails=True)
    filled.fill(9)
    assert sorted(query.once()) == rows(0, 109)
    assert query.ends() == ends_of(filled.offsets[100], filled.end)


def test_a_place_in_the_log_is_a_start(filled: FilledStore) -> None:
    query = Query(filled.root, startingOffsets=json.dumps({"log": filled.offsets[40] + 1}))
    assert sorted(query.once()) == rows(41, 100)


def test_a_time_is_a_start_even_one_to_come(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FilledStore(tmp_path / "store", clock=clock)
    store.fill(20)
    start_ms = clock.now_ms() + 1000
    query = Query(store.root, startingOffsets=None, startingTimestamp=start_ms)
    assert query.once() == []
    assert query.ends() == [], "no batch, and so no place that would leave out what comes"
    clock.advance(500)
    store.fill(5)
    assert query.once(available_now=True) == []
    clock.advance(1000)
    store.fill(5)
    with pytest.raises(SinkError):
        query.start().trigger(fails=True)
    store.fill(2)
    assert sorted(query.once()) == rows(25, 32)
    store.close()


# --- failures and losses -------------------------------------------------------------------------


def test_a_batch_that_fails_is_read_again_as_it_was(filled: FilledStore) -> None:
    query = Query(filled.root, maxBytesPerTrigger=4000)
    run = query.start()
    first = run.trigger()
    with pytest.raises(SinkError):
        run.trigger(fails=True)
    filled.fill(40)
    again = query.start()
    second = again.trigger()
    assert query.ends()[1]["log"]["phy"] < filled.offsets[100], "as written down, no further"
    assert sorted([*(first or ()), *(second or ()), *again.drain()]) == rows(0, 140)


@pytest.mark.parametrize("fail", [True, False])
def test_segments_deleted_under_a_stream_are_a_loss(filled: FilledStore, fail: bool) -> None:
    query = Query(filled.root, maxBytesPerTrigger=3000, failOnDataLoss=fail)
    run = query.start()
    met = run.trigger() or []
    filled.segment(0).unlink()
    if fail:
        with pytest.raises(DataLossError, match=rf"to {LOG_FILE_BYTES} are in no file"):
            run.drain()
        return
    met += run.drain()
    kept = [number for number, at in enumerate(filled.offsets) if at >= LOG_FILE_BYTES]
    late = rows(kept[0], 100)
    assert sorted(met)[-len(late) :] == late or set(late) <= set(met)
    assert len(met) < 100


@pytest.mark.parametrize("fail", [True, False])
def test_a_log_made_anew_is_a_loss(filled: FilledStore, tmp_path: Path, fail: bool) -> None:
    query = Query(filled.root, failOnDataLoss=fail)
    assert len(query.once()) == 100
    filled.close()
    shutil.rmtree(filled.root)
    fresh = FilledStore(filled.root, clock=later())
    fresh.fill(3)
    run = query.start()
    if fail:
        with pytest.raises(DataLossError, match=r"log of log: it was read up to byte .* and ends"):
            run.drain()
    else:
        assert sorted(run.drain()) == rows(0, 3)
        fresh.fill(2)
        assert sorted(run.drain()) == rows(3, 5)
    fresh.close()


def test_a_log_cut_and_written_anew_beyond_is_a_loss(filled: FilledStore) -> None:
    """A broker that lost its last records in a crash writes others over their places."""
    query = Query(filled.root)
    assert len(query.once()) == 100
    filled.close()
    shutil.rmtree(filled.root)
    fresh = FilledStore(filled.root, clock=later())
    fresh.fill(150, body_bytes=111)
    with pytest.raises(DataLossError, match=r"read up to byte .*: it was created again"):
        query.once()
    query.checkpoint.ends = [
        json.dumps(without_start(json.loads(each))) for each in query.checkpoint.ends
    ]
    with pytest.raises(DataLossError, match="was truncated and rewritten"):
        query.once()
    fresh.close()


def cut(filled: FilledStore, left: int) -> FilledStore:
    """Lose all records behind these, as a broker that is killed before a flush, and open again."""
    end = filled.offsets[left]
    filled.close()
    for segment in sorted((filled.root / "commitlog").iterdir()):
        position = max(end - int(segment.name), 0)
        if position < segment.stat().st_size:
            with segment.open("r+b") as file:
                file.seek(position)
                file.write(bytes(segment.stat().st_size - position))
    for name in ("consumequeue", "checkpoint", "index"):
        path = filled.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    (filled.root / "abort").touch()
    again = FilledStore(filled.root, clock=filled.settings["clock"])
    again.records = filled.records[:left]
    return again


@pytest.fixture
def timed(tmp_path: Path) -> FilledStore:
    """A store whose records are stored a millisecond apart, but for the last two."""
    clock = ManualClock()
    store = FilledStore(tmp_path / "store", clock=clock)
    for _ in range(100):
        store.fill(1)
        clock.advance(1)
    yield store
    store.close()


@pytest.mark.parametrize("sent", [0, 1, 40])
def test_one_lost_record_makes_no_duplicates(
    timed: FilledStore, caplog: pytest.LogCaptureFixture, sent: int
) -> None:
    """The log goes on at the place of the lost record, with records of the same size."""
    query = Query(timed.root, failOnDataLoss=False)
    assert len(query.once()) == 100
    again = cut(timed, 99)
    again.fill(sent)

    assert sorted(query.once()) == rows(99, 99 + sent)
    again.fill(2)
    assert sorted(query.once()) == rows(99 + sent, 101 + sent)
    assert caplog.text.count("it lost its last records") == 1
    again.close()


def test_a_lost_record_fails_the_query_also_if_another_one_has_its_place(
    timed: FilledStore,
) -> None:
    query = Query(timed.root)
    assert len(query.once()) == 100
    again = cut(timed, 99)
    with pytest.raises(DataLossError, match=r"log of log: .* it lost its last records"):
        query.once()
    again.fill(5)
    with pytest.raises(DataLossError, match=r"log of log: .* it lost its last records"):
        query.once()
    again.close()


def test_a_batch_is_repeated_with_the_records_that_are_left_of_it(timed: FilledStore) -> None:
    query = Query(timed.root, failOnDataLoss=False)
    with pytest.raises(SinkError):
        query.start().trigger(fails=True)
    again = cut(timed, 90)
    again.fill(20)
    run = query.start()

    assert sorted(run.trigger() or ()) == rows(0, 90)
    assert sorted(run.drain()) == rows(90, 110)
    again.close()


@pytest.mark.parametrize("round_number", range(8))
def test_every_record_that_is_left_is_read_once_whatever_is_lost(
    tmp_path: Path, round_number: int
) -> None:
    """Each record has a store time of its own, by which the test knows it."""
    chance = random.Random(round_number)
    clock = ManualClock()
    store = FilledStore(tmp_path / "store", clock=clock)
    times: list[int] = []

    def grow(count: int) -> None:
        for _ in range(count):
            clock.advance(1)
            times.append(clock.now_ms())
            store.fill(1, body_bytes=chance.choice([50, 50, 300]))

    grow(5)
    given = {"maxBytesPerTrigger": chance.choice([1, 900, 1 << 30]), "failOnDataLoss": False}
    query = Query(store.root, **given, logEnd=chance.choice(["auto", "log"]))
    met: list[int] = []

    def take(found: list[Row] | None) -> None:
        met.extend(times[2 * offset + queue_id] for _, queue_id, offset in found or ())

    run = query.start()
    for _ in range(25):
        what = chance.choice(["grow", "grow", "start", "fail", "read", "read", "cut", "again"])
        if what == "grow":
            grow(chance.randrange(20))
        elif what == "start":
            run = query.start()
        elif what == "read":
            take(run.trigger())
        elif what == "fail":
            try:
                assert run.trigger(fails=True) is None
            except SinkError:
                run = query.start()
        elif what == "cut" and len(times) > 6:
            left = len(times) - chance.randrange(1, 6)
            store = cut(store, left)
            del times[left:]
            run = query.start()
        elif what == "again" and chance.random() < 0.3:
            store.close()
            shutil.rmtree(store.root)
            store = FilledStore(store.root, clock=clock)
            times.clear()
            grow(chance.randrange(1, 12))
            run = query.start()
    query.options = dataclasses.replace(query.options, max_bytes_per_trigger=None)
    take(query.once())
    assert len(met) == len(set(met)), "a record was read twice"
    assert set(times) <= set(met)
    store.close()


def test_a_log_created_again_is_read_once_from_its_begin_however_long_it_is(
    timed: FilledStore,
) -> None:
    query = Query(timed.root, failOnDataLoss=False, maxBytesPerTrigger=5000)
    assert len(query.once()) == 100
    timed.close()
    shutil.rmtree(timed.root)
    fresh = FilledStore(timed.root, clock=timed.settings["clock"])
    fresh.fill(150)

    assert sorted(query.once()) == rows(0, 150)
    fresh.close()


def test_a_checkpoint_of_an_older_version_has_store_times_with_its_next_batch(
    timed: FilledStore,
) -> None:
    query = Query(timed.root)
    query.once()
    query.checkpoint.ends = [json.dumps(each) for each in query.ends()]
    assert query.start().trigger() is None
    timed.fill(1)
    query.once()
    assert list(json.loads(query.checkpoint.ends[-1])) == ["$stored", "log"]


def test_queues_that_lag_behind_are_no_loss(filled: FilledStore) -> None:
    """A broker that starts after a crash dispatches its last records again."""
    query = Query(filled.root)
    running = query.start()
    assert len(running.drain()) == 100
    saved = {}
    for path in (filled.root / "consumequeue").rglob("0" * 20):
        saved[path] = path.read_bytes()
        path.write_bytes(saved[path][:200] + bytes(len(saved[path]) - 200))
    run = query.start()
    assert run.drain() == []
    assert running.drain() == []
    assert running.reader.reportLatestOffset() != ends_of(filled.end)[0], "it sees the lag"
    for path, data in saved.items():
        path.write_bytes(data)
    filled.fill(3)
    assert sorted(run.drain()) == rows(100, 103)


def test_damage_fails_a_stream_and_costs_no_row_once_it_is_permitted(filled: FilledStore) -> None:
    filled.write(filled.offsets[50], b"\xff" * 20)
    query = Query(filled.root)
    with pytest.raises(BadRecordError):
        query.once()
    assert query.checkpoint.done == 0


def test_a_path_that_vanishes_is_an_error_and_no_empty_log(filled: FilledStore) -> None:
    run = Query(filled.root).start()
    assert run.drain()
    shutil.move(filled.root, filled.root.with_name("away"))
    with pytest.raises(SourceError):
        run.trigger()
    shutil.move(filled.root.with_name("away"), filled.root)


@pytest.mark.parametrize("round_number", range(5))
def test_every_record_arrives_once_whatever_happens_between(
    tmp_path: Path, round_number: int
) -> None:
    """Failures of the sink, new starts, limits, growth and lagging queues, in random order."""
    chance = random.Random(round_number)
    store = FilledStore(tmp_path / "store", consume_queue_ext_enabled=chance.random() < 0.3)
    store.fill(chance.randrange(1, 60))
    query = Query(
        store.root,
        maxBytesPerTrigger=chance.choice([1, 700, 5000, 1 << 30]),
        maxPartitionBytes=chance.choice([300, 4000, 1 << 30]),
        logEnd=chance.choice(["auto", "log"]),
    )
    run, met = query.start(), []
    for _ in range(40):
        what = chance.choice(["grow", "start", "fail", "read", "read", "now"])
        if what == "grow":
            store.fill(chance.randrange(30), body_bytes=chance.randrange(300))
        elif what in ("start", "now"):
            run = query.start(available_now=what == "now")
        elif what == "fail":
            try:
                assert run.trigger(fails=True) is None
            except SinkError:
                run = query.start()
        else:
            met += run.trigger() or []
    query.options = dataclasses.replace(query.options, max_bytes_per_trigger=None)
    met += query.once()
    assert sorted(met) == rows(0, len(store.records))
    store.close()


# --- objects -------------------------------------------------------------------------------------


def test_parts_are_read_by_another_object(filled: FilledStore) -> None:
    reader = pickle.loads(pickle.dumps(Query(filled.root).reader()))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    other = Query(filled.root).reader()
    found = sum(batch.num_rows for part in parts for batch in other.read(part))
    assert found == 100
    assert list(other.read(None)) == []
    reader.commit(end)
    reader.stop()


def test_filters_hold_in_streams(filled: FilledStore) -> None:
    filled.fill(4, topic="rare", properties={"TAGS": "a"})
    query = Query(filled.root, subscribe="rare,none", filter_tags="a || b")
    assert len(query.once()) == 4
    assert query.ends() == ends_of(filled.end)
