"""The extension units of a queue as files, which units without a tags code point to.

The files, one after the other:

    consumequeue_ext/<topic>/<queue>/<20 digits>      see `cometmq.store.queues.consume_queue_ext`
"""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct

from cometmq.spark.logs.queue_files import QUEUES, QueueDirectory, QueueFile, queue_files
from cometmq.spark.logs.storage import OpenFile, Storage
from cometmq.store.queues.consume_queue_ext import is_address, real_offset_of

EXTENSIONS = "consumequeue_ext"
_UNIT = Struct(">hq")


class ExtReader:
    """The extension units of one queue; closes its files in the end.

    Args:
        storage: the way to the files.
        queue: the queue whose units have addresses.
    """

    def __init__(self, storage: Storage, queue: QueueDirectory) -> None:
        path = queue.path.replace(f"/{QUEUES}/", f"/{EXTENSIONS}/")
        self._storage = storage
        self._files: list[QueueFile] = queue_files(storage, queue._replace(path=path))
        self._opened: dict[str, OpenFile] = {}
        self._buffer = memoryview(bytearray(_UNIT.size))

    def __enter__(self) -> ExtReader:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in self._opened.values():
            opened.close()

    def tags_code_of(self, code: int) -> int:
        """Return the tags code behind an address; what is none, or leads nowhere, is one itself."""
        if not is_address(code) or not self._files:
            return code
        offset = real_offset_of(code)
        index = bisect_right(self._files, offset, key=lambda file: file.base_offset) - 1
        if index < 0 or offset >= self._files[index].base_offset + self._files[index].size:
            return code
        return self._read(self._files[index], offset, code)

    def _read(self, file: QueueFile, offset: int, code: int) -> int:
        opened = self._opened.get(file.path)
        if opened is None:
            opened = self._opened[file.path] = self._storage.open(file.path)
        count = opened.read_into(offset - file.base_offset, self._buffer)
        size, found = _UNIT.unpack(self._buffer)
        return int(found) if count == _UNIT.size and size >= _UNIT.size else code
