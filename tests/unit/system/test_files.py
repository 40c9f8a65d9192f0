"""The machine's files behind the seam: durable writes, mappings, locks, disk use."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import pytest

from cometmq.system.files import (
    DiskUsage,
    Entry,
    Files,
    find_in_mapping,
    load_with_backup,
    save_with_backup,
)
from support.stores.watched_mapping import WatchedMapping


@pytest.fixture
def files() -> Files:
    return Files()


def test_a_directory_lists_its_entries_by_name(files: Files, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"12")
    (tmp_path / "a").mkdir()
    first, second = files.entries(tmp_path)
    assert (first.name, first.is_dir) == ("a", True)
    assert second == Entry("b", 2, False)
    assert files.entries(tmp_path / "missing") == []


def test_what_is_missing_is_no_error_where_it_need_not_be_there(
    files: Files, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    assert files.read(missing) is None
    assert not files.exists(missing)
    files.remove(missing)
    files.remove_tree(missing)


def test_whole_files_are_written_renamed_and_removed(files: Files, tmp_path: Path) -> None:
    path, target = tmp_path / "x", tmp_path / "y"
    files.write(path, b"one")
    files.write(target, b"two, longer")
    files.rename(path, target)
    files.sync_dir(tmp_path)
    assert files.read(target) == b"one"
    assert not files.exists(path)
    files.make_dirs(tmp_path / "d" / "e")
    files.remove_tree(tmp_path / "d")
    files.remove(target)
    assert files.entries(tmp_path) == []


@pytest.mark.parametrize("keep_open", [True, False])
def test_a_mapped_file_is_sparse_until_room_is_reserved(
    files: Files, tmp_path: Path, keep_open: bool
) -> None:
    size = 1024 * 1024
    file = files.open_mapped(tmp_path / "m", size, create=True, keep_open=keep_open)
    assert (tmp_path / "m").stat().st_size == size
    assert (tmp_path / "m").stat().st_blocks == 0
    file.reserve(0, 64 * 1024)
    assert (tmp_path / "m").stat().st_blocks * 512 >= 64 * 1024
    file.map[5:8] = b"abc"
    file.sync()
    file.advise_random()
    file.close()
    file.sync()
    assert (tmp_path / "m").read_bytes()[:9] == b"\0\0\0\0\0abc\0"
    assert bytes(file.map[5:8]) == b"abc"


def test_whole_pages_are_reserved(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write to a mapping needs all blocks of a page, which is 64 KiB on some machines."""
    monkeypatch.setattr(mmap, "PAGESIZE", 64 * 1024)
    path = tmp_path / "m"
    with closing(files.open_mapped(path, 150_000, create=True)) as file:
        file.reserve(70_000, 70_020)
        assert path.stat().st_blocks * 512 >= 64 * 1024
        file.reserve(0, 1)
        assert 2 * 64 * 1024 <= path.stat().st_blocks * 512 < 150_000
        file.reserve(140_000, 140_020)
        assert path.stat().st_blocks * 512 >= 150_000


@pytest.mark.parametrize("place", [0, 1, 4091, 4092, None])
@pytest.mark.parametrize("stop", [4094, 4095, 4096, 5000])
@pytest.mark.parametrize("start", [0, 1, 4092, 4093, 4096])
def test_a_search_finds_what_bytes_find_and_ends_before_the_last_byte(
    place: int | None, stop: int, start: int
) -> None:
    with WatchedMapping(-1, 4096) as mapping:
        if place is not None:
            mapping[place : place + 4] = b"abcd"
        wanted = mapping[:].find(b"abcd", start, stop)
        assert find_in_mapping(mapping, b"abcd", start, stop) == wanted


def test_what_is_written_during_a_sync_stays(files: Files, tmp_path: Path) -> None:
    pages, rounds = 64, 50
    file = files.open_mapped(tmp_path / "m", pages * 4096, create=True, keep_open=False)
    done = threading.Event()

    def sync() -> None:
        while not done.is_set():
            file.sync()

    syncing = threading.Thread(target=sync)
    syncing.start()
    try:
        for turn in range(rounds):
            for page in range(pages):
                file.map[page * 4096 + turn * 8 : page * 4096 + turn * 8 + 8] = turn.to_bytes(8)
    finally:
        done.set()
        syncing.join()
    wanted = b"".join(turn.to_bytes(8) for turn in range(rounds)).ljust(4096, b"\0") * pages
    assert bytes(file.map[:]) == wanted
    file.close()
    assert (tmp_path / "m").read_bytes() == wanted


def test_the_pages_of_a_large_deleted_file_are_given_back_by_another_thread(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, close, done = [], os.close, threading.Event()
    known: set[int | None] = set()

    def spy(descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        close(descriptor)
        closed.append((inode, threading.get_ident()))
        known.update(thread.ident for thread in threading.enumerate())
        done.set()

    file = files.open_mapped(tmp_path / "large", 64 << 20, create=True)
    file.write(0, b"x")
    inode = (tmp_path / "large").stat().st_ino
    monkeypatch.setattr(os, "close", spy)
    part = memoryview(file.map)[:1]
    file.close()
    file.close()
    files.remove(tmp_path / "large")
    del file
    here = threading.get_ident()
    assert bytes(part) == b"x"
    assert all(thread == here for _, thread in closed), "it is still mapped"
    done.clear()
    del part
    assert done.wait(60)
    assert closed[-1][0] == inode
    assert closed[-1][1] != here
    assert closed[-1][1] in known, "no thread may begin while the interpreter ends"


CLOSES_LATE = """
import os, sys, threading
from pathlib import Path
from cometmq.system.files import Files

file = Files().open_mapped(Path(sys.argv[1]), 64 << 20, create=True)
close, here = os.close, threading.get_ident()

def close_late(descriptor):
    if threading.get_ident() != here:
        threading.Event().wait(0.2)
        print("closed", flush=True)
    close(descriptor)

os.close = close_late
file.close()
del file
"""


def test_an_interpreter_ends_after_its_large_files_are_closed(tmp_path: Path) -> None:
    """CPython before 3.11.6 may crash if a thread begins while it ends."""
    command = [sys.executable, "-c", CLOSES_LATE, str(tmp_path / "large")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr


def test_a_file_made_anew_forgets_its_old_bytes(files: Files, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"x" * 100)
    with closing(files.open_mapped(tmp_path / "m", 50, create=True)) as file:
        assert not any(file.map[:])


def test_a_file_that_is_shorter_than_asked_is_not_mapped(files: Files, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"x" * 100)
    with pytest.raises(OSError, match="cannot map 200 bytes"):
        files.open_mapped(tmp_path / "m", 200)
    with pytest.raises(FileNotFoundError):
        files.open_mapped(tmp_path / "n", 200)


def test_a_read_only_mapping_refuses_writes(files: Files, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"x" * 100)
    file = files.open_mapped(tmp_path / "m", 100, read_only=True)
    with closing(file), pytest.raises(TypeError):
        file.map[0:1] = b"y"


@pytest.mark.parametrize(("start", "stop"), [(0, 300_000), (10, 20), (65_536, 131_072), (7, 7)])
def test_zeroing_takes_away_exactly_what_is_asked(
    files: Files, tmp_path: Path, start: int, stop: int
) -> None:
    file = files.open_mapped(tmp_path / "m", 300_000, create=True)
    file.map[:] = b"\x01" * 300_000
    assert file.zero(start, stop) == stop - start
    data = file.map[:]
    assert not any(data[start:stop])
    assert data.count(b"\x01") == 300_000 - (stop - start)
    assert file.zero(start, stop) == 0
    file.close()


def test_holes_are_not_looked_at(files: Files, tmp_path: Path) -> None:
    file = files.open_mapped(tmp_path / "m", 1024 * 1024, create=True)
    assert sum(stop - start for start, stop in file.data_ranges(0, 1024 * 1024)) == 0
    file.map[500_000] = 1
    ranges = file.data_ranges(0, 1024 * 1024)
    assert any(start <= 500_000 < stop for start, stop in ranges)
    assert sum(stop - start for start, stop in ranges) < 1024 * 1024
    file.close()


def test_the_use_of_a_disk_is_rounded_up_to_percents() -> None:
    assert DiskUsage(0, 100).ratio == 0
    assert DiskUsage(1, 999).ratio == 0.01
    assert DiskUsage(750, 250).ratio == 0.75
    assert DiskUsage(751, 249).ratio == 0.76
    assert DiskUsage(0, 0).ratio == 0


def test_the_disk_of_a_path_that_is_not_there_yet_is_known(files: Files, tmp_path: Path) -> None:
    usage = files.usage(tmp_path / "a" / "b" / "c")
    assert usage.used_bytes > 0
    assert usage.available_bytes > 0


def test_the_time_of_the_last_write_is_known(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"")
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    assert files.modified_ms(path) == 1_700_000_000_123


def test_a_lock_keeps_other_processes_out_until_it_is_released(
    files: Files, tmp_path: Path
) -> None:
    path = tmp_path / "lock"
    lock = files.lock(path, b"mine")
    assert path.read_bytes() == b"mine"
    assert _locked_elsewhere(path)
    with pytest.raises(BlockingIOError):
        files.lock(path, b"mine too")
    lock.release()
    lock.release()
    assert not _locked_elsewhere(path)


def test_a_process_lock_as_java_takes_it_collides_with_ours(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import fcntl, os, sys\n"
        "descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError):
            files.lock(path, b"mine")
        holder.communicate()
    files.lock(path, b"mine").release()


def _locked_elsewhere(path: Path) -> bool:
    code = (
        "import sys, pathlib\n"
        "from cometmq.system.files import Files\n"
        "try:\n"
        "    Files().lock(pathlib.Path(sys.argv[1]), b'theirs')\n"
        "except BlockingIOError:\n"
        "    sys.exit(7)\n"
    )
    return subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 7


# --- small files with a backup --------------------------------------------------------------------


def test_a_saved_file_keeps_its_predecessor(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "config" / "x.json"
    save_with_backup(files, path, b"one")
    save_with_backup(files, path, b"two")
    assert path.read_bytes() == b"two"
    assert (tmp_path / "config" / "x.json.bak").read_bytes() == b"one"
    assert not (tmp_path / "config" / "x.json.tmp").exists()


class Stops(Files):
    """A disk that stops at its nth operation."""

    def __init__(self, after: int) -> None:
        self._left = after

    def _step(self) -> None:
        if self._left == 0:
            raise OSError(errno.EIO, "stopped")
        self._left -= 1

    def write(self, path: Path, data: bytes) -> None:
        self._step()
        path.write_bytes(data[: len(data) // 2])  # a torn write comes before the whole one
        self._step()
        super().write(path, data)

    def rename(self, path: Path, target: Path) -> None:
        self._step()
        super().rename(path, target)


@pytest.mark.parametrize("after", range(6))
def test_a_crash_at_any_step_leaves_the_old_or_the_new_content(tmp_path: Path, after: int) -> None:
    path = tmp_path / "x"
    save_with_backup(Files(), path, b"old")
    try:
        save_with_backup(Stops(after), path, b"new!")
        saved = True
    except OSError:
        saved = False
    assert saved == (after == 5)
    met = load_with_backup(Files(), path, bytes)
    assert met == (b"new!" if saved else b"old")


def _number(data: bytes) -> int:
    return int(data)


@pytest.mark.parametrize(
    ("content", "backup", "met"),
    [
        (b"1", b"2", 1),
        (b"", b"2", 2),
        (None, b"2", 2),
        (b"x", b"2", 2),
        (None, None, None),
        (b"", b"", None),
    ],
)
def test_the_backup_stands_in_for_a_file_that_is_missing_empty_or_broken(
    files: Files,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: bytes | None,
    backup: bytes | None,
    met: int | None,
) -> None:
    for name, data in (("x", content), ("x.bak", backup)):
        if data is not None:
            (tmp_path / name).write_bytes(data)
    assert load_with_backup(files, tmp_path / "x", _number) == met
    assert (str(tmp_path / "x.bak") in caplog.text) == (met == 2)


@pytest.mark.parametrize(("content", "backup"), [(b"x", b"y"), (b"x", None), (None, b"y")])
def test_content_that_nobody_can_read_is_named(
    files: Files, tmp_path: Path, content: bytes | None, backup: bytes | None
) -> None:
    for name, data in (("x", content), ("x.bak", backup)):
        if data is not None:
            (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=str(tmp_path / "x")):
        load_with_backup(files, tmp_path / "x", _number)


def test_what_is_on_the_disk_only_is_told_and_brought_in() -> None:
    """Not below pytest's folder, which may be in memory as a whole."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder) / "file"
        path.write_bytes(bytes(range(256)) * 4096)
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        mapped = Files().open_mapped(path, 1 << 20, keep_open=False)
        assert not mapped.is_resident(0, 1 << 20)
        mapped.bring_in(8000, 9000)
        assert mapped.is_resident(8000, 9000)
        mapped.bring_in(0, 1 << 20)
        assert mapped.is_resident(0, 1 << 20)
        assert mapped.map[8000:8003] == b"\x40\x41\x42"
        mapped.close()


def test_looks_at_the_page_cache_leave_no_garbage(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    mapped = Files().open_mapped(tmp_path / "file", 1 << 20, keep_open=False)
    gc.collect()
    gc.disable()
    try:
        for pages in range(1, 100):
            mapped.is_resident(0, pages * mmap.PAGESIZE)
        assert gc.collect() == 0
    finally:
        gc.enable()
    mapped.close()
