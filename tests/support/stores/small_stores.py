"""Small stores for tests: files of a few KiB, messages that say who they are."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cometmq.model.flags import SysFlag
from cometmq.model.message import StoredMessage
from cometmq.protocol.batch import BatchItem, decode_batch, encode_batch
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import decode_record, encode_host
from cometmq.store import Appended, AppendedBatch, GetStatus, MessageStore, NewRecord, StoreSettings
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock

PRODUCER = encode_host("192.168.1.2", 54321)
BROKER = encode_host("10.0.0.1", 10911)
WAIT_S = 60.0
LOG_FILE_BYTES = 16 * 1024
TOPIC = "orders"
_opened: list[list[MessageStore]] = []
"""The stores of the running test, in a list if it uses `no_open_stores`."""


@pytest.fixture(autouse=True)
def no_open_stores() -> Iterator[None]:
    """Abandon the stores that a test has opened, so that no descriptor waits for a collection."""
    _opened.append([])
    yield
    for store in _opened.pop():
        store.abandon()


def small_settings(root: Path, **changes: Any) -> StoreSettings:
    """Settings with files so small that a few messages fill them; reads see what is written."""
    values: dict[str, Any] = {
        "root": root,
        "flush_disk_type": "ASYNC_FLUSH",
        "commit_log_file_bytes": LOG_FILE_BYTES,
        "consume_queue_file_bytes": 20 * 50,
        "consume_queue_ext_file_bytes": 256,
        "batch_queue_file_bytes_max": 46 * 20,
        "index_slots": 16,
        "index_entries": 64,
        "segment_wait_ms": 60_000,
    }
    return StoreSettings(**(values | changes))


def opened(
    root: Path, *, clock: ManualClock | None = None, files: Files | None = None, **changes: Any
) -> MessageStore:
    """An open store; with `no_open_stores` the end of the test abandons it."""
    store = MessageStore(small_settings(root, **changes), clock=clock or ManualClock(), files=files)
    if _opened:
        _opened[-1].append(store)
    store.open()
    return store


class Announced:
    """A store of which a test can await the end of a flush that a thread makes.

    Make it in the event loop, whose tests wait.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._flushed = asyncio.Event()

    def flush(self, least_pages: int = 0) -> int:
        flushed_to = self._store.flush(least_pages)
        self._loop.call_soon_threadsafe(self._flushed.set)
        return flushed_to

    async def wait(self) -> None:
        """Wait for the end of the first flush."""
        await asyncio.wait_for(self._flushed.wait(), WAIT_S)


def new_record(
    body: bytes = b"body",
    topic: str = TOPIC,
    queue_id: int = 0,
    properties: Mapping[str, str] | bytes = b"",
    **more: Any,
) -> NewRecord:
    """A message to append, or a batch."""
    text = properties if isinstance(properties, bytes) else encode_properties(properties)
    fields = {"born_time_ms": 1_600_000_000_000, "born_host": PRODUCER, "store_host": BROKER}
    return NewRecord(topic, queue_id, body, text, **fields | more)


def put(store: MessageStore, *fields: Any, **more: Any) -> Appended:
    """Append one message, with the fields of `new_record`."""
    return store.append(new_record(*fields, **more))


def all_messages(store: MessageStore, topic: str = TOPIC, queue_id: int = 0) -> list[StoredMessage]:
    """Every message of a queue, read the way consumers read."""
    low, high = store.bounds(topic, queue_id)
    messages: list[StoredMessage] = []
    while low < high:
        result = store.get(topic, queue_id, low, 32)
        assert result.status is GetStatus.FOUND, result.status
        messages += split(b"".join(result.slices))
        low = result.next_begin_offset
    return messages


def split(data: bytes) -> list[StoredMessage]:
    """The messages of an answer's body."""
    messages = []
    position = 0
    while position < len(data):
        message = decode_record(data, position)
        messages.append(message)
        position += message.size_bytes
    return messages


def bodies(store: MessageStore, topic: str = TOPIC, queue_id: int = 0) -> list[bytes]:
    """The bodies of every message of a queue."""
    return [message.body for message in all_messages(store, topic, queue_id)]


def files_of(root: Path) -> dict[str, bytes]:
    """Name and content of every file below a directory."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def log_offsets(stored: AppendedBatch) -> list[int]:
    """Return where each record of a batch begins."""
    return list(struct.unpack(f">{stored.count}q", stored.packed_offsets))


def put_as_one(
    store: MessageStore, *bodies: bytes, topic: str = TOPIC, queue_id: int = 0, **more: Any
) -> Appended:
    """Append a batch as one record."""
    items = (BatchItem(0, body, b"") for body in bodies)
    more = {"properties": {"UNIQ_KEY": "B"}} | more
    return store.append_as_one(new_record(encode_batch(items), topic, queue_id, **more))


def unwrapped(store: MessageStore, topic: str = TOPIC, queue_id: int = 0) -> dict[int, bytes]:
    """The bodies of the messages of a queue by their offsets; batches are unwrapped."""
    found: dict[int, bytes] = {}
    for message in all_messages(store, topic, queue_id):
        is_batch = message.sys_flag & SysFlag.INNER_BATCH
        items = [each.body for each in decode_batch(message.body)] if is_batch else [message.body]
        found |= {message.queue_offset + at: body for at, body in enumerate(items)}
    return found
