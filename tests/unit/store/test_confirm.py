"""A store whose readers wait for other replicas shows what they have confirmed, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.store import CONFIRMS_ALL, GetStatus, MessageStore
from cometmq.store.lifecycle.checkpoint import read_checkpoint
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock
from support.stores.small_stores import TOPIC, bodies, opened, put, small_settings

LATE_MS = 2**60


def confirming(root: Path, **changes: str) -> MessageStore:
    store = MessageStore(small_settings(root, **changes), clock=ManualClock(), confirms=True)
    store.open()
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    made = confirming(tmp_path)
    yield made
    made.close()


def test_what_is_not_confirmed_is_not_damaged(
    store: MessageStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(store)
    assert store.store_time_at(TOPIC, 0, 0) == -1
    assert "damaged" not in caplog.text


def test_readers_see_records_when_they_are_confirmed(store: MessageStore) -> None:
    ends = []
    for number in range(3):
        stored = put(store, b"%d" % number, properties={"KEYS": f"k{number}"})
        ends.append(stored.log_offset + stored.size_bytes)
    assert not store.shows_at_once
    for count, end in enumerate([0, ends[0], ends[2] - 1, ends[2]]):
        shown = min(count, 2) if end < ends[2] else 3
        store.confirm(end)
        assert store.confirmed_to == store.readable_to == end
        assert store.bounds(TOPIC, 0) == (0, shown)
        assert store.next_offset(TOPIC, 0) == 3
        assert bodies(store) == [b"0", b"1", b"2"][:shown]
        assert len(store.consume_queue_units(TOPIC, 0, 0, 9)) == shown
        for number in range(3):
            found = store.query(TOPIC, f"k{number}", 9, 0, LATE_MS)
            assert len(found.records) == (number < shown)
            at = ends[number - 1] if number else 0
            assert (store.record_at(at) is not None) == (number < shown)
        assert len(list(store.facts_from(0))) == shown


def test_a_read_behind_what_is_confirmed_waits_there(store: MessageStore) -> None:
    put(store, b"0")
    found = store.get(TOPIC, 0, 1, 9)
    assert found.status is GetStatus.OFFSET_OVERFLOW_ONE
    assert found.next_begin_offset == 1


def test_readers_never_see_less_than_before(store: MessageStore) -> None:
    store.confirm(CONFIRMS_ALL)
    put(store, b"0")
    assert bodies(store) == [b"0"]
    store.confirm(0)
    assert bodies(store) == [b"0"]
    put(store, b"1")
    assert bodies(store) == [b"0"]
    store.confirm(CONFIRMS_ALL)
    assert bodies(store) == [b"0", b"1"]


def test_listeners_are_called_when_readers_see_more(store: MessageStore) -> None:
    calls: list[int] = []
    store.notify_of_readable(lambda: calls.append(store.readable_to))
    end = put(store, b"0").size_bytes
    store.confirm(0)
    assert calls == []
    store.confirm(end)
    assert calls == [end]
    store.confirm(end)
    assert calls == [end]


@pytest.mark.parametrize("is_closed", [True, False])
def test_what_was_confirmed_is_shown_after_a_start(tmp_path: Path, is_closed: bool) -> None:
    store = confirming(tmp_path)
    end = put(store, b"0").size_bytes
    put(store, b"1")
    store.confirm(end)
    store.write_out()
    checkpoint = read_checkpoint(Files(), store.paths.checkpoint)
    assert checkpoint.confirm == end  # where RocketMQ keeps it, too
    if is_closed:
        store.close()
    else:
        store.abandon()
    again = confirming(tmp_path)
    assert bodies(again) == [b"0"]
    assert again.next_offset(TOPIC, 0) == 2
    again.close()
    plain = opened(tmp_path)
    assert bodies(plain) == [b"0", b"1"]
    plain.close()


def test_a_truncated_log_is_confirmed_up_to_its_end(store: MessageStore) -> None:
    end = put(store, b"0").size_bytes
    put(store, b"1")
    store.confirm(CONFIRMS_ALL)
    store.truncate_log(end)
    assert store.confirmed_to == end
    put(store, b"2")
    assert bodies(store) == [b"0"]


def test_with_synchronous_flush_records_are_confirmed_and_on_the_disk(tmp_path: Path) -> None:
    store = confirming(tmp_path, flush_disk_type="SYNC_FLUSH")
    end = put(store, b"0").size_bytes
    store.confirm(end)
    assert bodies(store) == []
    store.flush()
    put(store, b"1")
    store.flush()
    assert bodies(store) == [b"0"]
    store.close()


def test_a_store_that_waits_for_no_replica_shows_all(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.confirm(0)
    end = put(store, b"0").size_bytes
    assert store.shows_at_once
    assert store.confirmed_to == end
    assert bodies(store) == [b"0"]
    store.close()
