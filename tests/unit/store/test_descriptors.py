"""A store that is closed, or whose opening failed, keeps nothing open, without a collection."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cometmq.model.errors import StoreError
from cometmq.store import MessageStore
from cometmq.store.lifecycle import loader
from cometmq.system.files import Files
from support.checks.descriptors import Descriptor, open_descriptors
from support.stores.small_stores import bodies, opened, put, small_settings

RECORDS = 120
SETTINGS: dict[str, dict[str, Any]] = {
    "one mapped queue": {"mapped_queue_files_max": 1},
    "extension units": {"consume_queue_ext_enabled": True, "flush_disk_type": "SYNC_FLUSH"},
}
CALLS = ("entries", "file_system", "lock", "open_mapped", "read", "remove", "sync_dir", "write")
CALLS_MAX = 60
"""More than an opening makes of any of them."""


class BrokenFiles(Files):
    """Fails one call."""

    def __init__(self, name: str, number: int) -> None:
        self.calls_left = number
        method = getattr(self, name)

        def call(*arguments: Any, **more: Any) -> Any:
            self.calls_left -= 1
            if self.calls_left == 0:
                raise OSError(errno.EIO, "the disk is gone")
            return method(*arguments, **more)

        setattr(self, name, call)


@pytest.fixture(autouse=True)
def uncollected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(loader, "BUFFERS_MAX", 1000)  # a large file is closed in a thread
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left(before: set[Descriptor]) -> list[str]:
    return [str(each) for each in open_descriptors() - before]


def fill(store: MessageStore) -> None:
    if store.settings.consume_queue_ext_enabled:
        store.compute_bitmaps(lambda *_: b"\1")
    for number in range(RECORDS):
        topic, properties = f"topic-{number % 5}", {"KEYS": str(number)}
        put(store, b"x" * 200, topic=topic, queue_id=number % 3, properties=properties)
    store.flush()
    assert len(bodies(store, "topic-1", 1)) > 1
    assert store.query("topic-1", "1", 32, 0, 2**62).records


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("end", [MessageStore.close, MessageStore.abandon])
def test_a_closed_store_keeps_nothing_open(
    tmp_path: Path, name: str, end: Callable[[MessageStore], None]
) -> None:
    before = open_descriptors()
    store = opened(tmp_path, **SETTINGS[name])
    fill(store)
    end(store)
    assert not left(before)


def test_a_closed_store_with_threads_keeps_nothing_open(tmp_path: Path) -> None:
    before = open_descriptors()
    store = MessageStore(small_settings(tmp_path), threaded=True)
    store.open()
    store.allocate_first_segment()
    store.wait_for_segment()
    put(store)
    store.close()
    assert not left(before)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_store_that_cannot_be_opened_keeps_nothing_open(tmp_path: Path, name: str) -> None:
    store = opened(tmp_path, **SETTINGS[name])
    fill(store)
    store.abandon()
    before = open_descriptors()
    for call in CALLS:
        assert any(opens(tmp_path, name, call, n, before) for n in range(1, CALLS_MAX))


def opens(root: Path, name: str, call: str, number: int, before: set[Descriptor]) -> bool:
    """Whether a store opens although a call would fail: it makes fewer of them."""
    files = BrokenFiles(call, number)
    store = MessageStore(small_settings(root, **SETTINGS[name]), files=files)
    with suppress(StoreError):
        store.open()
    if is_open := files.calls_left > 0:
        store.abandon()
    assert not left(before), f"call {number} of {call} failed"
    return is_open
