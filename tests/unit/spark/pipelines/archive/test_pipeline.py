"""The archive has every record of the log once, wherever a run was killed."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.errors import ConfigError
from cometmq.spark.errors import BadRecordError, DataLossError, PlaceError, SourceError
from cometmq.spark.logs import ByteRange
from cometmq.spark.pipelines import Runs
from cometmq.spark.pipelines.archive import pipeline as archive_module
from cometmq.spark.pipelines.archive import verified_to
from cometmq.spark.pipelines.archive.manifest import Entry, Manifest, covered, encoded, file_name
from cometmq.spark.pipelines.archive.parquet import (
    _HAS_FILTERS,
    Form,
    Part,
    _ends,
    _taken,
    parts_of,
    write_parts,
)
from cometmq.spark.pipelines.archive.pipeline import ArchiveSettings, archive, archived_to
from cometmq.spark.pipelines.archive.tables import DeltaArchive, IcebergArchive, table_of
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.pipelines.running.runs import RunError
from cometmq.spark.schema import arrow_schema
from cometmq.store import MessageStore
from support.checks.manual_clock import ManualClock
from support.stores.small_stores import opened, put

DAY_MS = 86_400_000
TOPICS = ("orders", "%RETRY%g", "a.b|c")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[MessageStore]:
    made = opened(tmp_path / "store", clock=clock)
    yield made
    made.close()


def fill(store: MessageStore, clock: ManualClock, count: int, start: int = 0) -> None:
    """Put messages of three topics and two queues, over two days."""
    for number in range(start, start + count):
        if number == count // 2:
            clock.advance(DAY_MS)
        clock.advance(1)
        put(
            store,
            b"body %d" % number,
            topic=TOPICS[number % 3],
            queue_id=number % 2,
            properties={"TAGS": f"t{number % 4}", "UNIQ_KEY": f"{number:032X}", "own": "é"},
        )
    store.flush()


@pytest.fixture
def settings(tmp_path: Path) -> ArchiveSettings:
    return ArchiveSettings(
        store=str(tmp_path / "store"),
        broker_name="broker-a",
        to=str(tmp_path / "archive"),
        range_bytes=4096,
    )


def manifest_of(settings: ArchiveSettings) -> Manifest:
    return Manifest(open_folder(settings.to))


def rows_of(settings: ArchiveSettings) -> list[dict[str, Any]]:
    """The rows of the files that the manifest names."""
    root = Path(settings.to)
    tables = [
        pq.ParquetFile(root / file.name).read()
        for entry in manifest_of(settings).entries()
        for file in entry.files
    ]
    return [row for table in tables for row in table.to_pylist()]


def bodies_of(settings: ArchiveSettings) -> list[bytes]:
    return sorted(row["body"] for row in rows_of(settings))


def bodies(count: int) -> list[bytes]:
    return sorted(b"body %d" % number for number in range(count))


def test_every_record_is_in_a_file_of_its_topic_and_day(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings
) -> None:
    fill(store, clock, 200)
    result = archive(None, settings)
    assert bodies_of(settings) == bodies(200)
    assert result.run.counts["rows"] == 200
    assert result.run.counts["ranges"] > 3
    for entry in manifest_of(settings).entries():
        for file in entry.files:
            met = pq.ParquetFile(Path(settings.to) / file.name).read()
            assert file.name == file_name(file.topic, file.date, entry.range)
            assert set(met["topic"].to_pylist()) == {file.topic}
            days = {str(when.date()) for when in met["store_timestamp"].to_pylist()}
            assert days == {file.date}
            places = list(
                zip(met["queue_id"].to_pylist(), met["queue_offset"].to_pylist(), strict=True)
            )
            assert places == sorted(places)
            assert file.rows == met.num_rows


def test_a_row_says_all_that_the_record_says(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings
) -> None:
    fill(store, clock, 3)
    archive(None, settings)
    (row,) = [row for row in rows_of(settings) if row["body"] == b"body 1"]
    assert row["topic"] == "%RETRY%g"
    assert (row["broker_name"], row["queue_id"], row["queue_offset"]) == ("broker-a", 1, 0)
    assert (row["tags"], row["msg_id"]) == ("t1", f"{1:032X}")
    assert dict(row["properties"])["own"] == "é"
    assert row["born_host"] == "192.168.1.2:54321"


def test_the_manifest_says_what_there_is_of_each_queue(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings
) -> None:
    fill(store, clock, 120)
    archive(None, settings)
    queues = [queue for entry in manifest_of(settings).entries() for queue in entry.queues]
    for topic in TOPICS:
        for queue_id in (0, 1):
            mine = [q for q in queues if (q.topic, q.queue_id) == (topic, queue_id)]
            assert (mine[0].min_offset, mine[-1].max_offset) == (0, 19)
            assert sum(queue.rows for queue in mine) == 20


def test_a_later_run_takes_what_came_since(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings
) -> None:
    fill(store, clock, 50)
    first = archive(None, settings)
    assert archive(None, settings).run.counts["rows"] == 0
    fill(store, clock, 70, start=50)
    second = archive(None, settings)
    assert (first.run.counts["rows"], second.run.counts["rows"]) == (50, 70)
    assert bodies_of(settings) == bodies(120)
    entries = manifest_of(settings).entries()
    assert archived_to(manifest_of(settings), "broker-a", 0) == store.written_to
    assert covered(entries, 0) == store.written_to


class KilledError(BaseException):
    """Ends a run where it stands, as a kill does."""


def archive_killed(settings: ArchiveSettings) -> None:
    """A run that ends in the middle."""
    with pytest.raises(KilledError):
        archive(None, settings)


def killed_after(monkeypatch: pytest.MonkeyPatch, calls: int, target: str) -> None:
    """Let a function run so many times, and then end the run before or in it."""
    original: Callable[..., Any] = getattr(archive_module, target)
    counted = [0]

    def counting(*args: Any) -> Any:
        counted[0] += 1
        if counted[0] > calls:
            raise KilledError
        return original(*args)

    monkeypatch.setattr(archive_module, target, counting)


@pytest.mark.parametrize("calls", [0, 1, 5, 6])
def test_a_killed_run_is_gone_on_with_by_the_next(
    store: MessageStore,
    clock: ManualClock,
    settings: ArchiveSettings,
    monkeypatch: pytest.MonkeyPatch,
    calls: int,
) -> None:
    """Also if the log has grown meanwhile, which would cut other ranges."""
    fill(store, clock, 200)
    with monkeypatch.context() as patched:
        killed_after(patched, calls, "write_parts")
        archive_killed(settings)
    fill(store, clock, 60, start=200)
    archive(None, settings)
    assert bodies_of(settings) == bodies(260)
    assert len(rows_of(settings)) == 260


def test_files_that_no_entry_names_are_written_again(
    store: MessageStore,
    clock: ManualClock,
    settings: ArchiveSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between files and entry, a killed run leaves files; they are replaced, not added to."""
    fill(store, clock, 100)
    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "add", _kill)
        archive_killed(settings)
    left = {path.name for path in Path(settings.to).rglob("*.parquet")}
    assert left
    archive(None, settings)
    assert bodies_of(settings) == bodies(100)
    named = {file.name for entry in manifest_of(settings).entries() for file in entry.files}
    there = {
        path.relative_to(settings.to).as_posix() for path in Path(settings.to).rglob("*.parquet")
    }
    assert there == named
    assert left <= {Path(name).name for name in named}


def _kill(*_: object) -> None:
    raise KilledError


def test_a_run_resumes_by_name_and_says_what_it_did(
    store: MessageStore,
    clock: ManualClock,
    settings: ArchiveSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(store, clock, 200)
    with monkeypatch.context() as patched:
        killed_after(patched, 4, "write_parts")
        archive_killed(settings)
    result = archive(None, replace(settings, resume="latest"))
    (record,) = Runs(Path(settings.to) / "_runs").all()
    assert record == result.run
    assert record.status == "done"
    with pytest.raises(ConfigError, match="no unfinished run"):
        archive(None, replace(settings, resume="latest"))


def test_a_dry_run_writes_nothing(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings
) -> None:
    fill(store, clock, 100)
    result = archive(None, settings, dry_run=True)
    assert result.run.counts["log_bytes"] == store.written_to
    assert not Path(settings.to).exists()


def test_few_ranges_are_cut_smaller_for_every_core_to_have_some(
    store: MessageStore,
    clock: ManualClock,
    settings: ArchiveSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(store, clock, 300)
    whole = replace(settings, range_bytes=1 << 20)
    files = archive(None, whole, dry_run=True).run.counts["ranges"]
    assert files == -(-store.written_to // store.settings.commit_log_file_bytes)
    monkeypatch.setattr(archive_module, "_RANGE_BYTES_MIN", 1 << 12)
    monkeypatch.setattr(archive_module, "cores_of", lambda spark: files)
    few = archive_module._RANGES_PER_CORE * files
    assert few <= archive(None, whole, dry_run=True).run.counts["ranges"] <= few + files
    archive(None, whole)
    assert bodies_of(settings) == bodies(300)


def test_only_chosen_topics_are_archived(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings
) -> None:
    fill(store, clock, 90)
    chosen = replace(settings, topics=("orders",))
    archive(None, chosen)
    assert {row["topic"] for row in rows_of(settings)} == {"orders"}
    assert len(rows_of(settings)) == 30
    with pytest.raises(ConfigError, match="topics=\\['orders'\\], met \\[\\]"):
        archive(None, settings)


def test_a_log_that_lost_what_was_never_archived_is_an_error(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings
) -> None:
    fill(store, clock, 50)
    archive(None, settings)
    fill(store, clock, 400, start=50)
    for path in sorted((Path(settings.store) / "commitlog").iterdir())[:2]:
        path.unlink()
    with pytest.raises(DataLossError, match="in no file"):
        archive(None, settings)
    archive(None, replace(settings, fail_on_data_loss=False))
    assert archived_to(manifest_of(settings), "broker-a", 0) < store.written_to


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def tabled(request: pytest.FixtureRequest, settings: ArchiveSettings) -> ArchiveSettings:
    """An archive without a table, and with each of them."""
    if request.param != "parquet":
        pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[request.param])
    return replace(settings, table=request.param)


def check_once(settings: ArchiveSettings, count: int) -> None:
    """Every record is in the manifest's files and in the table once, and no range overlaps."""
    assert bodies_of(settings) == bodies(count)
    entries = manifest_of(settings).entries()
    assert all(one.end <= two.start for one, two in itertools.pairwise(entries))
    if settings.table == "delta":
        import deltalake

        rows = deltalake.DeltaTable(settings.to).to_pyarrow_table()
    elif settings.table == "iceberg":
        rows = IcebergArchive(settings.to, "").table().scan().to_arrow()
    else:
        return
    assert sorted(rows["body"].to_pylist()) == bodies(count)


def test_of_two_runs_that_start_together_one_archives(
    store: MessageStore,
    clock: ManualClock,
    tabled: ArchiveSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their ranges overlap, as they cut the log in pieces of other sizes."""
    fill(store, clock, 200)
    planned = threading.Barrier(2)
    original = archive_module._due

    def due(*args: Any) -> Any:
        found = original(*args)
        planned.wait(60)
        return found

    def run(range_bytes: int) -> int | str:
        try:
            return archive(None, replace(tabled, range_bytes=range_bytes)).run.counts["rows"]
        except RunError as problem:
            return str(problem)

    monkeypatch.setattr(archive_module, "_due", due)
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(run, (4096, 7000)))
    assert 200 in ended
    (failed,) = [each for each in ended if each != 200]
    assert "another run started at the same time" in str(failed)
    check_once(tabled, 200)
    statuses = {run.status for run in Runs(Path(tabled.to) / "_runs").all()}
    assert statuses == {"done", "failed"}


class Interrupted:
    """Progress that does something when the first range is archived."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act: Callable[[], object] | None = act

    def start(self, total: int, unit: str, what: str) -> None:
        pass

    def step(self, n: int = 1) -> None:
        act, self._act = self._act, None
        if act is not None:
            act()

    def end(self) -> None:
        pass


def test_a_run_that_is_overtaken_fails_and_archives_nothing_twice(
    store: MessageStore, clock: ManualClock, tabled: ArchiveSettings
) -> None:
    """Another run takes its ranges over, as if it had been killed."""
    fill(store, clock, 200)
    other = replace(tabled, range_bytes=7000)

    def overtake() -> None:
        fill(store, clock, 30, start=200)
        archive(None, other)

    with pytest.raises(RunError, match=r"log of broker-a.*another run archives it: met its entry"):
        archive(None, tabled, progress=Interrupted(overtake))
    check_once(tabled, 230)
    assert archive(None, tabled).run.counts["rows"] == 0


def entries_for(settings: ArchiveSettings, *ends: int) -> list[Entry]:
    """An entry from 0 to each end, with a file of its own."""
    folder = open_folder(settings.to)
    schema = arrow_schema(archive_module.COLUMNS)
    row = {"topic": "t", "queue_id": 0, "queue_offset": 0, "store_timestamp": 0, "msg_id": "m"}
    row |= {"body": b"x", "body_crc": 1, "properties": [], "flag": 0, "sys_flag": 0}
    found = []
    for end in ends:
        part = ByteRange("b", 0, end)
        parts, queues = parts_of(pa.Table.from_pylist([row], schema=schema))
        files = tuple(write_parts(folder, part, parts, Form()))
        found.append(Entry("b", 0, end, 1, files, tuple(queues)))
    return found


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_takes_no_range_that_overlaps_what_it_has(
    settings: ArchiveSettings, kind: str
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    table = table_of(kind, open_folder(settings.to), "")
    short, long = entries_for(settings, 100, 150)
    table.commit("b", [short])
    table.commit("b", [short])
    with pytest.raises(RunError, match="goes up to byte 100, within log of b, bytes 0 to 150"):
        table.commit("b", [long])
    assert table.committed("b") == 100


def test_a_delta_table_refuses_a_commit_that_was_overtaken(settings: ArchiveSettings) -> None:
    pytest.importorskip("deltalake")
    short, long = entries_for(settings, 100, 150)

    class Overtaken(DeltaArchive):
        def _opened(self) -> Any:
            table = super()._opened()
            DeltaArchive(settings.to).commit("b", [short])
            return table

    with pytest.raises(RunError, match="another run committed at the same time"):
        Overtaken(settings.to).commit("b", [long])
    assert DeltaArchive(settings.to).committed("b") == 100


def test_an_iceberg_table_refuses_a_commit_that_was_overtaken(settings: ArchiveSettings) -> None:
    """Also one that was made before, by a version that repeated such commits."""
    pytest.importorskip("pyiceberg")
    short, long = entries_for(settings, 100, 150)
    table = IcebergArchive(settings.to, "").table()
    with table.transaction() as transaction:
        transaction.remove_properties("commit.retry.num-retries")

    class Overtaken(IcebergArchive):
        def table(self) -> Any:
            table = super().table()
            IcebergArchive(settings.to, "").commit("b", [short])
            return table

    with pytest.raises(RunError, match="another run committed at the same time"):
        Overtaken(settings.to, "").commit("b", [long])
    rows = IcebergArchive(settings.to, "").table().scan().to_arrow()
    assert rows.num_rows == 1


def made_anew(settings: ArchiveSettings, clock: ManualClock, count: int) -> None:
    """Delete the store and make it again, with so many messages."""
    shutil.rmtree(settings.store)
    clock.advance(1_000)
    made = opened(Path(settings.store), clock=clock)
    fill(made, clock, count)
    made.close()


@pytest.fixture
def archived(store: MessageStore, clock: ManualClock, settings: ArchiveSettings) -> ArchiveSettings:
    """An archive of 200 messages, all of them compared with the log."""
    fill(store, clock, 200)
    archive(None, settings)
    manifest = manifest_of(settings)
    for entry in manifest.entries():
        manifest.mark(entry, 1)
    store.close()
    return settings


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
@pytest.mark.parametrize("count", [1, 20, 199, 200, 600])
def test_a_store_made_anew_is_not_the_archived_log(
    archived: ArchiveSettings, clock: ManualClock, count: int, fail_on_data_loss: bool
) -> None:
    """Be it shorter than what was archived, as long, or longer by now."""
    end = manifest_of(archived).entries()[-1].end
    made_anew(archived, clock, count)
    what = "is not the archived one: " + (
        rf"the manifest has bytes 0 to {end}, the log holds bytes 0 to \d+"
        if count < 200
        else r"in bytes \d+ to \d+, the manifest has \d+ rows .* the log holds \d+ rows"
    )
    again = replace(archived, fail_on_data_loss=fail_on_data_loss)
    for dry_run in (True, False):
        with pytest.raises(PlaceError, match=what):
            archive(None, again, dry_run=dry_run)
    assert len(rows_of(archived)) == 200
    assert [run.status for run in Runs(Path(archived.to) / "_runs").all()] == ["done"]


@pytest.fixture
def rowless(store: MessageStore, clock: ManualClock, settings: ArchiveSettings) -> ArchiveSettings:
    """An archive of topics that the log does not have; all ranges compared with it."""
    chosen = replace(settings, topics=("none",))
    fill(store, clock, 200)
    archive(None, chosen)
    manifest = manifest_of(chosen)
    for entry in manifest.entries():
        assert entry.rows == 0
        manifest.mark(entry, 1)
    store.close()
    return chosen


def test_a_store_made_anew_is_not_the_archived_log_whose_ranges_have_no_rows(
    rowless: ArchiveSettings, clock: ManualClock
) -> None:
    ask = partial(verified_to, rowless.to, rowless.store, broker_name="broker-a")
    last = manifest_of(rowless).entries()[-1]
    assert ask() == last.end
    assert archive(None, rowless).run.counts["log_bytes"] == 0
    made_anew(rowless, clock, 600)
    what = (
        f"log of broker-a at {rowless.store} is not the archived one: at byte {last.start}, the"
        r" manifest has a record of \d+ bytes, stored at \d+ ms, .* the log holds"
    )
    with pytest.raises(PlaceError, match=what):
        ask()
    with pytest.raises(PlaceError, match=what):
        archive(None, rowless)


def test_records_after_the_last_archived_row_tell_a_log_too(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings, tmp_path: Path
) -> None:
    """As of a store that was restored from a copy and has other records since."""
    put(store, b"x", topic="orders")
    store.flush()
    store.close()
    copy = shutil.copytree(settings.store, tmp_path / "copy")
    orders = replace(settings, topics=("orders",))
    archive(None, orders)
    for at_ms in (1, 2):
        clock.advance(at_ms)
        made = opened(Path(settings.store), clock=clock)
        for _ in range(50):
            put(made, b"x", topic="other")
        made.flush()
        made.close()
        if at_ms == 1:
            assert archive(None, orders).run.counts["rows"] == 0
            shutil.rmtree(settings.store)
            shutil.copytree(copy, settings.store)
    with pytest.raises(PlaceError, match=r"the manifest has a record .* the log holds a record"):
        archive(None, orders)


def test_an_entry_of_an_older_version_does_not_tell_which_record_is_first(
    rowless: ArchiveSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """It is read all the same; the log of the run says that nothing could be compared."""
    for path in (Path(rowless.to) / "_manifest" / "broker-a").glob("0*.json"):
        document = json.loads(path.read_text())
        del document["first_record"]
        path.write_text(json.dumps(document))
    last = manifest_of(rowless).entries()[-1]
    assert last.first_record is None
    with caplog.at_level(logging.WARNING):
        assert verified_to(rowless.to, rowless.store, broker_name="broker-a") == last.end
    assert "cannot be compared" in caplog.text


def test_a_log_that_begins_before_the_archived_one_is_refused(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings, tmp_path: Path
) -> None:
    """As a store made anew that is longer than the archived log, which had lost its begin."""
    fill(store, clock, 300)
    first = sorted((Path(settings.store) / "commitlog").iterdir())[0]
    kept = first.rename(tmp_path / "kept")
    archive(None, settings)
    kept.rename(first)
    begin = manifest_of(settings).entries()[0].start
    with pytest.raises(PlaceError, match=f"has bytes {begin} to .* the log holds bytes 0 to"):
        archive(None, settings)


def test_a_store_made_anew_while_a_run_was_killed_is_refused(
    store: MessageStore,
    clock: ManualClock,
    settings: ArchiveSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing may be archived by a plan for another log."""
    fill(store, clock, 200)
    with monkeypatch.context() as patched:
        killed_after(patched, 0, "write_parts")
        archive_killed(settings)
    store.close()
    made_anew(settings, clock, 20)
    with pytest.raises(PlaceError, match="the manifest has bytes 0 to"):
        archive(None, settings)


def test_what_is_verified_is_said_of_the_archived_log_alone(
    archived: ArchiveSettings, clock: ManualClock
) -> None:
    """Operators delete the log by it."""
    ask = partial(verified_to, archived.to, archived.store, broker_name="broker-a")
    entries = manifest_of(archived).entries()
    assert ask() == entries[-1].end
    for count in (1, 20, 600):
        made_anew(archived, clock, count)
        with pytest.raises(PlaceError, match="is not the archived one"):
            ask()


def test_only_marked_ranges_that_the_log_begins_with_count_as_verified(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings
) -> None:
    fill(store, clock, 300)
    archive(None, settings)
    manifest = manifest_of(settings)
    entries = manifest.entries()
    ask = partial(verified_to, settings.to, settings.store, broker_name="broker-a")
    assert ask() == 0
    for entry in entries[:-1]:
        manifest.mark(entry, 1)
    assert ask() == entries[-1].start
    first, second, *_ = sorted((Path(settings.store) / "commitlog").iterdir())
    first.unlink()
    assert ask() == entries[-1].start
    assert int(second.name) > 0
    assert verified_to(settings.to, settings.store, broker_name="broker-b") == int(second.name)


def test_a_log_whose_queues_lag_behind_is_still_the_archived_one(
    clock: ManualClock, settings: ArchiveSettings
) -> None:
    """Archived as closed, it goes beyond the last unit, for no queue leads to half messages."""
    made = opened(Path(settings.store), clock=clock)
    fill(made, clock, 10)
    put(made, b"half", topic="half", sys_flag=4)
    made.flush()
    archive(None, replace(settings, closed=True))
    assert archive(None, settings).run.counts["rows"] == 0
    made.close()


def test_equal_logs_have_equal_checksums_however_they_are_cut(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings, tmp_path: Path
) -> None:
    fill(store, clock, 150)
    one = archive(None, settings)
    two = archive(None, replace(settings, to=str(tmp_path / "other"), range_bytes=9000))
    assert one.run.checksum == two.run.checksum
    assert one.run.counts["ranges"] != two.run.counts["ranges"]


def test_names_of_topics_stay_inside_the_archive() -> None:
    part = ByteRange("../b", 1, 2)
    name = file_name("%RETRY%..", "2026-01-01", part)
    assert name.startswith("topic=%25RETRY%25../date=2026-01-01/..%2Fb-")
    assert encoded("..") == "%2E%2E"
    assert encoded("a/b") == "a%2Fb"


def test_a_damaged_entry_is_named() -> None:
    with pytest.raises(PlaceError, match=r"x\.json"):
        Entry.from_document({"format": 1}, "x.json")


def test_archives_need_to_know_from_where_and_to_where() -> None:
    with pytest.raises(ConfigError, match="expected store and to"):
        archive(None, ArchiveSettings())


def test_a_table_of_no_rows_has_no_parts() -> None:
    empty = pa.Table.from_batches([], schema=arrow_schema(archive_module.COLUMNS))
    assert parts_of(empty) == ([], [])


PROPERTIES = st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=4)


@given(st.lists(PROPERTIES, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_properties_move_with_their_rows(properties: list[Any], chance: Random) -> None:
    queues = [chance.randrange(4) for _ in properties]
    facts = {"topic": "t", "store_timestamp": 0, "body_crc": 0, "msg_id": "m"}
    rows = [
        {**facts, "queue_id": queue, "queue_offset": number, "properties": pairs}
        for number, (queue, pairs) in enumerate(zip(queues, properties, strict=True))
    ]
    schema = arrow_schema(archive_module.COLUMNS)
    table = pa.Table.from_batches(
        [pa.RecordBatch.from_pylist(each, schema=schema) for each in (rows[:7], rows[7:])]
    )
    (part,), _ = parts_of(table)
    part.rows.validate(full=True)
    expected = sorted(rows, key=lambda row: (row["queue_id"], row["queue_offset"]))
    assert part.rows["properties"].to_pylist() == [row["properties"] for row in expected]


def test_properties_in_several_chunks_all_move() -> None:
    rows = [{"properties": [(name, "v")]} for name in "abc"]
    schema = pa.schema(
        [field for field in arrow_schema(archive_module.COLUMNS) if field.name == "properties"]
    )
    table = pa.Table.from_batches(
        [pa.RecordBatch.from_pylist([row], schema=schema) for row in rows]
    )
    moved = _taken(table, np.array([2, 0, 1]))
    moved.validate(full=True)
    assert moved.to_pylist() == [rows[2], rows[0], rows[1]]


def test_more_text_than_a_column_holds_is_an_error() -> None:
    """Its ends are 32-bit numbers, which would become negative."""
    assert _ends(np.array([1 << 30, (1 << 30) - 1])).tolist() == [0, 1 << 30, (1 << 31) - 1]
    with pytest.raises(
        SourceError, match=r"met 2147483648, expected at most 2147483647.*range_bytes"
    ):
        _ends(np.array([1 << 30, 1 << 30], np.int32))


@pytest.mark.skipif(not _HAS_FILTERS, reason="this PyArrow writes no filters")
def test_files_have_a_filter_for_ids(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings
) -> None:
    """Larger by it, for a reader to skip row groups that cannot have an id."""
    fill(store, clock, 300)
    archive(None, replace(settings, range_bytes=1 << 20))
    file = manifest_of(settings).entries()[0].files[0]
    table = pq.ParquetFile(Path(settings.to) / file.name).read()
    folder = open_folder(Path(settings.to) / "plain")
    part = Part(file.topic, file.date, table)
    (plain,) = write_parts(folder, ByteRange("b", 0, 1), [part], Form(bloom=False))
    (filtered,) = write_parts(folder, ByteRange("b", 1, 2), [part], Form())
    assert filtered.bytes > plain.bytes
    assert filtered.ids_crc == plain.ids_crc


def test_a_closed_log_is_archived_to_its_end(clock: ManualClock, settings: ArchiveSettings) -> None:
    """Half messages behind the last unit, to which no queue leads, included."""
    made = opened(Path(settings.store), clock=clock)
    fill(made, clock, 10)
    put(made, b"half", topic="half", sys_flag=4)
    made.flush()
    archive(None, settings)
    assert len(rows_of(settings)) == 10
    archive(None, replace(settings, closed=True))
    assert len(rows_of(settings)) == 11
    made.close()
    other = replace(settings, to=settings.to + "-2")
    archive(None, other)
    assert len(rows_of(other)) == 11


def test_damage_in_the_log_ends_the_run_and_keeps_what_was_archived(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings
) -> None:
    fill(store, clock, 300)
    logs = (Path(settings.store) / "commitlog").iterdir()
    (damaged,) = [path for path in logs if b"body 250" in path.read_bytes()]
    position = damaged.read_bytes().index(b"body 250")
    with damaged.open("r+b") as file:
        file.seek(position)
        file.write(b"BODY")
    with pytest.raises(BadRecordError, match="checksum"):
        archive(None, settings)
    (record,) = Runs(Path(settings.to) / "_runs").all()
    assert record.status == "failed"
    assert "checksum" in record.reason
    assert 0 < len(rows_of(settings)) < 300


def test_two_logs_without_a_name_are_not_mixed_up(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings, tmp_path: Path
) -> None:
    """One would count as archived as far as the other one was."""
    fill(store, clock, 30)
    archive(None, replace(settings, broker_name=""))
    other = opened(tmp_path / "other", clock=clock)
    fill(other, clock, 90)
    with pytest.raises(ConfigError, match="store="):
        archive(None, replace(settings, broker_name="", store=str(tmp_path / "other")))
    other.close()


def test_an_archive_holds_several_brokers(
    store: MessageStore, clock: ManualClock, settings: ArchiveSettings, tmp_path: Path
) -> None:
    fill(store, clock, 30)
    archive(None, settings)
    other = opened(tmp_path / "other", clock=clock)
    fill(other, clock, 20)
    archive(None, replace(settings, broker_name="broker-b", store=str(tmp_path / "other")))
    other.close()
    assert bodies_of(settings) == sorted([*bodies(30), *bodies(20)])
    assert {row["broker_name"] for row in rows_of(settings)} == {"broker-a", "broker-b"}


def test_an_iceberg_table_in_object_storage_needs_a_catalog() -> None:
    pytest.importorskip("pyiceberg")
    with pytest.raises(ConfigError, match="needs catalog"):
        IcebergArchive("s3://bucket/archive", "")
