"""A start that takes the ends of many queues from one file, and when it does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.store import MessageStore
from cometmq.store.queues import queue_ends
from cometmq.system.files import Files, MappedFile
from support.stores.small_stores import bodies, put

QUEUES = 12
Open = Callable[..., MessageStore]
Ends = dict[tuple[str, int], tuple[int, int, int, int, int]]


class ObservedFiles(Files):
    """Notes which queue files are mapped."""

    def __init__(self) -> None:
        self.queue_files: list[Path] = []

    def open_mapped(self, path: Path, size_bytes: int, **options: Any) -> MappedFile:
        if "consumequeue" in path.parts:
            self.queue_files.append(path)
        return super().open_mapped(path, size_bytes, **options)


@pytest.fixture(autouse=True)
def for_few_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_ends, "QUEUES_MIN", QUEUES)


def fill(store: MessageStore, count: int = 60) -> None:
    for number in range(QUEUES):
        for at in range(count):
            put(store, b"%d-%d" % (number, at), topic=f"topic-{number % 3}", queue_id=number)


def ends_of(store: MessageStore) -> Ends:
    return {(queue.topic, queue.queue_id): queue.ends() for queue in store._table.all()}


def closed(open_store: Open, **changes: object) -> Ends:
    """Fill a store and close it; returns its ends."""
    store = open_store(**changes)
    fill(store)
    ends = ends_of(store)
    store.close()
    return ends


def test_a_start_after_a_clean_stop_maps_no_queue_file(open_store: Open) -> None:
    ends = closed(open_store)
    files = ObservedFiles()
    store = open_store(files=files)
    assert files.queue_files == []
    assert ends_of(store) == ends
    for number in range(QUEUES):
        expected = [b"%d-%d" % (number, at) for at in range(60)]
        assert bodies(store, f"topic-{number % 3}", number) == expected
    fill(store, 5)
    assert store.bounds("topic-0", 0) == (0, 65)


def test_few_queues_are_searched(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_ends, "QUEUES_MIN", QUEUES + 1)
    ends = closed(open_store)
    files = ObservedFiles()
    assert ends_of(open_store(files=files)) == ends
    assert len(files.queue_files) >= QUEUES


def without_file(root: Path) -> None:
    (root / "queueends").unlink()


def with_another_byte(root: Path) -> None:
    data = bytearray((root / "queueends").read_bytes())
    data[len(data) // 2] ^= 1
    (root / "queueends").write_bytes(data)


def cut_short(root: Path) -> None:
    path = root / "queueends"
    path.write_bytes(path.read_bytes()[:10])


def empty(root: Path) -> None:
    (root / "queueends").write_bytes(b"")


def with_another_checkpoint(root: Path) -> None:
    data = bytearray((root / "checkpoint").read_bytes())
    data[7] ^= 1
    (root / "checkpoint").write_bytes(data)


def after_a_crash(root: Path) -> None:
    (root / "abort").write_bytes(b"1\n")


def with_a_topic_more(root: Path) -> None:
    (root / "consumequeue" / "another" / "0").mkdir(parents=True)
    os.utime(root / "consumequeue", (1, 1))


def without_a_queue(root: Path) -> None:
    queue = root / "consumequeue" / "topic-0" / "0"
    for path in queue.iterdir():
        path.unlink()
    queue.rmdir()
    os.utime(queue.parent, (1, 1))


@pytest.mark.parametrize(
    "change",
    [
        without_file,
        with_another_byte,
        cut_short,
        empty,
        with_another_checkpoint,
        after_a_crash,
        with_a_topic_more,
        without_a_queue,
    ],
)
def test_the_file_does_not_count_for_a_store_that_was_changed(
    open_store: Open, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    closed(open_store)
    change(tmp_path)
    files = ObservedFiles()
    store = open_store(files=files)
    assert len(files.queue_files) >= QUEUES - 1
    for number in range(1, QUEUES):
        expected = [b"%d-%d" % (number, at) for at in range(60)]
        assert bodies(store, f"topic-{number % 3}", number) == expected
    assert not (tmp_path / "queueends").exists()


def test_the_file_is_gone_while_the_store_is_open(open_store: Open, tmp_path: Path) -> None:
    closed(open_store)
    assert (tmp_path / "queueends").exists()
    store = open_store()
    assert not (tmp_path / "queueends").exists()
    store.abandon()
    assert not (tmp_path / "queueends").exists()


def test_queues_of_deleted_records_keep_their_least_offsets(open_store: Open) -> None:
    store = open_store(file_reserved_hours=0)
    fill(store)
    store.write_out()
    assert store.clean(2**45, expired_at_any_hour=True) > 0
    bounds = {key: store.bounds(*key) for key in store.queue_keys()}
    assert any(low > 0 for low, _ in bounds.values())
    store.close()
    files = ObservedFiles()
    again = open_store(files=files)
    assert files.queue_files == []
    assert {key: again.bounds(*key) for key in again.queue_keys()} == bounds


def test_stores_with_extension_files_are_searched(open_store: Open, tmp_path: Path) -> None:
    closed(open_store, consume_queue_ext_enabled=True)
    assert not (tmp_path / "queueends").exists()
