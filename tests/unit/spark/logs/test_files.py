"""Locations of logs: directories, lists, patterns and URLs, and their readable ends."""

from __future__ import annotations

import itertools
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import fs

from cometmq.spark.errors import OptionError, PlaceError
from cometmq.spark.logs import Follower, Log, missing, open_log, plan
from cometmq.spark.logs.files import Folder, filesystem_of, shown
from cometmq.spark.logs.times import at_time, boundary
from cometmq.store.queues.consume_queue import FILLER_SIZE
from support.checks.manual_clock import ManualClock
from support.spark.log_files import FilledStore, log_reader, rows_at, without_queues
from support.stores.small_stores import LOG_FILE_BYTES, put


@pytest.fixture
def filled(tmp_path: Path) -> FilledStore:
    store = FilledStore(tmp_path / "store")
    store.fill(200)
    yield store
    store.close()


def bases(log: Log) -> list[int]:
    return [file.base_offset for file in log.files]


# --- finding the files ---------------------------------------------------------------------------


def test_a_store_and_its_log_are_the_same_place(filled: FilledStore) -> None:
    store = open_log(str(filled.root))
    log = open_log(f"{filled.root}/commitlog/")
    assert store.files == log.files
    assert store.store == log.store
    assert len(store.files) > 2


@pytest.mark.parametrize("url", [False, True])
def test_patterns_lists_and_urls_choose_segments(filled: FilledStore, url: bool) -> None:
    log = f"file://{filled.root}/commitlog" if url else f"{filled.root}/commitlog"
    second = f"{LOG_FILE_BYTES:020d}"
    assert bases(open_log(f"{log}/{second}")) == [LOG_FILE_BYTES]
    assert bases(open_log([f"{log}/{second}", f"{log}/{0:020d}"])) == [0, LOG_FILE_BYTES]
    assert bases(open_log(f"{log}/0000000000000001*")) == [LOG_FILE_BYTES]


def test_directories_of_one_log_are_read_together(filled: FilledStore, tmp_path: Path) -> None:
    """A broker may spread its log over several disks."""
    copy = without_queues(filled.root, tmp_path / "first")
    other = tmp_path / "second"
    other.mkdir()
    shutil.move(copy / f"{LOG_FILE_BYTES:020d}", other)

    log = open_log([str(copy), str(other)])

    assert bases(log) == bases(open_log(str(filled.root)))
    assert Follower().now(log) == filled.end


def test_what_is_no_segment_is_passed_over(filled: FilledStore, tmp_path: Path) -> None:
    copy = without_queues(filled.root, tmp_path / "copy")
    expected = bases(open_log(str(copy)))
    (copy / "notes.txt").write_text("x")
    (copy / f"{1 << 40:020d}").touch()  # one that is just being made
    (copy / f"{1 << 41:020d}").mkdir()
    assert bases(open_log(str(copy))) == expected


def test_where_there_is_no_log_an_error_says_where(tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match=r"met nothing at .*/none"):
        open_log(f"{tmp_path}/none")
    with pytest.raises(PlaceError, match="met no segment"):
        open_log(str(tmp_path))
    assert open_log(str(tmp_path), empty=True).files == ()


def test_segments_that_overlap_are_no_log(filled: FilledStore, tmp_path: Path) -> None:
    copy = without_queues(filled.root, tmp_path / "copy")
    shutil.copy(copy / f"{0:020d}", copy / f"{100:020d}")
    with pytest.raises(PlaceError, match="begins at 100, expected it after"):
        open_log(str(copy))


def test_a_log_grows_out_of_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    log = open_log(str(root), empty=True)
    assert Follower().now(log) == 0
    store = FilledStore(root)
    store.fill(3)
    log = log.again()
    assert log.store is not None
    assert Follower().now(log) == store.end
    store.close()


def test_other_file_systems_read_the_same(filled: FilledStore) -> None:
    """As object storage does: no path of this machine, reads at any position."""
    log = open_log(str(filled.root))
    remote = fs.SubTreeFileSystem(str(filled.root), fs.LocalFileSystem())
    files = tuple(
        file._replace(filesystem=remote, path=file.path.removeprefix(f"{filled.root}/"))
        for file in log.files
    )
    other = replace(log, folders=(Folder(remote, "commitlog"),), files=files)
    assert bases(other.again()) == bases(log)
    for store in (None, Folder(remote, ".")):
        other = replace(other, store=store)
        assert other.remote
        assert Follower().now(other) == filled.end
        assert plan(other, 0, filled.end, 5000) == plan(
            replace(log, store=None), 0, filled.end, 5000
        )


def test_secrets_in_a_url_are_not_shown() -> None:
    url = "s3://key:secret@bucket/log?endpoint_override=x&secret_key=abc"
    assert shown(url) == "s3://bucket/log"
    for bad in ("nofs://user@host/path?token=secret", "s3://user:secret@host/path"):
        with pytest.raises(OptionError) as met:
            filesystem_of(bad)
        assert "=secret" not in str(met.value)
        assert ":secret" not in str(met.value)
        assert "://host/path" in str(met.value)


def test_a_place_travels_to_workers(filled: FilledStore) -> None:
    log = open_log(str(filled.root), broker="broker-a")
    assert pickle.loads(pickle.dumps(log)) == log
    only = log.only(LOG_FILE_BYTES, LOG_FILE_BYTES + 1)
    assert bases(only) == [LOG_FILE_BYTES]


# --- ranges --------------------------------------------------------------------------------------


def test_ranges_are_cut_within_files_and_cover_everything(filled: FilledStore) -> None:
    log = open_log(str(filled.root))
    ranges = plan(log, 5, filled.end, 5000)
    assert ranges[0].start == 5
    assert ranges[-1].end == filled.end
    assert all(low.end == high.start for low, high in itertools.pairwise(ranges))
    assert max(each.size for each in ranges) <= 5000
    for each in ranges:
        assert each.start // LOG_FILE_BYTES == (each.end - 1) // LOG_FILE_BYTES


def test_missing_bytes_are_named(filled: FilledStore, tmp_path: Path) -> None:
    copy = without_queues(filled.root, tmp_path / "copy")
    (copy / f"{LOG_FILE_BYTES:020d}").unlink()
    log = open_log(str(copy))
    gaps = [(gap.start, gap.end) for gap in missing(log, 0, log.end_offset + 7)]
    end = log.end_offset
    assert gaps == [(LOG_FILE_BYTES, 2 * LOG_FILE_BYTES), (end, end + 7)]


# --- how far -------------------------------------------------------------------------------------


def test_a_growing_log_is_followed(filled: FilledStore) -> None:
    for walk in (False, True):
        follower = Follower(walk=walk)
        for count in (1, 90, 0, 3):
            filled.fill(count)
            log = open_log(str(filled.root))
            assert follower.now(log) == filled.end


@pytest.mark.parametrize("kept_bytes", [1, 4, 7, 8, 50, 95, 120, 195])
def test_a_record_that_is_half_there_is_not_there_yet(
    filled: FilledStore, tmp_path: Path, kept_bytes: int
) -> None:
    last = filled.records[-1]
    assert kept_bytes < last.size_bytes
    lost = bytes(last.size_bytes - kept_bytes)
    filled.write(last.log_offset + kept_bytes, lost)
    copy = without_queues(filled.root, tmp_path / "copy")
    assert Follower().now(open_log(str(copy))) == last.log_offset


def test_a_body_that_is_half_there_is_not_there_yet(filled: FilledStore, tmp_path: Path) -> None:
    last = filled.records[-1]
    filled.write(last.log_offset + 95, bytes(10))
    assert Follower().now(open_log(str(without_queues(filled.root, tmp_path / "copy")))) == (
        last.log_offset
    )


def test_damage_before_good_records_does_not_end_the_log(
    filled: FilledStore, tmp_path: Path
) -> None:
    """It is an error of reading, and no reason to leave out what follows."""
    for number in (195, 60):
        damaged = filled.records[number]
        filled.write(damaged.log_offset, b"\xff" * 30)
        copy = without_queues(filled.root, tmp_path / f"copy{number}")
        assert Follower().now(open_log(str(copy))) == filled.end


def test_left_overs_behind_the_end_are_no_records(filled: FilledStore, tmp_path: Path) -> None:
    """What an earlier cut left behind is older than the last record before it."""
    clock = ManualClock()
    store = FilledStore(tmp_path / "other", clock=clock)
    store.fill(10)
    old = store.segment(0).read_bytes()
    last = store.records[-1]
    clock.advance(100_000)
    store.close()
    newer = FilledStore(tmp_path / "newer", clock=clock)
    newer.fill(5)
    end = newer.end
    log = open_log(str(newer.root / "commitlog"))
    newer.write(last.log_offset, old[last.log_offset : last.log_offset + last.size_bytes])
    follower = Follower(walk=True)
    assert [follower.now(log) for _ in range(2)] == [end, end]
    newer.close()


def test_a_closed_segment_ends_with_its_filler(filled: FilledStore) -> None:
    log = open_log(f"{filled.root}/commitlog/{0:020d}")
    assert Follower(walk=True).now(log) == LOG_FILE_BYTES


def test_an_unused_segment_behind_the_log_is_no_end(filled: FilledStore, tmp_path: Path) -> None:
    copy = without_queues(filled.root, tmp_path / "copy")
    last = open_log(str(copy)).end_offset
    (copy / f"{last:020d}").write_bytes(bytes(LOG_FILE_BYTES))
    assert Follower().now(open_log(str(copy))) == filled.end


def test_units_behind_a_copied_log_are_not_believed(filled: FilledStore, tmp_path: Path) -> None:
    """Whoever copies the log first and the queues later has units of records he has not."""
    copy = tmp_path / "copy"
    copy.mkdir()
    without_queues(filled.root, copy / "commitlog")
    end = filled.end
    filled.fill(5)
    shutil.copytree(filled.root / "consumequeue", copy / "consumequeue")
    assert Follower().now(open_log(str(copy))) == end


def test_a_record_without_a_unit_is_not_read_yet(filled: FilledStore) -> None:
    """A broker that runs writes the unit behind the record."""
    last = filled.records[-1]
    queue = filled.root / "consumequeue" / "orders" / "1"
    path = max(queue.iterdir())
    data = bytearray(path.read_bytes())
    at = data.index(last.log_offset.to_bytes(8, "big"))
    data[at : at + 20] = bytes(20)
    path.write_bytes(data)
    assert Follower().now(open_log(str(filled.root))) == last.log_offset
    assert Follower(walk=True).now(open_log(str(filled.root))) == filled.end
    assert rows_at(log_reader(filled.root))[-1] == filled.offsets[-2]
    assert rows_at(log_reader(filled.root, logEnd="log"))[-1] == last.log_offset


def test_fillers_at_the_end_of_a_queue_lead_nowhere(filled: FilledStore) -> None:
    path = max((filled.root / "consumequeue" / "orders" / "0").iterdir())
    data = bytearray(path.read_bytes())
    end = data.rindex(filled.offsets[-2].to_bytes(8, "big")) + 20
    data[end : end + 20] = bytes(8) + FILLER_SIZE.to_bytes(4, "big") + bytes(8)
    path.write_bytes(data)
    assert Follower().now(open_log(str(filled.root))) == filled.end


# --- times and places ----------------------------------------------------------------------------


def test_times_lead_to_the_first_record_that_is_not_older(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FilledStore(tmp_path / "store", clock=clock)
    first_ms = clock.now_ms()
    for _ in range(60):
        put(store.store, b"x" * 200)
        store.fill(1, body_bytes=200)
        clock.advance(1000)
    log = open_log(str(store.root))
    table = rows_at(log_reader(store.root), "store_timestamp")
    places = rows_at(log_reader(store.root))
    for second in range(-1, 60):
        expected = next(
            at
            for at, when in zip(places, table, strict=True)
            if when.timestamp() * 1000 >= first_ms + second * 1000 - 1e-3
        )
        assert at_time(log, first_ms + second * 1000, store.end) == expected
    assert at_time(log, clock.now_ms(), store.end) is None
    store.close()


def test_the_next_record_is_found_from_any_byte(filled: FilledStore) -> None:
    log = open_log(str(filled.root))
    for number in (0, 50, 120):
        here, there = filled.records[number], filled.records[number + 1]
        for offset in (here.log_offset + 1, here.log_offset + 33, there.log_offset):
            found = boundary(log, offset, filled.end)
            # The filler of a full file comes between.
            assert found == there.log_offset or found // LOG_FILE_BYTES < (
                there.log_offset // LOG_FILE_BYTES
            )
    assert boundary(log, filled.end - 1, filled.end) == filled.end


def test_reading_a_place_opens_no_file_for_long(filled: FilledStore) -> None:
    before = open_files(filled.root)
    rows_at(log_reader(filled.root))
    Follower(walk=True).now(open_log(str(filled.root)))
    assert open_files(filled.root) == before


def open_files(root: Path) -> list[str]:
    numbers = sorted(Path("/proc/self/fd").iterdir())
    targets = [str(number.readlink()) for number in numbers if number.is_symlink()]
    return sorted(target for target in targets if target.startswith(str(root)))
