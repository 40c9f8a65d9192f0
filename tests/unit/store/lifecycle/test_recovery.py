"""Opening a store: after a clean stop, after a crash, and with files missing or broken."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.store import (
    GetStatus,
    MessageStore,
    StoreCorruptError,
    StoreLockedError,
    StoreUnavailableError,
)
from cometmq.store.lifecycle import recovery
from cometmq.store.lifecycle.checkpoint import Checkpoint, write_checkpoint
from cometmq.store.queues.redispatch import QueueGapError, redispatch
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock
from support.stores.faulty_files import FaultyFiles, NoNewFiles
from support.stores.small_stores import LOG_FILE_BYTES, TOPIC, bodies, files_of, put
from support.stores.watched_mapping import WatchedMapping

Open = Callable[..., MessageStore]


def fill(store: MessageStore, count: int, size: int = 100) -> list[bytes]:
    made = [b"%05d" % number + b"x" * size for number in range(count)]
    for number, body in enumerate(made):
        put(store, body, properties={"KEYS": f"k{number}", "TAGS": "TagA"})
    return made


def log_file(root: Path, number: int = 0) -> Path:
    return root / "commitlog" / f"{number * LOG_FILE_BYTES:020d}"


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.mark.parametrize("count", [0, 1, 50, 150, 400])
def test_everything_is_there_after_a_clean_stop(open_store: Open, count: int) -> None:
    store = open_store()
    made = fill(store, count)
    end = store.written_to
    store.close()
    again = open_store()
    assert bodies(again) == made
    assert again.written_to == again.flushed_to == end
    assert put(again).queue_offset == count


@pytest.mark.parametrize("count", [0, 1, 50, 150, 400])
def test_everything_is_there_after_the_process_was_killed(open_store: Open, count: int) -> None:
    store = open_store()
    made = fill(store, count)
    store.abandon()
    again = open_store()
    assert bodies(again) == made
    assert all(again.query(TOPIC, f"k{number}", 9, 0, 2**62).records for number in range(count))
    assert put(again).queue_offset == count


def test_a_clean_stop_leaves_the_files_rocketmq_leaves(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 130)
    assert (tmp_path / "abort").read_bytes().split()[0] == str(os.getpid()).encode()
    store.close()
    names = {name.split("/")[0] for name in files_of(tmp_path)}
    assert names == {"commitlog", "consumequeue", "index", "checkpoint", "lock"}
    assert (tmp_path / "lock").read_bytes() == b"lock"
    assert {path.stat().st_size for path in (tmp_path / "commitlog").iterdir()} == {LOG_FILE_BYTES}
    assert [path.name for path in sorted((tmp_path / "commitlog").iterdir())] == [
        f"{at:020d}" for at in range(0, store.written_to + 1, LOG_FILE_BYTES)
    ]


def test_opening_and_closing_changes_nothing_in_log_queues_and_index(
    open_store: Open, tmp_path: Path
) -> None:
    store = open_store()
    fill(store, 130)
    store.close()
    before = files_of(tmp_path)
    open_store().close()
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("crashed", [False, True])
def test_what_is_derived_from_the_log_is_made_again(
    open_store: Open, tmp_path: Path, crashed: bool
) -> None:
    store = open_store()
    made = fill(store, 300)
    before = files_of(tmp_path / "consumequeue")
    store.abandon() if crashed else store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    again = open_store()
    assert bodies(again) == made
    assert files_of(tmp_path / "consumequeue") == before
    assert all(again.query(TOPIC, f"k{number}", 9, 0, 2**62).records for number in range(300))


def test_a_deleted_index_alone_is_made_again(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 100)
    store.close()
    shutil.rmtree(tmp_path / "index")
    again = open_store()
    assert all(again.query(TOPIC, f"k{number}", 9, 0, 2**62).records for number in range(100))


def test_queues_that_are_behind_are_brought_up_to_the_log_after_a_clean_stop(
    open_store: Open, tmp_path: Path
) -> None:
    """The record that begins where the queues end must not be passed over."""
    store = open_store()
    made = fill(store, 20)
    store.close()
    queue_file = tmp_path / "consumequeue" / TOPIC / "0" / f"{0:020d}"
    overwrite(queue_file, 15 * 20, bytes(5 * 20))
    assert bodies(open_store()) == made


def test_queues_that_are_ahead_of_the_log_are_cut(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    made = fill(store, 20)
    start = store.consume_queue_units(TOPIC, 0, 15, 1)[0][0]
    store.abandon()
    overwrite(log_file(tmp_path), start, bytes(LOG_FILE_BYTES - start))
    again = open_store()
    assert bodies(again) == made[:15]
    assert put(again, b"next").queue_offset == 15
    assert bodies(again)[-1] == b"next"


@pytest.mark.parametrize("missing", ["checkpoint", "nothing"])
def test_a_store_without_any_log_forgets_its_queues(
    missing: str, open_store: Open, tmp_path: Path
) -> None:
    store = open_store()
    fill(store, 20)
    end = store.written_to
    store.close()
    shutil.rmtree(tmp_path / "commitlog")
    if missing == "checkpoint":
        (tmp_path / "checkpoint").unlink()
    else:  # the log may be on a disk that is not mounted
        with pytest.raises(StoreCorruptError, match=f"no file, expected a log up to offset {end}"):
            open_store()
    again = open_store(cut_damaged_log=missing != "checkpoint")
    assert again.bounds(TOPIC, 0) == (0, 0)
    assert put(again).queue_offset == 0


def test_a_queue_that_lost_a_file_gets_its_units_from_the_whole_log(
    open_store: Open, tmp_path: Path
) -> None:
    """The log is walked from the other queue's newest unit on; that is not enough for this one."""
    store = open_store()
    made = fill(store, 70)
    for _ in range(5):
        put(store, queue_id=1)
    made += fill(store, 10)
    store.abandon()
    newest = max((tmp_path / "consumequeue" / TOPIC / "0").iterdir())
    newest.unlink()
    again = open_store()
    assert bodies(again) == made
    assert len(bodies(again, queue_id=1)) == 5


def test_topics_that_the_log_brings_back_are_known(open_store: Open) -> None:
    """A topic that was deleted just before a crash gets queues for its last records."""
    store = open_store()
    fill(store, 5)
    store.flush()
    store.flush_queues()
    store.write_checkpoint()
    put(store, topic="deleted")
    put(store, topic="deleted")
    store.delete_topic("deleted")
    store.abandon()
    again = open_store()
    assert ("deleted", 0) in again.queue_keys()
    again.expect_topics(lambda topic: topic != "deleted")
    assert ("deleted", 0) not in again.queue_keys()
    again.close()
    assert ("deleted", 0) not in open_store().queue_keys()


@pytest.mark.parametrize("left_over", [b"\xff" * 300, b"\0\0\0\x7b\xda\xa3\x20\xa7" + b"?" * 90])
def test_garbage_after_the_last_record_is_cut_and_zeroed(
    open_store: Open, tmp_path: Path, left_over: bytes
) -> None:
    store = open_store()
    made = fill(store, 10)
    end = store.written_to
    store.abandon()
    overwrite(log_file(tmp_path), end, left_over)
    again = open_store()
    assert bodies(again) == made
    assert again.written_to == end
    assert not any(log_file(tmp_path).read_bytes()[end:])


def test_garbage_that_looks_longer_than_its_file_is_no_record(
    open_store: Open, tmp_path: Path
) -> None:
    """Its hosts of 20 bytes put its other fields behind the end of the file."""
    store = open_store()
    made = fill(store, 3)
    store.close()
    place = LOG_FILE_BYTES - 91
    head = struct.pack(">iIiiiqqi", 91, 0xDAA320A7, 0, 0, 0, 0, place, 0x30)
    overwrite(log_file(tmp_path), place, head)
    again = open_store()
    assert bodies(again) == made
    assert again.record_at(place) is None


def test_an_empty_file_made_ahead_is_no_part_of_the_log(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    made = fill(store, 10)
    store.abandon()
    log_file(tmp_path, 1).write_bytes(bytes(LOG_FILE_BYTES))
    again = open_store()
    assert bodies(again) == made
    assert not log_file(tmp_path, 1).exists()
    made += fill(again, 200)
    assert bodies(again) == made


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("where", [0, 4, 8, 28, 90, 150])
def test_damage_in_the_middle_is_named_and_nothing_is_touched(
    open_store: Open, tmp_path: Path, crashed: bool, where: int
) -> None:
    store = open_store()
    fill(store, 40)
    position = store.consume_queue_units(TOPIC, 0, 20, 1)[0][0]
    store.abandon() if crashed else store.close()
    overwrite(log_file(tmp_path), position + where, b"\x5a\xa5")
    before = files_of(tmp_path)
    with pytest.raises(StoreCorruptError) as met:
        open_store()
    assert met.value.path == log_file(tmp_path)
    assert met.value.position == position
    assert "cutDamagedLog" in str(met.value)
    assert files_of(tmp_path) == before


def test_no_search_behind_damage_reaches_the_last_byte_of_a_file(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    fill(store, 5)
    end = store.written_to
    store.abandon()
    # Bytes without a hole up to the end of the file, so that the search goes that far.
    overwrite(log_file(tmp_path), end, b"x" * (LOG_FILE_BYTES - end))
    monkeypatch.setattr(mmap, "mmap", WatchedMapping)
    monkeypatch.setattr(WatchedMapping, "searches", 0)
    assert open_store().written_to == end
    assert WatchedMapping.searches > 0


def test_damage_in_an_earlier_file_than_the_last_is_named_after_a_crash(
    open_store: Open, tmp_path: Path
) -> None:
    store = open_store()
    fill(store, 300)
    store.abandon()
    overwrite(log_file(tmp_path), 5000, b"\x5a" * 200)
    with pytest.raises(StoreCorruptError, match=f"{0:020d}"):
        open_store()


def test_a_damaged_log_is_cut_where_the_operator_says_so(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    made = fill(store, 40)
    position = store.consume_queue_units(TOPIC, 0, 20, 1)[0][0]
    store.close()
    overwrite(log_file(tmp_path), position + 90, b"\x5a\xa5")
    again = open_store(cut_damaged_log=True)
    assert bodies(again) == made[:20]
    again.close()
    assert bodies(open_store()) == made[:20]


def test_left_overs_of_an_earlier_cut_are_no_damage(
    open_store: Open, tmp_path: Path, clock: ManualClock
) -> None:
    """RocketMQ does not zero what it cuts; whole but older records may follow the end."""
    old = open_store()
    fill(old, 40)
    old.close()
    stale = log_file(tmp_path).read_bytes()
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / "checkpoint").unlink()
    clock.advance(60_000)
    young = open_store()
    made = fill(young, 10, size=77)
    end = young.written_to
    young.abandon()
    overwrite(log_file(tmp_path), end, stale[end:])
    of_rocketmq = Checkpoint(physic_ms=1, logics_ms=1)
    write_checkpoint(Files(), tmp_path / "checkpoint", of_rocketmq)
    again = open_store()
    assert bodies(again) == made
    assert not any(log_file(tmp_path).read_bytes()[end:])


def test_only_the_end_of_the_log_is_walked_after_a_crash(
    open_store: Open, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage far before what the checkpoint names is not met: a start must not read all."""
    monkeypatch.setattr(recovery, "_WALKED_BYTES", 10_000)
    store = open_store()
    made = fill(store, 250)
    clock.advance(60_000)
    made += fill(store, 250)
    clock.advance(60_000)
    store.flush()
    store.flush_queues()
    store.write_checkpoint()
    store.abandon()
    overwrite(log_file(tmp_path), 5000, b"\x5a" * 20)
    assert open_store().bounds(TOPIC, 0) == (0, 500)


def test_half_messages_after_the_last_unit_survive_a_clean_stop(open_store: Open) -> None:
    store = open_store()
    fill(store, 3)
    half = put(store, b"half", sys_flag=0x4)
    store.close()
    again = open_store()
    assert again.record_at(half.log_offset, half.size_bytes) is not None
    assert again.bounds(TOPIC, 0) == (0, 3)


def test_a_topic_deleted_and_made_again_has_only_its_new_messages_after_a_crash(
    open_store: Open,
) -> None:
    store = open_store()
    fill(store, 5)
    store.delete_topic(TOPIC)
    put(store, b"new")
    put(store, b"newer")
    store.abandon()
    assert bodies(open_store()) == [b"new", b"newer"]


# --- files that do not belong ---------------------------------------------------------------------


def test_an_empty_last_file_is_deleted(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    made = fill(store, 10)
    store.close()
    log_file(tmp_path, 1).touch()
    assert bodies(open_store()) == made
    assert not log_file(tmp_path, 1).exists()


def test_directories_among_the_files_are_passed_over(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    made = fill(store, 10)
    store.close()
    (tmp_path / "commitlog" / "lost+found").mkdir()
    (tmp_path / "consumequeue" / TOPIC / "notes").mkdir()
    assert bodies(open_store()) == made


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        (f"{LOG_FILE_BYTES:020d}", 100, "a file of 100 bytes"),
        ("x", LOG_FILE_BYTES, "an unexpected file"),
        (f"{3 * LOG_FILE_BYTES:020d}", LOG_FILE_BYTES, f"expected file {LOG_FILE_BYTES:020d}"),
    ],
)
def test_a_file_that_does_not_fit_is_named(
    open_store: Open, tmp_path: Path, name: str, size: int, words: str
) -> None:
    store = open_store()
    fill(store, 10)
    store.close()
    (tmp_path / "commitlog" / name).write_bytes(bytes(size))
    before = files_of(tmp_path)
    with pytest.raises(StoreCorruptError, match=words) as met:
        open_store()
    assert met.value.path.name == name
    assert files_of(tmp_path) == before


def test_a_store_of_other_file_sizes_is_refused(open_store: Open) -> None:
    store = open_store()
    fill(store, 10)
    store.close()
    with pytest.raises(StoreCorruptError, match=f"expected {2 * LOG_FILE_BYTES} bytes"):
        open_store(commit_log_file_bytes=2 * LOG_FILE_BYTES)


def test_missing_first_files_move_the_least_offsets(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    made = fill(store, 300)
    store.close()
    log_file(tmp_path).unlink()
    again = open_store()
    low, high = again.bounds(TOPIC, 0)
    assert 0 < low < high == 300
    assert again.min_log_offset == LOG_FILE_BYTES
    assert bodies(again) == made[low:]
    assert again.get(TOPIC, 0, 0, 1).status is GetStatus.OFFSET_TOO_SMALL


def test_a_store_is_opened_by_one_process_at_a_time(open_store: Open, tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib\n"
            "from cometmq.system.files import Files\n"
            "lock = Files().lock(pathlib.Path(sys.argv[1]), b'lock')\n"
            "print('held', flush=True)\n"
            "sys.stdin.read()\n",
            str(tmp_path / "lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(StoreLockedError, match="another process; stop it, or name"):
        open_store()
    holder.communicate()
    put(open_store())


def test_a_queue_goes_on_in_the_file_that_a_full_disk_left_empty(
    open_store: Open, tmp_path: Path
) -> None:
    class Full(FaultyFiles):
        is_full = False

        def open_mapped(self, path: Path, size_bytes: int, **options: bool):  # type: ignore[override]
            mapped = super().open_mapped(path, size_bytes, **options)
            if self.is_full and "consumequeue" in path.parts and options.get("create"):
                self.room_bytes = 0
            return mapped

    files = Full()
    store = open_store(files=files)
    made = fill(store, 50)  # one whole file of the queue
    files.is_full = True
    with pytest.raises(StoreUnavailableError):
        put(store)
    store.close()
    again = open_store()
    made += fill(again, 5)
    assert bodies(again) == made
    again.close()
    assert bodies(open_store()) == made


def test_what_a_killed_process_wrote_beside_its_queue_is_synced(
    open_store: Open, tmp_path: Path
) -> None:
    store = open_store(consume_queue_ext_enabled=True)
    fill(store, 5)
    store.abandon()
    again = open_store(consume_queue_ext_enabled=True)
    ext = again._table.all()[0].ext
    assert ext.flushed_offset == 0
    again.flush_queues()
    assert ext.flushed_offset == ext.end_offset > 0


def test_a_redispatch_that_begins_inside_a_record_is_told(store: MessageStore) -> None:
    fill(store, 5)
    segments, table, dispatcher = store._log.segments, store._table, store._dispatcher
    with pytest.raises(QueueGapError, match="no record begins at 10"):
        redispatch(segments, 10, store.written_to, table, dispatcher, finds_gaps=True)
    done = redispatch(segments, 0, store.written_to, table, dispatcher, finds_gaps=True)
    assert (done.to, done.count) == (store.written_to, 5)


# --- what only looks like being on disk ----------------------------------------------------------


def test_what_a_failed_sync_left_in_the_page_cache_is_written_again(open_store: Open) -> None:
    """The kernel takes its pages for clean: without a write no later sync writes them."""
    files = FaultyFiles()
    store = open_store(files=files)
    put(store, b"on disk")
    store.write_out()
    put(store, b"synced, behind the checkpoint")
    store.flush()
    for _ in range(3):
        put(store, b"in doubt" * 400)
    files.fail_sync = True
    with pytest.raises(StoreUnavailableError):
        store.flush()
    store.close()
    files.fail_sync = False

    again = open_store(files=files)
    known = bodies(again)
    assert known[:2] == [b"on disk", b"synced, behind the checkpoint"]
    put(again, b"later")
    assert again.flush() == again.written_to
    again.abandon()
    files.crash(lambda path, page: False)
    assert bodies(open_store(files=files)) == [*known, b"later"]


@pytest.mark.parametrize("ending", ["closed", "killed", "cut off"])
def test_a_lost_checkpoint_and_a_clock_that_was_set_back_lose_nothing(
    open_store: Open, tmp_path: Path, clock: ManualClock, ending: str
) -> None:
    files = FaultyFiles()
    store = open_store(files=files)
    made = []
    for number in range(300):
        if number % 100 == 50:
            clock.set_wall(clock.now_ms() - 3_600_000)
        made.append(b"%d" % number * 50)
        put(store, made[-1], properties={"KEYS": f"k{number}"})
        if number == 200:
            store.write_out()
    store.flush()
    if ending == "closed":
        store.close()
    else:
        store.abandon()
    if ending == "cut off":
        files.crash(lambda path, page: False)
    (tmp_path / "checkpoint").unlink()
    again = open_store(files=files)
    assert bodies(again) == made
    for number in (0, 149, 150, 299):
        assert len(again.query(TOPIC, f"k{number}", 9, 0, 2**62).records) == 1


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_damage_is_named_even_if_what_follows_is_older(
    open_store: Open, tmp_path: Path, clock: ManualClock, ending: str
) -> None:
    store = open_store()
    fill(store, 20)
    damaged_at = store.written_to
    put(store, b"damaged")
    clock.set_wall(clock.now_ms() - 3_600_000)
    fill(store, 20)
    if ending == "closed":
        store.close()
    else:
        store.abandon()
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    overwrite(log_file(tmp_path), damaged_at + 20, b"\xff" * 30)
    with pytest.raises(StoreCorruptError, match=f"byte {damaged_at}: "):
        open_store()


# --- catching up with the log --------------------------------------------------------------------


@pytest.fixture
def behind(open_store: Open) -> MessageStore:
    """A store whose queues and index lack most of the log, because the disk was full at start."""
    store = open_store()
    fill(store, 1000)
    put(store, topic="deleted")
    store.close()
    for path in ("consumequeue", "index"):
        shutil.rmtree(store.paths.root / path)
    files = FaultyFiles()
    files.room_bytes = 30_000
    again = open_store(files=files)
    assert again.dispatch_backlog_bytes > 0
    files.room_bytes = None
    return again


def test_cleaning_catches_up_in_short_steps(behind: MessageStore) -> None:
    left = [behind.dispatch_backlog_bytes]
    for _ in behind.clean_in_steps(1):
        left.append(behind.dispatch_backlog_bytes)
    assert left[-1] == 0
    assert len(left) > 3
    assert left == sorted(left, reverse=True)
    assert len(bodies(behind)) == 1000
    for number in (0, 500, 999):
        assert len(behind.query(TOPIC, f"k{number}", 9, 0, 2**62).records) == 1


def test_sends_are_refused_until_all_is_caught_up(behind: MessageStore) -> None:
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match=r"catch up with the log, \d+ bytes"):
            put(behind, b"new")
    behind.clean(1)
    assert put(behind, b"new").queue_offset == 1000


def test_a_topic_that_was_deleted_does_not_come_back_with_its_log(behind: MessageStore) -> None:
    behind.expect_topics(lambda topic: topic != "deleted")
    behind.clean(1)
    assert behind.dispatch_backlog_bytes == 0
    assert {topic for topic, _ in behind.queue_keys()} == {TOPIC}


def test_records_without_keys_do_not_stop_the_catching_up(open_store: Open) -> None:
    """It goes by where it came to, not by the index, which does not grow then."""
    files = FaultyFiles()
    store = open_store(files=files)
    put(store, properties={"KEYS": "k"})
    for _ in range(2000):
        put(store)
    store.close()
    shutil.rmtree(store.paths.root / "consumequeue")
    (store.paths.root / "checkpoint").unlink()
    files.room_bytes = 16 * 1024
    again = open_store(files=files)
    assert again.dispatch_backlog_bytes > 0
    files.room_bytes = None
    again.clean(1)
    assert again.dispatch_backlog_bytes == 0
    assert again.bounds(TOPIC, 0) == (0, 2001)


# --- every acknowledged message is readable, however full the disk is ----------------------------


def without_index_files(open_store: Open) -> tuple[MessageStore, NoNewFiles, list[bytes]]:
    """A store whose last message has more keys than the index has room for."""
    files = NoNewFiles()
    store = open_store(files=files)
    made = fill(store, 50)
    files.kind, files.refusals = "index", 10**6
    put(store, b"last", properties={"KEYS": " ".join(f"last{number}" for number in range(300))})
    with pytest.raises(StoreUnavailableError, match="disk full"):
        put(store)
    made.append(b"last")
    assert bodies(store) == made
    return store, files, made


def test_messages_are_readable_after_each_kill_while_the_index_has_no_room(
    open_store: Open,
) -> None:
    store, files, made = without_index_files(open_store)
    for _ in range(3):
        store.abandon()
        files.room_bytes = 0
        store = open_store(files=files)
        assert bodies(store) == made
        with pytest.raises(StoreUnavailableError, match="disk full"):
            put(store)
        assert store.dispatch_backlog_bytes > 0
    files.refusals, files.room_bytes = 0, None
    store.clean()
    assert store.dispatch_backlog_bytes == 0
    assert put(store, b"next").queue_offset == len(made)
    for key in ("k0", "k49", "last0", "last299"):
        assert len(store.query(TOPIC, key, 9, 0, 2**62).records) == 1


def test_messages_are_readable_after_a_power_cut_while_the_index_has_no_room(
    open_store: Open,
) -> None:
    store, files, made = without_index_files(open_store)
    store.abandon()
    files.boots += 1  # no sync is known to have covered the index: its files are deleted
    for _ in range(2):  # the second start is one after a kill
        store = open_store(files=files)
        assert bodies(store) == made
        store.abandon()
    files.refusals = 0
    store = open_store(files=files)
    assert (bodies(store), store.dispatch_backlog_bytes) == (made, 0)
    store.close()


@pytest.mark.parametrize("count", [1, 10, 51])
def test_a_start_on_a_full_disk_after_a_kill_keeps_the_newest_unit(
    open_store: Open, count: int
) -> None:
    """Also if it is the first one of its file, which cannot be made again."""
    files = NoNewFiles()
    store = open_store(files=files, index_enabled=False)
    made = fill(store, count)
    store.abandon()
    files.kind, files.refusals = "consumequeue", 10**6
    files.room_bytes = 0
    for _ in range(3):
        again = open_store(files=files, index_enabled=False)
        assert bodies(again) == made
        assert again.dispatch_backlog_bytes == 0
        again.abandon()


def test_units_do_not_wait_for_keys_after_a_full_disk(open_store: Open) -> None:
    store = open_store()
    made = fill(store, 1000)
    store.close()
    for path in ("consumequeue", "index"):
        shutil.rmtree(store.paths.root / path)
    files = NoNewFiles()
    files.kind, files.refusals = "index", 10**6
    files.room_bytes = 2000
    store = open_store(files=files)
    assert len(bodies(store)) == 100
    files.room_bytes = None
    store.clean()
    assert bodies(store) == made
    assert store.dispatch_backlog_bytes > 0
    files.refusals = 0
    store.clean()
    assert store.dispatch_backlog_bytes == 0
    for number in (0, 500, 999):
        assert len(store.query(TOPIC, f"k{number}", 9, 0, 2**62).records) == 1


def test_a_start_on_a_full_disk_says_that_the_store_is_open(
    open_store: Open, tmp_path: Path
) -> None:
    """Its file cannot get another block: the next start must know a kill from a power cut."""
    files = FaultyFiles()
    store = open_store(files=files)
    put(store)
    met = (tmp_path / "abort").read_bytes()
    files.room_bytes = 0
    store.abandon()
    (tmp_path / "abort").write_bytes(b"1" + met)  # of a longer process id
    store = open_store(files=files)
    assert (tmp_path / "abort").read_bytes() == b" " + met
    assert bodies(store) == [b"body"]


@pytest.mark.parametrize("ending", ["closed", "killed"])
@pytest.mark.parametrize("key_count", [127, 4000])
def test_keys_without_space_inside_an_index_file_are_added_by_the_next_start(
    open_store: Open, ending: str, key_count: int
) -> None:
    """Space is reserved in steps, so keys may be missing in a file that is not full."""
    files = FaultyFiles()
    many = {
        "commit_log_file_bytes": 1024 * 1024,
        "consume_queue_file_bytes": 20 * 800,
        "index_entries": 200_000,
    }
    store = open_store(files=files, **many)
    put(store)
    files.room_bytes = 0
    count = 0
    while not store.dispatch_backlog_bytes:
        keys = " ".join(f"{count}-{number}" for number in range(key_count))
        put(store, properties={"KEYS": keys})
        count += 1
    assert count > 1
    if ending == "closed":
        store.close()
    else:
        store.abandon()
    files.room_bytes = None
    store = open_store(files=files, **many)
    assert store.dispatch_backlog_bytes == 0
    for number in (0, key_count // 2, key_count - 1):
        assert len(store.query(TOPIC, f"{count - 1}-{number}", 9, 0, 2**62).records) == 1
