"""Which files go, when sends are refused, and that they are taken again."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.store import (
    GetStatus,
    MessageStore,
    SegmentNotReadyError,
    StoreUnavailableError,
)
from cometmq.store.lifecycle.remover import Remover
from cometmq.store.paths import segment_name
from cometmq.system.files import DiskUsage
from support.checks.manual_clock import ManualClock
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import LOG_FILE_BYTES, TOPIC, bodies, put, small_settings

Open = Callable[..., MessageStore]
HOUR_MS = 3_600_000


def disk_at(percent: int) -> FaultyFiles:
    files = FaultyFiles()
    files.disk = DiskUsage(used_bytes=percent, available_bytes=100 - percent)
    return files


def local_ms(hour: int) -> int:
    return int(time.mktime((2026, 7, 1, hour, 30, 0, 0, 0, -1))) * 1000


def fill(store: MessageStore, root: Path, written_ms: int) -> None:
    """Four log files and a bit, last written at a time."""
    while store.written_to < 4 * LOG_FILE_BYTES:
        put(store, b"x" * 1000, properties={"KEYS": "k"})
    store.write_out()
    for path in (root / "commitlog").iterdir():
        os.utime(path, ns=(written_ms * 10**6, written_ms * 10**6))


def log_files(root: Path) -> int:
    return len(list((root / "commitlog").iterdir()))


@pytest.mark.parametrize(
    ("hour", "percent", "age_hours", "left"),
    [
        (3, 50, 100, 5),
        (4, 50, 100, 1),
        (4, 50, 71, 5),
        (22, 50, 100, 1),
        (3, 76, 100, 1),
        (3, 75, 100, 5),
        (3, 76, 71, 5),
        (3, 86, 71, 1),
        (3, 85, 71, 5),
    ],
)
def test_files_go_by_age_hour_and_disk(
    open_store: Open, tmp_path: Path, hour: int, percent: int, age_hours: int, left: int
) -> None:
    store = open_store(files=disk_at(percent), delete_when=("04", "22"))
    now_ms = local_ms(hour)
    fill(store, tmp_path, now_ms - age_hours * HOUR_MS)
    before = log_files(tmp_path)
    assert store.clean(now_ms) == before - log_files(tmp_path)
    assert log_files(tmp_path) == left


def test_files_that_have_not_expired_stay_where_the_setting_says_so(
    open_store: Open, tmp_path: Path
) -> None:
    store = open_store(files=disk_at(95), clean_forcibly_enabled=False)
    fill(store, tmp_path, local_ms(3))
    assert store.clean(local_ms(3)) == 0


def test_a_young_file_keeps_the_older_ones_after_it(open_store: Open, tmp_path: Path) -> None:
    store = open_store(files=disk_at(80))
    now_ms = local_ms(3)
    fill(store, tmp_path, now_ms - 100 * HOUR_MS)
    young = tmp_path / "commitlog" / f"{LOG_FILE_BYTES:020d}"
    os.utime(young, ns=(now_ms * 10**6, now_ms * 10**6))
    assert store.clean(now_ms) == 1
    assert young.exists()


class StuckFiles(FaultyFiles):
    """A disk that cannot delete one file."""

    stuck: Path | None = None

    def remove(self, path: Path) -> None:
        if path == self.stuck:
            raise OSError(errno.EIO, "the disk is gone")
        super().remove(path)


def test_no_file_goes_before_an_older_one_that_cannot_be_deleted(
    open_store: Open, tmp_path: Path
) -> None:
    """Else a file would be missing in the middle, and the store would not open."""
    files = StuckFiles()
    files.stuck = tmp_path / "commitlog" / segment_name(LOG_FILE_BYTES)
    store = open_store(files=files, file_reserved_hours=72)
    fill(store, tmp_path, local_ms(4) - 100 * HOUR_MS)
    last = put(store, b"last")
    assert store.clean(local_ms(4)) == 4
    assert log_files(tmp_path) == 4
    store.abandon()
    again = open_store(files=files, file_reserved_hours=72)
    assert bodies(again)[-1] == b"last"
    assert again.bounds(TOPIC, 0)[1] == last.queue_offset + 1


def test_a_file_that_could_not_be_deleted_is_deleted_by_a_later_round(
    open_store: Open, tmp_path: Path
) -> None:
    files = StuckFiles()
    files.stuck = tmp_path / "commitlog" / segment_name(0)
    store = open_store(files=files, file_reserved_hours=72)
    fill(store, tmp_path, local_ms(4) - 100 * HOUR_MS)
    assert store.clean(local_ms(4)) == 4
    assert log_files(tmp_path) == 5
    files.stuck = None
    assert store.clean(local_ms(5)) == 0
    assert log_files(tmp_path) == 1


def test_files_that_an_operator_has_deleted_stop_no_cleaning(
    open_store: Open, tmp_path: Path
) -> None:
    """When a disk is full operators delete the oldest files by hand."""
    store = open_store(file_reserved_hours=72)
    fill(store, tmp_path, local_ms(4) - 100 * HOUR_MS)
    for number in (0, 1):
        (tmp_path / "commitlog" / segment_name(number * LOG_FILE_BYTES)).unlink()
    assert store.clean(local_ms(4)) == 4
    assert log_files(tmp_path) == 1
    assert store.min_log_offset == 4 * LOG_FILE_BYTES


def test_other_streams_are_cleaned_while_a_file_cannot_be_deleted(tmp_path: Path) -> None:
    files = StuckFiles()
    remover = Remover(files, in_thread=False)
    paths = {}
    for folder in ("consumequeue", "commitlog"):
        tmp_path.joinpath(folder).mkdir()
        paths[folder] = [tmp_path / folder / segment_name(at) for at in (0, 100)]
        for path in paths[folder]:
            path.touch()
    files.stuck = paths["consumequeue"][0]

    for path in (*paths["consumequeue"], *paths["commitlog"]):
        remover.remove(path)
    assert all(path.exists() for path in paths["consumequeue"])
    assert not any(path.exists() for path in paths["commitlog"])

    later = tmp_path / "commitlog" / segment_name(200)
    later.touch()
    remover.remove(later)
    assert not later.exists()
    later.touch()
    files.stuck = later
    remover.remove(later)
    files.stuck = paths["consumequeue"][0]
    remover.retry()
    assert not later.exists()
    files.stuck = None
    remover.retry()
    assert not any(path.exists() for path in paths["consumequeue"])


def test_one_round_deletes_a_limited_number(open_store: Open, tmp_path: Path) -> None:
    store = open_store(files=disk_at(80), delete_files_batch_max=1)
    fill(store, tmp_path, 0)
    assert store.clean(local_ms(3)) == 1


def test_what_is_not_on_the_disk_stays(open_store: Open, tmp_path: Path) -> None:
    store = open_store(files=disk_at(95))
    while store.written_to < 3 * LOG_FILE_BYTES:
        put(store, b"x" * 1000)
    assert store.clean() == 0
    store.flush()
    assert store.clean() == 0  # a start after a power cut would read it to fill the queues
    store.flush_queues()
    assert store.clean() == 0
    store.write_checkpoint()
    assert store.clean() == 3


@pytest.mark.parametrize("complete", [False, True])
def test_a_start_after_a_power_cut_finds_the_log_that_its_checkpoint_names(
    open_store: Open, tmp_path: Path, complete: bool
) -> None:
    files = disk_at(95)
    store = open_store(files=files)
    put(store, b"first")
    store.write_out()
    for number in range(60):
        put(store, b"%d" % number * 300)
    store.flush()
    if complete:
        store.write_out()
    store.clean()
    assert (store.min_log_offset > 0) == complete
    low, high = store.bounds(TOPIC, 0)
    made = bodies(store)
    store.abandon()
    files.crash(lambda path, page: False)
    again = open_store(files=files)
    assert (again.bounds(TOPIC, 0), bodies(again)) == ((low, high), made)


def test_queues_and_index_follow_the_log(open_store: Open, tmp_path: Path) -> None:
    store = open_store(files=disk_at(80))
    for number in range(400):
        put(store, b"%d" % number, properties={"KEYS": f"k{number}"})
    store.write_out()
    store.clean(2**45)
    low, high = store.bounds(TOPIC, 0)
    assert store.min_log_offset == store.written_to // LOG_FILE_BYTES * LOG_FILE_BYTES
    assert high == 400
    assert bodies(store) == [b"%d" % number for number in range(low, high)]
    queue_files = sorted((tmp_path / "consumequeue" / TOPIC / "0").iterdir())
    assert int(queue_files[0].name) == low * 20 // 1000 * 1000
    assert not store.query(TOPIC, "k1", 9, 0, 2**62).records
    assert store.query(TOPIC, "k399", 9, 0, 2**62).records
    assert len(list((tmp_path / "index").iterdir())) < 400 // 63


def test_a_queue_whose_messages_are_all_gone_keeps_its_numbers(open_store: Open) -> None:
    store = open_store(files=disk_at(80))
    put(store, topic="quiet")
    while store.written_to < 2 * LOG_FILE_BYTES:
        put(store, b"x" * 1000)
    store.write_out()
    store.clean(2**45)
    assert store.bounds("quiet", 0) == (1, 1)
    assert store.get("quiet", 0, 0, 1).status is GetStatus.OFFSET_TOO_SMALL
    store.close()
    again = open_store(files=disk_at(80))
    assert again.bounds("quiet", 0) == (1, 1)
    assert put(again, topic="quiet").queue_offset == 1


def test_sends_are_refused_on_a_full_disk_and_taken_again(open_store: Open) -> None:
    files = disk_at(91)
    store = open_store(files=files)
    put(store)
    store.clean()
    assert store.disk_full
    with pytest.raises(StoreUnavailableError, match="disk is full"):
        put(store)
    for percent, full in ((88, True), (85, False), (90, False), (91, True)):
        files.disk = DiskUsage(percent, 100 - percent)
        store.clean()
        assert store.disk_full is full
    files.disk = DiskUsage(10, 90)
    store.clean()
    assert put(store).queue_offset == 1


def test_a_disk_with_room_does_not_undo_a_failed_sync(open_store: Open) -> None:
    files = disk_at(95)
    store = open_store(files=files)
    put(store)
    store.clean()
    files.fail_sync = True
    with pytest.raises(StoreUnavailableError):
        store.flush()
    files.disk = DiskUsage(10, 90)
    store.clean()
    with pytest.raises(StoreUnavailableError, match="a sync has failed"):
        put(store)


def test_a_deleted_topic_has_no_queues_after_a_restart(
    store: MessageStore, open_store: Open, tmp_path: Path, clock: ManualClock
) -> None:
    for topic in ("a", "b", "c"):
        put(store, topic=topic)
    assert store.topics() == ["a", "b", "c"]
    for topic in ("a", "c"):
        store.delete_topic(topic)
    assert [path.name for path in (tmp_path / "consumequeue").iterdir()] == ["b"]
    assert store.bounds("a", 0) == (0, 0)
    assert put(store, topic="a").queue_offset == 0
    store.close()
    again = open_store()
    assert sorted(again.queue_keys()) == [("a", 0), ("b", 0)]
    assert bodies(again, "a") == [b"body"]


def test_cleaning_is_done_in_short_steps(open_store: Open) -> None:
    store = open_store(files=disk_at(80))
    for queue_id in range(120):
        put(store, b"x" * 1000, queue_id=queue_id)
    store.write_out()
    steps = list(store.clean_in_steps(2**45))
    assert len(steps) == 3
    assert sum(steps) == store.min_log_offset // LOG_FILE_BYTES
    assert store.bounds(TOPIC, 0) == (1, 1)
    assert list(store.clean_in_steps(2**45)) == [0]


def test_files_that_have_had_their_time_are_deleted_in_a_thread(tmp_path: Path) -> None:
    files = disk_at(80)
    store = MessageStore(small_settings(tmp_path), clock=ManualClock(), files=files, threaded=True)
    store.open()
    store.wait_for_segment()
    while store.written_to < 3 * LOG_FILE_BYTES:
        try:
            put(store, b"x" * 1000)
        except SegmentNotReadyError:
            store.wait_for_segment()
    store.write_out()
    assert store.clean(2**45) == 3
    put(store, topic="gone")
    assert store.delete_topic("gone")
    assert put(store, topic="gone").queue_offset == 0
    store.close()
    assert min((tmp_path / "commitlog").iterdir()).name == segment_name(3 * LOG_FILE_BYTES)
    assert list((tmp_path / "deleted").iterdir()) == []
    assert [path.name for path in (tmp_path / "consumequeue" / "gone").iterdir()] == ["0"]


def test_a_deletion_that_a_crash_interrupted_is_finished_at_the_next_start(
    open_store: Open, tmp_path: Path
) -> None:
    left = tmp_path / "deleted" / "1-1" / "0"
    left.mkdir(parents=True)
    (left / segment_name(0)).write_bytes(b"x")
    open_store()
    assert list((tmp_path / "deleted").iterdir()) == []
