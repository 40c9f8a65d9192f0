"""Writes queues and index files with the code of the store, from arrays in files.

Runs on executors, each of which writes to one directory of a disk that all see.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cometmq.spark.pipelines.stores.dispatched import KEY, RUN
from cometmq.store.config import StoreSettings
from cometmq.store.index.key_index import Index
from cometmq.store.lifecycle.loader import Loader
from cometmq.store.paths import StorePaths
from cometmq.system.files import SystemFiles

_AT_ONCE = 1 << 18
_ANY_MS = 1_000_000_000_000
"""A time to name a file by until it gets its name."""


class RunSlice(NamedTuple):
    """Some of the units in a file of `RUN`."""

    path: str
    first: int
    rows: int


class KeySlice(NamedTuple):
    """Some of the entries in a file of `KEY`."""

    path: str
    first: int
    rows: int
    before: bool = False
    """Whether they are the last of the index file before, and only say where that ended."""


def write_queue(
    settings: StoreSettings, topic: str, queue_id: int, slices: Sequence[RunSlice]
) -> int:
    """Write the files of one queue anew; return how many units it has.

    Raises:
        InvalidNameError: the topic cannot name a directory.
    """
    paths = StorePaths(settings)
    shutil.rmtree(paths.queue(topic, queue_id), ignore_errors=True)
    shutil.rmtree(paths.queue_ext(topic, queue_id), ignore_errors=True)
    loader = Loader(settings, paths, SystemFiles(), lambda: 0)
    queue = loader.queue(topic, queue_id)
    queue.load()
    try:
        for units in _arrays(slices, RUN):
            for unit in units.tolist():
                queue.put(*unit)
        queue.flush()
        return int(queue.max_offset - queue.min_offset)
    finally:
        queue.close()


def write_index_file(settings: StoreSettings, path: Path, slices: Sequence[KeySlice]) -> int:
    """Write one index file; return when its first entry's record was stored, in ms."""
    folder = path.with_suffix(".writing")
    shutil.rmtree(folder, ignore_errors=True)
    index = Index(
        SystemFiles(), folder, settings.index_slots, settings.index_entries, lambda: _ANY_MS
    )
    try:
        for part in slices:
            for keys in _arrays([part], KEY):
                _put_keys(index, keys, part.before)
        index.add_noted()
        index.newest.sync()
        made, begin_ms = index.newest.path, int(index.newest.begin_ms)
    finally:
        index.close()
    made.replace(path)
    folder.rmdir()
    return begin_ms


def _put_keys(index: Index, keys: Any, before: bool) -> None:
    """Add entries; or only take over where the file before ended."""
    if before:
        index.make_room(1)
        _, phy, store_ms = keys[0].item()
        index.newest.begin_after(phy, store_ms)
        return
    index.make_room(len(keys))
    for key in keys.tolist():
        index.note(*key)


def _arrays(slices: Sequence[RunSlice] | Sequence[KeySlice], kind: Any) -> Iterator[Any]:
    for part in slices:
        for first in range(part.first, part.first + part.rows, _AT_ONCE):
            count = min(_AT_ONCE, part.first + part.rows - first)
            yield np.fromfile(part.path, kind, count, offset=first * kind.itemsize)
