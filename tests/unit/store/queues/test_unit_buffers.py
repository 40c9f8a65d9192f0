"""Queues whose files are not mapped: their newest units are in buffers."""

from __future__ import annotations

import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.store import MessageStore, StoreUnavailableError
from cometmq.store.lifecycle import loader
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_reader import GetStatus
from cometmq.system.files import MappedFile
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import bodies, opened
from support.stores.small_stores import put as put_one

QUEUES = 40
NEXT_ENTRY_AT = 36
"""In the header of an index file."""
Open = Callable[..., MessageStore]


def crowded(open_store: Open, **changes: object) -> MessageStore:
    """A store of which one queue file may be mapped."""
    return open_store(**{"mapped_queue_files_max": 1, **changes})


def topic_of(number: int) -> str:
    return f"topic-{number % 5}"


def fill(store: MessageStore, rounds: int, first: int = 0) -> None:
    for at in range(first, first + rounds):
        for number in range(QUEUES):
            body = b"%d-%d" % (number, at)
            stored = put_one(store, body, topic=topic_of(number), queue_id=number)
            assert stored.queue_offset == at


def check(store: MessageStore, count: int) -> None:
    for number in range(QUEUES):
        expected = [b"%d-%d" % (number, at) for at in range(count)]
        assert bodies(store, topic_of(number), number) == expected


@pytest.fixture(autouse=True)
def few_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "BUFFERS_MAX", 1000)


@pytest.mark.parametrize("rounds", [1, 24, 25, 26, 49, 51, 120])
def test_all_units_are_read_from_buffers_and_files(open_store: Open, rounds: int) -> None:
    store = crowded(open_store)
    fill(store, rounds)
    assert store._loader.buffers.in_use >= QUEUES - 2
    check(store, rounds)
    fill(store, 7, rounds)  # reading has mapped other queues
    check(store, rounds + 7)


def test_reads_at_the_end_of_a_queue_map_no_file(open_store: Open) -> None:
    store = crowded(open_store)
    fill(store, 60)
    restored = store._loader.limit.restored
    for number in range(2, QUEUES):
        found = store.get(topic_of(number), number, 59, 32)
        assert (found.status, found.count) == (GetStatus.FOUND, 1)
    assert store._loader.limit.restored == restored


@pytest.mark.parametrize("buffers_max", [1, 2, 7])
def test_fewer_buffers_than_queues_are_taken_in_turn(
    open_store: Open, buffers_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "BUFFERS_MAX", buffers_max)
    store = crowded(open_store)
    fill(store, 30)
    assert store._loader.buffers.in_use <= buffers_max
    check(store, 30)
    store.close()
    check(crowded(open_store), 30)


def test_units_in_buffers_survive_the_end_of_the_process(open_store: Open, tmp_path: Path) -> None:
    store = crowded(open_store)
    fill(store, 30)
    store.abandon()
    assert (tmp_path / "unitbuffers").exists()
    again = crowded(open_store)
    check(again, 30)
    fill(again, 30, 30)
    again.abandon()
    check(crowded(open_store, mapped_queue_files_max=0), 60)


@pytest.mark.parametrize("written_bytes", [20 * 3 + part for part in range(1, 20)])
@pytest.mark.parametrize("rounds", [4, 7])
def test_a_buffer_of_which_a_full_disk_took_a_part_is_written_again(
    open_store: Open, tmp_path: Path, written_bytes: int, rounds: int
) -> None:
    store = crowded(open_store)
    for at in range(rounds):
        for number in range(QUEUES):
            put_one(
                store,
                b"%d-%d" % (number, at),
                topic=topic_of(number),
                queue_id=number,
                properties={"TAGS": "TagA"},
            )
    number = QUEUES - 3
    units = store.consume_queue_units(topic_of(number), number, 0, rounds)
    path = tmp_path / "consumequeue" / topic_of(number) / str(number) / f"{0:020d}"
    assert not any(path.read_bytes()), "its units are in a buffer"
    data = b"".join(struct.pack(">qiq", *unit) for unit in units)[:written_bytes]
    store.abandon()
    path.write_bytes(data.ljust(path.stat().st_size, b"\0"))

    again = crowded(open_store)
    check(again, rounds)
    assert again.consume_queue_units(topic_of(number), number, 0, rounds) == units
    fill(again, 3, rounds)
    check(again, rounds + 3)


def test_keys_survive_the_end_of_the_process_before_the_index_counts_them(
    open_store: Open, tmp_path: Path
) -> None:
    store = crowded(open_store, index_slots=7, index_entries=1000)
    for number in range(2 * QUEUES):
        put_one(
            store,
            b"%d" % number,
            topic=topic_of(number % QUEUES),
            queue_id=number % QUEUES,
            properties={"KEYS": f"k{number}"},
        )
    assert store._loader.buffers.in_use > 0
    store.abandon()
    (path,) = (tmp_path / "index").iterdir()
    with path.open("r+b") as file:  # the process ended before it wrote the header
        file.seek(NEXT_ENTRY_AT)
        next_entry = int.from_bytes(file.read(4))
        file.seek(NEXT_ENTRY_AT)
        file.write((next_entry - 3).to_bytes(4))
    again = crowded(open_store, index_slots=7, index_entries=1000)
    for number in range(2 * QUEUES):
        found = again.query(topic_of(number % QUEUES), f"k{number}", 9, 0, 2**62).records
        assert len(found) == 1, number


def test_a_clean_stop_leaves_nothing_in_buffers(open_store: Open, tmp_path: Path) -> None:
    store = crowded(open_store)
    fill(store, 30)
    store.close()
    assert not (tmp_path / "unitbuffers").exists()
    check(crowded(open_store, mapped_queue_files_max=0), 30)


def test_buffers_of_an_earlier_boot_are_ignored(open_store: Open, tmp_path: Path) -> None:
    """After a power cut their content is unknown, and the log has all records."""
    files = FaultyFiles()
    store = crowded(open_store, files=files)
    fill(store, 10)
    store.abandon()
    files.boots += 1
    (tmp_path / "unitbuffers").write_bytes(b"\1" * 4096)
    again = crowded(open_store, files=files)
    check(again, 10)
    assert again._loader.buffers.in_use == 0


def test_a_flush_brings_units_in_buffers_to_the_disk(open_store: Open) -> None:
    files = FaultyFiles()
    store = crowded(open_store, files=files)
    fill(store, 30)
    in_use = store._loader.buffers.in_use
    store.write_out()
    assert store._loader.buffers.in_use == in_use
    store.abandon()
    files.crash(lambda path, number: False)
    again = crowded(open_store, files=files)
    check(again, 30)
    assert again._topic_deletion._new == []


def test_a_topic_that_is_deleted_leaves_no_units_in_buffers(open_store: Open) -> None:
    store = crowded(open_store)
    fill(store, 10)
    in_use = store._loader.buffers.in_use
    store.delete_topic(topic_of(3))
    assert store._loader.buffers.in_use == in_use - QUEUES // 5
    store.flush_queues()
    assert put_one(store, b"new", topic=topic_of(3), queue_id=3).queue_offset == 0
    assert bodies(store, topic_of(3), 3) == [b"new"]
    store.abandon()
    assert bodies(crowded(open_store), topic_of(3), 3) == [b"new"]


def test_a_write_that_fails_takes_units_back_out_of_buffers(open_store: Open) -> None:
    files = FaultyFiles()
    store = crowded(open_store, files=files)
    fill(store, 27)
    files.fail_write = True
    with pytest.raises(StoreUnavailableError):
        put_one(store, b"refused", topic=topic_of(7), queue_id=7)
    files.fail_write = False
    check(store, 27)
    store.abandon()
    again = crowded(open_store, files=files)
    check(again, 27)
    fill(again, 3, 27)
    check(again, 30)


def test_on_a_full_disk_messages_are_refused_and_go_on_with_space(open_store: Open) -> None:
    files = FaultyFiles()
    store = crowded(open_store, files=files)
    fill(store, 10)
    files.room_bytes = 0
    refused = 0
    for number in range(QUEUES, QUEUES + 5):  # each new queue needs space for its file
        with pytest.raises(StoreUnavailableError, match="disk"):
            put_one(store, b"refused", topic=topic_of(number), queue_id=number)
        refused += 1
    assert refused == 5
    check(store, 10)
    files.room_bytes = None
    fill(store, 20, 10)
    check(store, 30)
    store.close()
    check(crowded(open_store, files=FaultyFiles()), 30)


def test_flushes_in_a_thread_lose_and_repeat_nothing(open_store: Open) -> None:
    store = crowded(open_store)
    is_done = threading.Event()
    problems: list[BaseException] = []

    def flush() -> None:
        try:
            while not is_done.is_set():
                store.flush_queues()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=flush)
    thread.start()
    fill(store, 120)
    is_done.set()
    thread.join()
    assert problems == []
    check(store, 120)
    store.close()
    check(crowded(open_store, mapped_queue_files_max=0), 120)


def test_units_before_the_buffer_are_found_by_log_offset(open_store: Open) -> None:
    store = crowded(open_store)
    fill(store, 60)
    queue = store._table.find(topic_of(9), 9)
    assert queue is not None
    starts = [queue.unit(at)[0] for at in range(60)]
    assert [queue.first_at_or_after(start) for start in starts] == list(range(60))
    assert [queue.end_at(start) for start in starts] == list(range(60))


def test_a_store_that_is_open_again_is_the_same_without_a_limit(
    open_store: Open, tmp_path: Path
) -> None:
    store = crowded(open_store)
    fill(store, 55)
    ends = {queue.queue_id: queue.ends() for queue in store._table.all()}
    store.close()
    again = opened(tmp_path)
    assert {queue.queue_id: queue.ends() for queue in again._table.all()} == ends
    again.abandon()


# --- several things at once -------------------------------------------------------------------


def test_units_in_buffers_of_a_killed_process_wait_for_space(open_store: Open) -> None:
    """A start on a full disk dispatches them later, and gives no offset of theirs away."""
    files = FaultyFiles()
    store = crowded(open_store, files=files, index_enabled=False)
    fill(store, 24)
    newest = store._table.find(topic_of(39), 39)
    assert newest is not None
    newest.write_and_release_buffer()
    store.abandon()
    files.room_bytes = 0
    again = crowded(open_store, files=files, index_enabled=False)
    with pytest.raises(StoreUnavailableError):
        put_one(again, b"refused", topic=topic_of(1), queue_id=1)
    again.abandon()
    again = crowded(open_store, files=files, index_enabled=False)
    files.room_bytes = None
    again.clean()
    check(again, 24)


def test_a_buffer_that_cannot_be_written_ends_all_syncs(open_store: Open) -> None:
    files = FaultyFiles()
    store = crowded(open_store, files=files, index_enabled=False)
    for number in range(300):
        put_one(store, b"x", topic=topic_of(number), queue_id=number)
    store.flush()
    files.fail_write = True
    with pytest.raises(StoreUnavailableError, match="the disk is gone"):
        store.flush_queues()
    files.fail_write = False
    with pytest.raises(StoreUnavailableError):
        store.write_out()
    store.abandon()
    files.crash(lambda path, number: False)
    again = crowded(open_store, files=files, index_enabled=False)
    for number in range(300):
        assert bodies(again, topic_of(number), number) == [b"x"]


class HookedFiles(FaultyFiles):
    """Runs a function in another thread while a queue file is mapped again."""

    hook: Callable[[], object] | None = None

    def open_mapped(self, path: Path, size_bytes: int, **options: Any) -> MappedFile:
        found = super().open_mapped(path, size_bytes, **options)
        hook, self.hook = self.hook, None
        if hook is not None:
            thread = threading.Thread(target=hook)
            thread.start()
            thread.join()
        return found


def released(open_store: Open, files: FaultyFiles) -> tuple[MessageStore, ConsumeQueue]:
    """A store with a queue that is neither mapped nor in a buffer."""
    store = crowded(open_store, files=files, index_enabled=False)
    fill(store, 30)
    queue = store._table.find(topic_of(9), 9)
    assert queue is not None
    queue.write_and_release_buffer()
    queue.segments.release()
    return store, queue


def test_a_flush_while_a_queue_is_mapped_again_syncs_its_files(open_store: Open) -> None:
    files = HookedFiles()
    store, _ = released(open_store, files)
    files.hook = store.write_out
    store.get(topic_of(9), 9, 0, 32)
    assert files.hook is None
    store.abandon()
    files.crash(lambda path, number: False)
    check(crowded(open_store, files=files, index_enabled=False), 30)


def test_the_pages_of_a_time_search_are_read_without_the_queue(open_store: Open) -> None:
    """They are read in a thread, while the queue may be unmapped, or get messages."""
    files = HookedFiles()
    store, queue = released(open_store, files)
    pages = store.pages_for_time(topic_of(9), 9, 10**15)
    assert pages is not None
    queue.segments.release()
    limit = store._loader.limit
    before = limit.mapped, limit.restored
    thread = threading.Thread(target=pages)
    thread.start()
    thread.join()
    assert (limit.mapped, limit.restored) == before
    put_one(store, b"9-30", topic=topic_of(9), queue_id=9)
    assert bodies(store, topic_of(9), 9) == [b"9-%d" % at for at in range(31)]


def test_a_rewind_during_a_sync_loses_no_later_unit(open_store: Open) -> None:
    store = crowded(open_store, index_enabled=False)
    fill(store, 10)
    queue = store._table.find(topic_of(9), 9)
    assert queue is not None
    queue.begin_sync()
    queue.rewind(queue.unit(8)[0])
    queue.end_sync()
    assert (queue.max_offset, queue.flushed_unit) == (8, 8)
    queue.put(8, 100_000, 77, 5, 1)
    queue.put(9, 100_077, 77, 5, 1)
    queue.write_and_release_buffer()
    assert [queue.unit(at)[0] for at in (8, 9)] == [100_000, 100_077]


def test_buffers_that_are_newer_than_queue_files_are_no_reason_for_gaps(
    open_store: Open, tmp_path: Path
) -> None:
    """As in a copy of a live store."""
    store = crowded(open_store)
    fill(store, 24)
    shutil.copytree(tmp_path / "consumequeue", tmp_path / "copy")
    fill(store, 20, 24)
    store.abandon()
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "copy").rename(tmp_path / "consumequeue")
    check(crowded(open_store), 44)


@pytest.mark.parametrize("content", [b"\xff" * 512, b"\x7f" * 5000, b"\1" * 37])
def test_nonsense_in_buffers_is_ignored(open_store: Open, tmp_path: Path, content: bytes) -> None:
    store = crowded(open_store)
    fill(store, 3)
    store.abandon()
    (tmp_path / "unitbuffers").write_bytes(content)
    again = crowded(open_store)
    fill(again, 3, again.next_offset(topic_of(1), 1))
    again.close()
