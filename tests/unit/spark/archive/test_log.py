"""The archive of a log has every record once, wherever a run was killed, in both formats."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from cometmq.model.errors import ConfigError
from cometmq.spark.archive import ArchiveLogSettings, archive_log, archived_to, read_archive, tables
from cometmq.spark.archive import log as archive_module
from cometmq.spark.archive.tables import DeltaTable, IcebergTable
from cometmq.spark.errors import BadRecordError, ConflictError, DataLossError, PlaceError
from cometmq.store import MessageStore
from support.checks.manual_clock import ManualClock
from support.spark.archives import (
    all_files,
    bodies_of,
    delta,
    files_of,
    iceberg,
    maintain,
    rewrite_iceberg,
    rows_of,
)
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
def settings(tmp_path: Path) -> ArchiveLogSettings:
    return ArchiveLogSettings(
        store=str(tmp_path / "store"),
        broker_name="broker-a",
        to=str(tmp_path / "archive"),
        range_bytes=8192,
    )


@pytest.fixture(params=["delta", "iceberg"])
def both(request: pytest.FixtureRequest, settings: ArchiveLogSettings) -> ArchiveLogSettings:
    """An archive in each format."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[request.param])
    return replace(settings, table=request.param)


def bodies(count: int) -> list[bytes]:
    return sorted(b"body %d" % number for number in range(count))


def end_of(settings: ArchiveLogSettings) -> int | None:
    return archived_to(settings, settings.broker_name)


def test_every_record_is_in_a_file_of_its_topic_and_day(
    store: MessageStore, clock: ManualClock, both: ArchiveLogSettings
) -> None:
    fill(store, clock, 200)
    result = archive_log(None, both)
    assert bodies_of(both) == bodies(200)
    files = files_of(both)
    assert (result.rows, result.files, result.lost) == (200, len(files), ())
    assert result.bytes == sum(path.stat().st_size for path in files)
    assert (result.start, result.end) == (0, store.written_to)
    assert end_of(both) == store.written_to
    for path in files:
        met = pq.ParquetFile(path).read()
        assert len(set(met["topic"].to_pylist())) == 1
        days = {f"date={when.date()}" for when in met["store_timestamp"].to_pylist()}
        assert days == {path.parent.name}
        places = list(
            zip(met["queue_id"].to_pylist(), met["queue_offset"].to_pylist(), strict=True)
        )
        assert places == sorted(places)


def test_a_row_has_all_of_the_record(
    store: MessageStore, clock: ManualClock, both: ArchiveLogSettings
) -> None:
    fill(store, clock, 3)
    archive_log(None, both)
    (row,) = [row for row in rows_of(both) if row["body"] == b"body 1"]
    assert row["topic"] == "%RETRY%g"
    assert (row["broker_name"], row["queue_id"], row["queue_offset"]) == ("broker-a", 1, 0)
    assert (row["tags"], row["msg_id"]) == ("t1", f"{1:032X}")
    assert dict(row["properties"])["own"] == "é"
    assert row["born_host"] == "192.168.1.2:54321"


def test_the_table_has_statistics_that_skip_files(
    store: MessageStore, clock: ManualClock, settings: ArchiveLogSettings
) -> None:
    fill(store, clock, 120)
    archive_log(None, settings)
    actions = delta(settings).get_add_actions(flatten=True)
    for row in actions.to_struct_array().to_pylist():
        met = pq.ParquetFile(Path(settings.to, row["path"])).read()
        assert row["num_records"] == met.num_rows
        assert row["partition.topic"] == met["topic"][0].as_py()
        for name in ("broker_name", "queue_id", "queue_offset", "phy_offset", "store_timestamp"):
            values = met[name].to_pylist()
            assert (row[f"min.{name}"], row[f"max.{name}"]) == (min(values), max(values))
            assert row[f"null_count.{name}"] == 0


def test_a_later_run_archives_what_came_since(
    store: MessageStore, clock: ManualClock, both: ArchiveLogSettings
) -> None:
    fill(store, clock, 50)
    first = archive_log(None, both)
    again = archive_log(None, both)
    assert (again.rows, again.start, again.end) == (0, first.end, first.end)
    fill(store, clock, 70, start=50)
    second = archive_log(None, both)
    assert (first.rows, second.rows, second.start) == (50, 70, first.end)
    assert bodies_of(both) == bodies(120)


class KilledError(BaseException):
    """Ends a run where it stands, as a kill does."""


def kill(*_: object, **__: object) -> None:
    raise KilledError


def killed_at(
    patched: pytest.MonkeyPatch, owner: Any, name: str, calls: int, *, after: bool = False
) -> None:
    """Let a function run that many times, and then end the run before or after it."""
    original: Callable[..., Any] = getattr(owner, name)
    counted = [0]

    def counting(*args: Any, **named: Any) -> Any:
        counted[0] += 1
        if counted[0] > calls and not after:
            raise KilledError
        met = original(*args, **named)
        if counted[0] > calls:
            raise KilledError
        return met

    patched.setattr(owner, name, counting)


KILLS = {
    "before any file": ("write_files", 0, False),
    "between two files": ("write_files", 5, True),
    "between the files and the commit": ("commit", 0, False),
    "after the commit": ("commit", 0, True),
    "in a later commit": ("commit", 1, False),
    "after a later commit": ("commit", 1, True),
}


@pytest.mark.parametrize("when", KILLS)
def test_a_killed_run_is_continued_by_the_next_with_another_codec(
    store: MessageStore,
    clock: ManualClock,
    both: ArchiveLogSettings,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    """The log has grown meanwhile, which cuts other ranges; files keep their sizes."""
    fill(store, clock, 200)
    name, calls, after = KILLS[when]
    owner: Any = archive_module if name == "write_files" else type(opened_table(both))
    with monkeypatch.context() as patched:
        killed_at(patched, owner, name, calls, after=after)
        with pytest.raises(KilledError):
            archive_log(None, replace(both, range_bytes=4096))
    sizes = {path: path.stat().st_size for path in all_files(both)}
    fill(store, clock, 60, start=200)
    archive_log(None, replace(both, codec="snappy"))
    assert bodies_of(both) == bodies(260)
    assert end_of(both) == store.written_to
    assert {path: path.stat().st_size for path in sizes} == sizes
    maintain(both)
    assert bodies_of(both) == bodies(260)
    assert all_files(both) == files_of(both)


def opened_table(settings: ArchiveLogSettings) -> tables.ArchiveTable:
    return tables.open_table(settings, create=True)


def test_the_table_may_be_maintained_at_any_time(
    store: MessageStore, clock: ManualClock, both: ArchiveLogSettings
) -> None:
    """Rewritten files, other codecs and expired versions change nothing for later runs."""
    fill(store, clock, 100)
    archive_log(None, both)
    for start in (100, 150):
        maintain(both)
        assert archive_log(None, both).rows == 0
        fill(store, clock, 50, start=start)
        assert archive_log(None, both).rows == 50
    maintain(both)
    assert bodies_of(both) == bodies(200)


def test_a_commit_meets_maintenance_and_is_repeated(
    store: MessageStore,
    clock: ManualClock,
    both: ArchiveLogSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(store, clock, 100)
    archive_log(None, both)
    fill(store, clock, 100, start=100)
    check, done = tables.ArchiveTable.check, [False]

    def maintained(*args: Any) -> None:
        check(*args)
        if not done[0]:
            done[0] = True
            maintain_files_only(both)

    monkeypatch.setattr(tables.ArchiveTable, "check", maintained)
    assert archive_log(None, both).rows == 100
    assert done == [True]
    assert bodies_of(both) == bodies(200)


def maintain_files_only(settings: ArchiveLogSettings) -> None:
    """Rewrite files and delete none: a run writes files that no commit names yet."""
    if settings.table == "delta":
        delta(settings).optimize.compact()
    else:
        rewrite_iceberg(iceberg(settings))


def test_of_two_runs_at_the_same_time_one_commits(
    store: MessageStore,
    clock: ManualClock,
    both: ArchiveLogSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have read the same end; their ranges overlap, as they cut other sizes."""
    fill(store, clock, 200)
    archive_log(None, replace(both, topics=("none",)))
    fill(store, clock, 100, start=200)
    planned = threading.Barrier(2)
    original = archive_module.plan

    def together(*args: Any, **named: Any) -> Any:
        found = original(*args, **named)
        planned.wait(60)
        return found

    def archive(range_bytes: int) -> int | str:
        try:
            return archive_log(None, replace(both, range_bytes=range_bytes)).rows
        except ConflictError as problem:
            return str(problem)

    monkeypatch.setattr(archive_module, "plan", together)
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(archive, (4096, 7000)))
    monkeypatch.undo()
    (failed,) = [each for each in ended if isinstance(each, str)]
    assert "another run has committed: met cometmq.archived.broker-a at" in failed
    archive_log(None, both)
    assert bodies_of(both) == sorted(b"body %d" % number for number in range(200, 300))
    assert end_of(both) == store.written_to


def test_a_commit_within_another_runs_commit_adds_nothing(
    store: MessageStore,
    clock: ManualClock,
    both: ArchiveLogSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other run commits after this one has checked what the table says."""
    fill(store, clock, 100)
    archive_log(None, replace(both, topics=("none",)))
    fill(store, clock, 100, start=100)
    check, done = tables.ArchiveTable.check, [False]

    def overtaken(*args: Any) -> None:
        check(*args)
        if not done[0]:
            done[0] = True
            archive_log(None, replace(both, range_bytes=7000))

    monkeypatch.setattr(tables.ArchiveTable, "check", overtaken)
    with pytest.raises(ConflictError, match="another run has committed"):
        archive_log(None, both)
    assert bodies_of(both) == sorted(b"body %d" % number for number in range(100, 200))


def test_a_value_alone_is_not_stored_over_another_runs(both: ArchiveLogSettings) -> None:
    """Also without rows a commit fails if another one came first."""
    one, two = opened_table(both), opened_table(both)
    one.commit([], "a", 10, None)
    with pytest.raises(ConflictError, match="met a at 10, expected None"):
        two.commit([], "a", 5, None)
    assert two.committed("a") == 10


def test_a_dry_run_writes_nothing(
    store: MessageStore, clock: ManualClock, settings: ArchiveLogSettings
) -> None:
    fill(store, clock, 100)
    with pytest.raises(PlaceError, match="met no Delta table"):
        archived_to(settings, "broker-a")
    result = archive_log(None, settings, dry_run=True)
    assert (result.rows, result.start, result.end) == (0, 0, store.written_to)
    assert not Path(settings.to).exists()


def test_few_ranges_are_cut_smaller_so_that_every_core_has_some(
    store: MessageStore,
    clock: ManualClock,
    settings: ArchiveLogSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(store, clock, 300)
    planned: list[int] = []
    original = archive_module.plan

    def noted(*args: Any, **named: Any) -> Any:
        found = original(*args, **named)
        planned.append(len(found))
        return found

    monkeypatch.setattr(archive_module, "plan", noted)
    archive_log(None, replace(settings, range_bytes=1 << 20))
    monkeypatch.setattr(archive_module, "_RANGE_BYTES_MIN", 1 << 12)
    monkeypatch.setattr(archive_module, "_cores", lambda spark: planned[0])
    other = replace(settings, range_bytes=1 << 20, to=settings.to + "-2")
    archive_log(None, other)
    few = archive_module._RANGES_PER_CORE * planned[0]
    assert planned[0] < few <= planned[1] <= few + planned[0]
    assert bodies_of(other) == bodies(300)


def test_only_chosen_topics_are_archived(
    store: MessageStore, clock: ManualClock, both: ArchiveLogSettings
) -> None:
    fill(store, clock, 90)
    archive_log(None, replace(both, topics=("orders",)))
    assert [row["topic"] for row in rows_of(both)] == ["orders"] * 30
    assert end_of(both) == store.written_to


def test_a_log_that_lost_what_was_never_archived_is_an_error(
    store: MessageStore,
    clock: ManualClock,
    both: ArchiveLogSettings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(store, clock, 50)
    first = archive_log(None, both)
    fill(store, clock, 400, start=50)
    gone = sorted((Path(both.store) / "commitlog").iterdir())[:2]
    for path in gone:
        path.unlink()
    with pytest.raises(DataLossError, match="were never archived and are in no file"):
        archive_log(None, both)
    assert end_of(both) == first.end
    with caplog.at_level(logging.WARNING):
        result = archive_log(None, replace(both, fail_on_data_loss=False))
    ((broker, start, end),) = result.lost
    assert (broker, start) == ("broker-a", first.end)
    assert end == 2 * store.settings.commit_log_file_bytes
    assert f"bytes {start} to {end}" in caplog.text
    assert (result.end, end_of(both)) == (store.written_to, store.written_to)
    assert archive_log(None, both).lost == ()


def made_anew(settings: ArchiveLogSettings, clock: ManualClock, count: int) -> None:
    """Delete the store and create it again, with that many messages."""
    shutil.rmtree(settings.store)
    clock.advance(1_000)
    made = opened(Path(settings.store), clock=clock)
    fill(made, clock, count)
    made.close()


@pytest.mark.parametrize(("count", "maintained"), [(20, False), (200, True), (400, False)])
def test_a_store_that_was_created_again_is_not_the_archived_log(
    store: MessageStore,
    clock: ManualClock,
    both: ArchiveLogSettings,
    count: int,
    maintained: bool,
) -> None:
    """It is shorter than the archive, as long, or longer by now."""
    fill(store, clock, 200)
    archive_log(None, both)
    store.close()
    if maintained:
        maintain(both)
    end = end_of(both)
    made_anew(both, clock, count)
    what = (
        rf"it is archived to byte {end}, the files hold 0 to \d+"
        if count < 200
        else r"the archive has offset \d+ of .*, stored at .*, the log holds "
    )
    again = replace(both, fail_on_data_loss=False)
    for dry_run in (True, False):
        with pytest.raises(PlaceError, match=rf"is not the one that .* has: {what}"):
            archive_log(None, again, dry_run=dry_run)
    assert bodies_of(both) == bodies(200)


def test_a_log_without_any_archived_row_is_compared_by_its_end(
    store: MessageStore,
    clock: ManualClock,
    settings: ArchiveLogSettings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All rows have expired in the log: that is said once, and the run goes on."""
    fill(store, clock, 50)
    archive_log(None, settings)
    fill(store, clock, 400, start=50)
    archive_log(None, replace(settings, topics=("none",)))
    for path in sorted((Path(settings.store) / "commitlog").iterdir())[:2]:
        path.unlink()
    with caplog.at_level(logging.WARNING):
        assert archive_log(None, settings).rows == 0
    assert "the log cannot be compared with the archive broker=broker-a" in caplog.text


def test_a_closed_log_is_archived_to_its_end(
    clock: ManualClock, settings: ArchiveLogSettings
) -> None:
    """Half messages at the end have no unit; a later run without `closed` continues."""
    made = opened(Path(settings.store), clock=clock)
    fill(made, clock, 10)
    put(made, b"half", topic="half", sys_flag=4)
    made.flush()
    archive_log(None, settings)
    assert len(rows_of(settings)) == 10
    archive_log(None, replace(settings, closed=True))
    assert len(rows_of(settings)) == 11
    assert archive_log(None, settings).rows == 0
    made.close()
    other = replace(settings, to=settings.to + "-2")
    archive_log(None, other)
    assert len(rows_of(other)) == 11


def test_damage_in_the_log_ends_the_run_and_keeps_what_was_archived(
    store: MessageStore, clock: ManualClock, settings: ArchiveLogSettings
) -> None:
    fill(store, clock, 300)
    logs = (Path(settings.store) / "commitlog").iterdir()
    (damaged,) = [path for path in logs if b"body 250" in path.read_bytes()]
    position = damaged.read_bytes().index(b"body 250")
    with damaged.open("r+b") as file:
        file.seek(position)
        file.write(b"BODY")
    with pytest.raises(BadRecordError, match="checksum"):
        archive_log(None, settings)
    assert 0 < len(rows_of(settings)) < 300


def test_an_archive_holds_several_brokers(
    store: MessageStore, clock: ManualClock, both: ArchiveLogSettings, tmp_path: Path
) -> None:
    """Each continues where it ended, also when maintenance has put their rows into one file."""
    fill(store, clock, 30)
    archive_log(None, both)
    other = replace(both, broker_name="broker-b", store=str(tmp_path / "other"))
    second = opened(tmp_path / "other", clock=clock)
    fill(second, clock, 90)
    archive_log(None, other)
    maintain(both)
    fill(store, clock, 10, start=30)
    fill(second, clock, 10, start=90)
    assert [archive_log(None, each).rows for each in (both, other)] == [10, 10]
    second.close()
    assert bodies_of(both) == sorted([*bodies(40), *bodies(100)])
    assert {row["broker_name"] for row in rows_of(both)} == {"broker-a", "broker-b"}


def test_two_logs_without_a_name_are_not_mixed_up(
    store: MessageStore, clock: ManualClock, settings: ArchiveLogSettings, tmp_path: Path
) -> None:
    fill(store, clock, 30)
    unnamed = replace(settings, broker_name="")
    archive_log(None, unnamed)
    assert archived_to(unnamed) == store.written_to
    other = opened(tmp_path / "other", clock=clock)
    clock.advance(1)
    fill(other, clock, 90)
    with pytest.raises(PlaceError, match="is not the one that"):
        archive_log(None, replace(unnamed, store=str(tmp_path / "other")))
    other.close()


def test_a_table_that_the_user_created_keeps_its_partitions(
    store: MessageStore, clock: ManualClock, settings: ArchiveLogSettings
) -> None:
    import deltalake

    fill(store, clock, 30)
    opened_table(settings)
    schema = delta(settings).schema()
    other = replace(settings, to=settings.to + "-2")
    deltalake.DeltaTable.create(other.to, schema=schema, partition_by=["date"])
    archive_log(None, other)
    maintain(other)
    fill(store, clock, 30, start=30)
    archive_log(None, other)
    assert bodies_of(other) == bodies(60)
    assert delta(other).metadata().partition_columns == ["date"]


def test_a_table_of_an_older_version_continues(
    store: MessageStore, clock: ManualClock, settings: ArchiveLogSettings
) -> None:
    """Its files lie by topic, one name in each folder, and have no bounds in the log."""
    import deltalake
    from deltalake.transaction import AddAction

    fill(store, clock, 60)
    made = replace(settings, to=settings.to + "-2", range_bytes=1 << 20)
    end = archive_log(None, made).end
    opened_table(settings)
    actions = []
    for file in delta(made).get_add_actions(flatten=True).to_struct_array().to_pylist():
        topic, date = file["partition.topic"], str(file["partition.date"])
        name = f"topic={quote(topic)}/date={date}/broker-a-{0:020d}-{end:020d}.parquet"
        Path(settings.to, name).parent.mkdir(parents=True)
        shutil.copy(Path(made.to, file["path"]), Path(settings.to, name))
        partitions = {"topic": topic, "date": date}
        actions.append(AddAction(name, file["size_bytes"], partitions, 7, True, "{}"))
    transaction = deltalake.Transaction("cometmq.archived.broker-a", end)
    table = delta(settings)
    table.create_write_transaction(
        actions, "append", table.schema(), ["topic", "date"],
        commit_properties=deltalake.CommitProperties(app_transactions=[transaction]),
    )  # fmt: skip
    assert all(file.has_topic for file in opened_table(settings).files())
    fill(store, clock, 30, start=60)
    assert archive_log(None, settings).rows == 30
    assert bodies_of(settings) == bodies(90)
    maintain(settings)
    store.close()
    made_anew(settings, clock, 200)
    with pytest.raises(PlaceError, match="is not the one that"):
        archive_log(None, settings)


DELETED = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
"""A deletion vector of rows 3, 4, 7, 11, 18 and 29, from Delta's protocol."""


def test_rows_that_are_marked_as_deleted_are_not_read_as_rows(
    store: MessageStore, clock: ManualClock, settings: ArchiveLogSettings
) -> None:
    """Spark marks rows of a Delta table by a bitmap in its log; the file still has them."""
    fill(store, clock, 200)
    archive_log(None, replace(settings, topics=("orders",), range_bytes=1 << 20))
    folder = Path(settings.to, "_delta_log")
    lines = [
        json.loads(line)
        for path in folder.iterdir()
        for line in path.read_text().split("\n")
        if line
    ]
    add = max((line["add"] for line in lines if "add" in line), key=lambda add: add["size"])
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    protocol |= {"readerFeatures": features, "writerFeatures": features}
    vector = {"storageType": "i", "pathOrInlineDv": DELETED, "sizeInBytes": 40, "cardinality": 6}
    remove = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    actions = [
        {"protocol": protocol},
        {"remove": remove},
        {"add": add | {"deletionVector": vector}},
    ]
    version = delta(settings).version() + 1
    (folder / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    no_session: Any = None
    marked = [file for file in opened_table(settings).files() if file.has_deletes]
    assert [file.uri for file in marked] == [f"{settings.to}/{add['path']}"]
    with pytest.raises(PlaceError, match="rows of 1 files are marked as deleted"):
        read_archive(no_session, settings)
    fill(store, clock, 10, start=200)
    assert archive_log(None, settings).rows == 10


def test_a_catalog_is_named_or_given_by_its_properties(
    store: MessageStore, clock: ManualClock, settings: ArchiveLogSettings, tmp_path: Path
) -> None:
    pytest.importorskip("pyiceberg")
    fill(store, clock, 30)
    (tmp_path / "warehouse").mkdir()
    address = f"sqlite:///{tmp_path}/warehouse/c.db"
    properties = (f"uri={address}", f"warehouse={tmp_path}/warehouse")
    given = replace(
        settings, to="", table="iceberg", identifier="shop.log", catalog_options=properties
    )
    assert archive_log(None, given).rows == 30
    named = replace(given, catalog=address, catalog_options=properties[1:])
    assert archive_log(None, named).rows == 0
    from pyiceberg.catalog import load_catalog

    table = load_catalog("cometmq", uri=address).load_table("shop.log")
    assert table.scan().to_arrow().num_rows == 30
    assert [field.name for field in table.spec().fields] == ["topic", "day"]


@pytest.mark.parametrize("to", ["", "s3://bucket/archive"])
def test_an_iceberg_table_without_a_folder_needs_a_catalog(to: str) -> None:
    pytest.importorskip("pyiceberg")
    with pytest.raises(ConfigError, match="needs catalog"):
        IcebergTable(tables.TableSettings(to=to, table="iceberg"), create=False)


def test_an_archive_of_an_older_version_is_not_made_a_table(
    store: MessageStore, clock: ManualClock, settings: ArchiveLogSettings
) -> None:
    """VACUUM would delete its files, which no table names."""
    fill(store, clock, 3)
    (Path(settings.to) / "_manifest").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"with a manifest.*use another folder"):
        archive_log(None, settings)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected store"):
        archive_log(None, ArchiveLogSettings())
    with pytest.raises(ConfigError, match="expected to"):
        DeltaTable("", create=True)
