"""When bytes are on the disk, who says so, and what a failing disk ends."""

from __future__ import annotations

import errno
import logging
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.store import MessageStore, StoreUnavailableError
from cometmq.store.lifecycle import loader
from cometmq.store.lifecycle.checkpoint import Checkpoint, Position
from cometmq.system.files import MappedFile
from support.checks.manual_clock import ManualClock
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import TOPIC, bodies, opened, put

Open = Callable[..., MessageStore]


def checkpoint_of(root: Path) -> Checkpoint:
    return Checkpoint.decode((root / "checkpoint").read_bytes())


def test_a_flush_says_up_to_where_the_log_is_on_the_disk(store: MessageStore) -> None:
    put(store)
    assert store.flushed_to == 0
    assert store.flush() == store.written_to == store.flushed_to


def test_a_flush_waits_for_enough_pages(store: MessageStore) -> None:
    put(store, b"x" * 4096 * 2)
    assert store.flush(4) == 0
    put(store, b"x" * 4096 * 1)
    assert store.flush(4) == 0
    put(store, b"x" * 4096)
    assert store.flush(4) == store.written_to


def test_a_flush_reaches_over_file_ends(open_store: Open) -> None:
    files = FaultyFiles()
    store = open_store(files=files)
    for _ in range(40):
        put(store, b"x" * 1000)
    assert store.flush() == store.written_to
    syncs = files.syncs
    assert store.flush() == store.written_to
    assert files.syncs == syncs


def test_flushing_in_one_thread_while_another_appends_keeps_every_message(
    open_store: Open,
) -> None:
    store = open_store()
    done = threading.Event()
    reached: list[int] = []

    def flush_on() -> None:
        while not done.is_set():
            reached.append(store.flush())
            store.flush_queues()
            store.write_checkpoint()

    flusher = threading.Thread(target=flush_on)
    flusher.start()
    made = [b"%d" % number for number in range(3000)]
    for body in made:
        put(store, body, properties={"KEYS": "k"})
    done.set()
    flusher.join()
    assert reached == sorted(reached)
    assert store.flush() == store.written_to
    assert bodies(store) == made


def test_the_checkpoint_only_says_what_is_on_the_disk(
    store: MessageStore, clock: ManualClock, tmp_path: Path
) -> None:
    first = put(store, properties={"KEYS": "a"})
    first_ms = clock.now_ms()
    store.flush()
    store.write_checkpoint()
    log_only = Position(log_offset=first.size_bytes)
    assert checkpoint_of(tmp_path) == Checkpoint(physic_ms=first_ms, position=log_only)
    clock.advance(5000)
    second = put(store, properties={"KEYS": "b"})
    store.flush_queues()
    store.write_checkpoint()
    (index_file,) = (tmp_path / "index").iterdir()
    position = Position(
        log_offset=first.size_bytes,
        queues_offset=first.size_bytes,  # units without records on disk are worth nothing
        index_name=int(index_file.name),
        index_entries=3,
        index_offset=second.log_offset,
    )
    assert checkpoint_of(tmp_path) == Checkpoint(first_ms, first_ms + 5000, position=position)
    store.flush()
    store.write_checkpoint()
    end = store.written_to
    position = replace(position, log_offset=end, queues_offset=end)
    assert checkpoint_of(tmp_path).position == position


def test_a_checkpoint_that_rocketmq_has_changed_names_no_offsets() -> None:
    ours = Checkpoint(1, 2, 3, position=Position(log_offset=7))
    assert Checkpoint.decode(ours.encode()) == ours
    for number in (0, 8, 16):
        data = bytearray(ours.encode())
        data[number + 7] ^= 5
        assert Checkpoint.decode(bytes(data)).position is None
    for number in range(512, 512 + 84):
        data = bytearray(ours.encode())
        data[number] ^= 1
        assert Checkpoint.decode(bytes(data)).position is None


@pytest.mark.parametrize("bit", range(3 * 64))
def test_one_changed_bit_in_a_time_of_the_checkpoint_is_repaired(bit: int) -> None:
    checkpoint = Checkpoint(2**40 + 5, 2**40 + 3, 2**40, position=Position(log_offset=7))
    data = bytearray(checkpoint.encode())
    data[bit // 8] ^= 1 << bit % 8
    assert Checkpoint.decode(bytes(data)) == checkpoint


def test_the_checkpoint_says_when_a_full_index_file_is_on_the_disk(
    store: MessageStore, clock: ManualClock, tmp_path: Path
) -> None:
    for _ in range(70):
        clock.advance(10)
        put(store, properties={"KEYS": "k"})
    store.flush_queues()
    store.write_checkpoint()
    assert checkpoint_of(tmp_path).index_ms == clock.now_ms() - 70


def test_a_partial_flush_of_queues_vouches_for_nothing(store: MessageStore, tmp_path: Path) -> None:
    put(store)
    store.flush_queues(2)
    store.write_checkpoint()
    assert checkpoint_of(tmp_path).logics_ms == 0


@pytest.mark.parametrize("step", ["flush", "flush_queues", "write_checkpoint"])
def test_after_a_failed_sync_nothing_more_is_stored(
    open_store: Open, tmp_path: Path, step: str
) -> None:
    files = FaultyFiles()
    store = open_store(files=files)
    put(store, b"before")
    files.fail_sync = True
    with pytest.raises(StoreUnavailableError, match="the disk is gone"):
        getattr(store, step)()
    files.fail_sync = False
    syncs = files.syncs
    for again in (store.flush, store.flush_queues, store.write_checkpoint, lambda: put(store)):
        with pytest.raises(StoreUnavailableError, match="a sync has failed"):
            again()
    assert files.syncs == syncs
    assert bodies(store) == [b"before"]
    store.close()
    assert (tmp_path / "abort").exists()


def test_a_failed_sync_at_the_end_leaves_the_mark_of_a_crash(
    open_store: Open, tmp_path: Path
) -> None:
    files = FaultyFiles()
    store = open_store(files=files)
    put(store)
    files.fail_sync = True
    with pytest.raises(StoreUnavailableError):
        store.close()
    assert (tmp_path / "abort").exists()
    files.fail_sync = False
    assert bodies(open_store()) == [b"body"]


def test_a_deleted_topic_does_not_disturb_the_flush(store: MessageStore) -> None:
    put(store)
    put(store, topic="other")
    assert store.delete_topic(TOPIC)
    assert not store.delete_topic(TOPIC)
    store.flush_queues()
    assert store.queue_keys() == [("other", 0)]


MANY = 300
"""Queues; from 256 on they are synced with the file system."""


def test_thousands_of_queues_are_synced_with_one_call(open_store: Open) -> None:
    files = FaultyFiles()
    store = open_store(files=files, consume_queue_file_bytes=400)
    put(store, queue_id=MANY)
    store.flush()
    store.flush_queues(0)
    of_one = count_syncs(files, store)
    for queue_id in range(MANY):
        put(store, queue_id=queue_id)
    store.flush()

    assert count_syncs(files, store) <= of_one + 1
    assert count_syncs(files, store) <= of_one  # nothing is left

    put(store, queue_id=5)  # and a queue is listed again once it has new units
    assert count_syncs(files, store) > of_one


def count_syncs(files: FaultyFiles, store: MessageStore) -> int:
    before = files.syncs
    store.flush_queues(0)
    return files.syncs - before


def test_many_queues_are_whole_after_a_power_cut_that_follows_their_flush(
    open_store: Open,
) -> None:
    files = FaultyFiles()
    store = open_store(files=files, consume_queue_file_bytes=400)
    for queue_id in range(MANY):
        put(store, b"%d" % queue_id, queue_id=queue_id)
    store.flush()
    store.flush_queues(0)
    store.write_checkpoint()
    store.abandon()
    files.crash(lambda path, number: False)

    again = open_store(files=files, consume_queue_file_bytes=400)
    assert [bodies(again, queue_id=n) for n in range(MANY)] == [[b"%d" % n] for n in range(MANY)]


def test_a_failed_sync_of_many_queues_ends_all_writes(open_store: Open) -> None:
    files = FaultyFiles()
    store = open_store(files=files, consume_queue_file_bytes=400)
    for queue_id in range(MANY):
        put(store, queue_id=queue_id)
    store.flush()
    files.fail_sync = True
    with pytest.raises(StoreUnavailableError, match="the disk is gone"):
        store.flush_queues(0)
    files.fail_sync = False
    with pytest.raises(StoreUnavailableError, match="a sync has failed"):
        put(store)


class FewDescriptors(FaultyFiles):
    """Opens no file at one of the calls that open one for a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_left = 0
        self.synced_directories: set[Path] = set()

    def _open(self) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise OSError(errno.EMFILE, "Too many open files")

    def sync_dir(self, path: Path) -> None:
        self._open()
        super().sync_dir(path)
        self.synced_directories.add(path)

    def write_part(self, *arguments: Any, **more: Any) -> None:
        self._open()
        super().write_part(*arguments, **more)

    def open_mapped(self, *arguments: Any, **more: Any) -> MappedFile:
        self._open()
        return super().open_mapped(*arguments, **more)

    def overwrite(self, path: Path, data: bytes) -> None:
        self._open()
        super().overwrite(path, data)


@pytest.mark.parametrize(("queues", "calls"), [(3, range(1, 20)), (MANY, (1, MANY // 2, 2 * MANY))])
def test_a_flush_without_a_descriptor_loses_nothing(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    queues: int,
    calls: Sequence[int],
) -> None:
    """Whichever file cannot be opened, the next flush syncs what this one did not."""
    monkeypatch.setattr(loader, "BUFFERS_MAX", MANY)  # else each store has a file of 64 MiB
    caplog.set_level(logging.INFO)
    outcomes = {refused_without_a_descriptor(tmp_path / str(call), call, queues) for call in calls}

    assert outcomes == {True, False}, "the calls are no more than those of a flush"
    assert "raise the limit of open files" in caplog.text
    assert "files are synced again" in caplog.text


def refused_without_a_descriptor(root: Path, call: int, queues: int) -> bool:
    """Whether a flush failed because one call opened no file; all is there after a power cut."""
    files = FewDescriptors()
    more = {"consume_queue_file_bytes": 400, "mapped_queue_files_max": 1}
    store = opened(root, files=files, **more)
    for queue_id in range(queues):
        put(store, queue_id=queue_id, properties={"KEYS": "k"})
    files.calls_left = call
    is_refused = False
    try:
        store.write_out()
    except StoreUnavailableError:
        is_refused = True
    files.calls_left = 0
    store.write_out()
    store.abandon()
    files.crash(lambda path, number: False)

    folders = {root / "consumequeue" / TOPIC / str(n) for n in range(queues)}
    if queues < MANY:  # else the names are synced with the file system
        assert {root / "index", *folders} <= files.synced_directories, f"call {call}"
    again = opened(root, files=files, **more)
    met = [bodies(again, queue_id=n) for n in range(queues)]
    assert met == [[b"body"]] * queues, f"call {call}"
    return is_refused


def test_a_sync_that_fails_without_a_descriptor_left_is_logged(
    open_store: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next start must know of it, too, though no file can be opened to say so."""
    store = open_store(files=(files := FaultyFiles()))
    put(store)
    files.fail_sync = True
    with soft_limit_of_files(3), pytest.raises(StoreUnavailableError, match="the disk is gone"):
        store.flush()
    files.fail_sync = False

    assert "store refuses messages until restart" in caplog.text
    store.abandon()
    assert (tmp_path / "abort").read_bytes().strip(b"\0") == b""


@contextmanager
def soft_limit_of_files(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
