"""The archive has every record of the log once, wherever a run was killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.errors import ConfigError
from cometmq.spark.errors import BadRecordError, DataLossError, PlaceError
from cometmq.spark.logs import ByteRange
from cometmq.spark.pipelines import Runs
from cometmq.spark.pipelines.archive import pipeline as archive_module
from cometmq.spark.pipelines.archive.manifest import Entry, Manifest, covered, encoded, file_name
from cometmq.spark.pipelines.archive.parquet import Form, Part, write_parts
from cometmq.spark.pipelines.archive.pipeline import ArchiveSettings, archive, archived_to
from cometmq.spark.pipelines.archive.tables import IcebergArchive
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.store import MessageStore
from cometmq.system.clock import ManualClock
from support.stores import opened, put

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
        Entry.from_json(b'{"format": 1}', "x.json")


def test_archives_need_to_know_from_where_and_to_where() -> None:
    with pytest.raises(ConfigError, match="expected store and to"):
        archive(None, ArchiveSettings())


def test_a_table_of_no_rows_has_no_parts() -> None:
    from cometmq.spark.pipelines.archive.parquet import parts_of
    from cometmq.spark.schema import arrow_schema

    empty = pa.Table.from_batches([], schema=arrow_schema(archive_module.COLUMNS))
    assert parts_of(empty) == ([], [])


PROPERTIES = st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=4)


@given(st.lists(PROPERTIES, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_properties_move_with_their_rows(properties: list[Any], chance: Random) -> None:
    from cometmq.spark.pipelines.archive.parquet import parts_of
    from cometmq.spark.schema import arrow_schema

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
