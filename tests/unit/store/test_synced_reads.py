"""With synchronous flush readers see a message once it is on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.store import GetStatus, MessageStore, StoreUnavailableError
from support.checks.manual_clock import ManualClock
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import TOPIC, bodies, opened, put


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> MessageStore:
    """A store with two messages on disk, and two that no sync has covered."""
    store = opened(tmp_path, clock=clock, flush_disk_type="SYNC_FLUSH")
    for number in range(4):
        put(store, b"%d" % number, properties={"KEYS": f"k{number}"})
        clock.advance(1000)
        if number == 1:
            store.flush()
    return store


def keys_found(store: MessageStore) -> list[int]:
    return [len(store.query(TOPIC, f"k{number}", 9, 0, 2**62).records) for number in range(4)]


Read = Callable[[MessageStore], object]
READS: list[tuple[Read, object, object]] = [
    (lambda store: store.bounds(TOPIC, 0), (0, 2), (0, 4)),
    (bodies, [b"0", b"1"], [b"0", b"1", b"2", b"3"]),
    (lambda store: store.get(TOPIC, 0, 0, 32).max_offset, 2, 4),
    (lambda store: store.get(TOPIC, 0, 2, 32).status is GetStatus.FOUND, False, True),
    (lambda store: store.get(TOPIC, 0, 2, 32).status is GetStatus.OFFSET_OVERFLOW_ONE, True, False),
    (lambda store: store.get(TOPIC, 0, 3, 32).status is GetStatus.OFFSET_OVERFLOW_ONE, True, False),
    (lambda store: store.get(TOPIC, 0, 5, 32).next_begin_offset, 2, 4),
    (lambda store: len(store.consume_queue_units(TOPIC, 0, 0, 9)), 2, 4),
    (lambda store: store.offset_at_time(TOPIC, 0, 2**62), 2, 4),
    (lambda store: store.store_time_at(TOPIC, 0, 2) > 0, False, True),
    (keys_found, [1, 1, 0, 0], [1, 1, 1, 1]),
    (lambda store: store.next_offset(TOPIC, 0), 4, 4),
]  # fmt: skip


@pytest.mark.parametrize(("read", "before", "after"), READS)
def test_a_read_sees_what_a_flush_has_covered(
    read: Read, before: object, after: object, store: MessageStore
) -> None:
    assert read(store) == before
    store.flush()
    assert read(store) == after


def test_a_record_is_found_by_its_place_when_it_is_on_disk(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH")
    stored = put(store)
    assert store.record_at(stored.log_offset) is None
    store.flush()
    assert store.record_at(stored.log_offset) is not None


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 49, 50, 51, 120])
def test_the_end_is_found_however_many_messages_wait_for_a_sync(tmp_path: Path, count: int) -> None:
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH")
    for number in range(60):
        put(store, queue_id=number % 2)
    store.flush()
    for number in range(count):
        put(store, queue_id=number % 2)
    assert (store.bounds(TOPIC, 0), store.bounds(TOPIC, 1)) == ((0, 30), (0, 30))
    store.flush()
    assert store.bounds(TOPIC, 0) == (0, 30 + (count + 1) // 2)
    assert store.bounds(TOPIC, 1) == (0, 30 + count // 2)


def test_a_new_queue_is_empty_until_the_flush(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH")
    put(store)
    assert store.get(TOPIC, 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert store.get(TOPIC, 0, 1, 32).status is GetStatus.OFFSET_OVERFLOW_ONE


def test_what_a_failed_sync_has_not_covered_stays_invisible(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = opened(tmp_path, files=files, flush_disk_type="SYNC_FLUSH")
    put(store, b"kept")
    store.flush()
    put(store, b"in doubt")
    files.fail_sync = True
    with pytest.raises(StoreUnavailableError):
        store.flush()
    assert bodies(store) == [b"kept"]


def test_what_a_killed_process_has_written_is_synced_before_it_is_read(tmp_path: Path) -> None:
    """The page cache has it, the disk may not: a consumer must not see it and lose it then."""
    files = FaultyFiles()
    store = opened(tmp_path, files=files, flush_disk_type="SYNC_FLUSH")
    put(store, b"written")
    store.abandon()
    again = opened(tmp_path, files=files, flush_disk_type="SYNC_FLUSH")
    assert bodies(again) == [b"written"]
    assert again.flushed_to == again.written_to
    again.abandon()
    files.crash(lambda path, page: False)
    after = opened(tmp_path, files=files, flush_disk_type="SYNC_FLUSH")
    assert bodies(after) == [b"written"]
    after.close()


def test_with_asynchronous_flush_a_message_is_seen_at_once(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type="ASYNC_FLUSH")
    put(store)
    assert store.flushed_to == 0
    assert len(bodies(store)) == 1
