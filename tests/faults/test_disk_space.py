"""How much of the disk each kind of file of a store takes, at many queues with one message each.

Files are as large as RocketMQ's, and mapped as a whole; only blocks that are reserved or written
take space. The blocks count, not the sizes.
"""

from __future__ import annotations

import resource
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.store import MessageStore
from support.processes.root import need_open_files
from support.stores import small_stores
from support.stores.small_stores import no_open_stores, put

__all__ = ["no_open_stores"]

QUEUES = 200
KIB = 1024
LOG_FILE_BYTES = 2 * KIB * KIB
INDEX_SLOTS = 100_000
PER_QUEUE_BYTES = {"consumequeue": 16 * KIB, "consumequeue_ext": 4 * KIB}
PER_STORE_BYTES = {
    "commitlog": 2 * LOG_FILE_BYTES,  # the newest file, and the next one
    "index": 40 + INDEX_SLOTS * 4 + 20 * 6 * QUEUES + KIB * KIB,
    "others": 2 * KIB * KIB,  # the buffers of units grow by 1 MiB
}
EXTENT_BYTES = 4 * KIB
"""A file system may take a block more for a file, to say where its blocks are."""


SETTINGS = {
    "extension units": {"consume_queue_ext_enabled": True},
    "mapped queues": {"mapped_queue_files_max": QUEUES + 8},
    "buffered queues": {"mapped_queue_files_max": 8},
}
OPEN_FILES = 2 * QUEUES + 200


@pytest.fixture(autouse=True)
def open_files() -> Iterator[None]:
    """The descriptors of all queues, which a broker allows itself at its start."""
    need_open_files(OPEN_FILES)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, OPEN_FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def opened(root: Path, settings: dict[str, object]) -> MessageStore:
    """A store with RocketMQ's default sizes, apart from the log's and the index's."""
    return small_stores.opened(
        root,
        commit_log_file_bytes=LOG_FILE_BYTES,
        consume_queue_file_bytes=300_000 * 20,
        consume_queue_ext_file_bytes=48 * KIB * KIB,
        index_slots=INDEX_SLOTS,
        index_entries=20_000_000,
        **settings,
    )


def taken_bytes(root: Path) -> Counter[str]:
    """The bytes of the blocks of all files, by kind; directories do not count."""
    taken: Counter[str] = Counter()
    for path in root.rglob("*"):
        if path.is_file():
            folder = path.relative_to(root).parts[0]
            known = folder in PER_QUEUE_BYTES or folder in PER_STORE_BYTES
            taken[folder if known else "others"] += path.stat().st_blocks * 512
    return taken


def too_much(root: Path) -> dict[str, int]:
    """The kinds of files that take more than they may, and how much they take."""
    limits = PER_STORE_BYTES | {
        kind: QUEUES * (size + EXTENT_BYTES) for kind, size in PER_QUEUE_BYTES.items()
    }
    return {kind: size for kind, size in taken_bytes(root).items() if size > limits[kind]}


def send_to_all(store: MessageStore) -> None:
    for number in range(QUEUES):
        topic, queue_id = f"orders-{number // 8}", number % 8
        put(store, topic=topic, queue_id=queue_id, properties={"TAGS": "a", "KEYS": "k"})


@pytest.mark.parametrize("name", SETTINGS)
def test_a_queue_with_few_messages_takes_few_blocks_when_there_are_many(
    tmp_path: Path, name: str
) -> None:
    """Also after a clean stop, after a kill, and when all queues are made again from the log."""
    settings = SETTINGS[name]
    store = opened(tmp_path, settings)
    send_to_all(store)
    kinds = set(PER_QUEUE_BYTES) if name == "extension units" else {"consumequeue"}
    assert set(taken_bytes(tmp_path)) == kinds | set(PER_STORE_BYTES)
    assert too_much(tmp_path) == {}
    store.close()

    store = opened(tmp_path, settings)
    send_to_all(store)
    assert too_much(tmp_path) == {}
    store.abandon()

    for kind in kinds:
        shutil.rmtree(tmp_path / kind)
    store = opened(tmp_path, settings)
    send_to_all(store)
    assert too_much(tmp_path) == {}
    bounds = [store.bounds(f"orders-{number // 8}", number % 8) for number in range(QUEUES)]
    assert bounds == [(0, 3)] * QUEUES
