"""A part of a file in memory, which moves over the file as records are read.

Memory is bounded by the window, not by the file: one record that is larger makes the window as
large as the record. Files are read, not mapped, so that one that is cut while it is read is an
error and not the end of the process.
"""

from __future__ import annotations

from cometmq.spark.logs.storage import OpenFile

LOCAL_WINDOW_BYTES = 1024 * 1024
"""Small enough to stay in the processor's cache between reading and decoding."""
REMOTE_WINDOW_BYTES = 16 * 1024 * 1024
"""Large enough for object storage to deliver at full speed."""


class Window:
    """The bytes of a file from ``start`` to ``end``.

    Args:
        file: to read from; the window does not close it.
        file_bytes: where the file ends.
        window_bytes: how much to read at once.
    """

    def __init__(self, file: OpenFile, file_bytes: int, window_bytes: int) -> None:
        self._file = file
        self._file_bytes = file_bytes
        self._window_bytes = window_bytes
        self._buffer = bytearray(min(window_bytes, max(file_bytes, 1)))
        self.start = 0
        self.end = 0
        self.data = memoryview(self._buffer)[:0]

    def move(self, position: int, least_bytes: int = 0) -> None:
        """Read what stands at a position of the file; less at the file's end.

        Args:
            position: the first byte wanted.
            least_bytes: how many bytes are needed at least, if the file has them.
        """
        wanted = max(least_bytes, self._window_bytes)
        size = max(0, min(wanted, self._file_bytes - position))
        if size > len(self._buffer):
            self.data = memoryview(b"")
            self._buffer = bytearray(size)
        count = self._file.read_into(position, memoryview(self._buffer)[:size])
        self.start, self.end = position, position + count
        self.data = memoryview(self._buffer)[:count]

    def lengthen(self, window_bytes: int) -> None:
        """Read at least so many bytes from the next move on."""
        self._window_bytes = max(self._window_bytes, window_bytes)

    def find(self, pattern: bytes, position: int) -> int:
        """Return where in the file a pattern stands next in the window, -1 for nowhere."""
        at = self._buffer.find(pattern, position - self.start, self.end - self.start)
        return at if at < 0 else self.start + at

    def reaches_file_end(self) -> bool:
        """Return whether no byte of the file follows the window."""
        return self.end >= self._file_bytes or len(self.data) == 0

    def holds(self, position: int, size: int) -> bool:
        """Return whether so many bytes at a position are all in the window."""
        return self.start <= position and position + size <= self.end
