"""The file ``abort``: it exists while the store is open, and says how the last process ended.

    process id "\n" boot id      all files are whole as the page cache has them: only a power cut
                                 makes the next start distrust them
    process id "\n"              they may not be: the store is being recovered, or a sync failed
    zeros                        a sync failed, and the process was killed before it wrote that

Spaces may precede the process id. A store that was closed has no such file. RocketMQ writes the
process id alone.
"""

from __future__ import annotations

import enum
import logging
import os

from cometmq.store.paths import StorePaths
from cometmq.system.files import Files, MappedFile, is_disk_full

logger = logging.getLogger(__name__)


class Ending(enum.Enum):
    """How the last process of the store ended."""

    CLOSED = "closed"
    KILLED = "killed"
    """The process ended, the machine did not: the page cache has all writes."""
    POWER_LOST = "power lost"
    """The machine stopped, or it is unknown whether it did."""


class AbortFile:
    """The file ``abort`` of one store.

    Args:
        files: the file system.
        paths: the paths of the store.
    """

    def __init__(self, files: Files, paths: StorePaths) -> None:
        self._files = files
        self._path = paths.abort
        self._folder = paths.root
        self._content: bytes | None = None
        self._mapped: MappedFile | None = None

    def read(self) -> Ending:
        """Return how the last process ended."""
        self._content = self._files.read(self._path)
        return self._ending()

    def _ending(self) -> Ending:
        if self._content is None:
            return Ending.CLOSED
        boot_id = self._files.boot_id()
        is_same_boot = boot_id and self._content.endswith(b"\n" + boot_id.encode())
        return Ending.KILLED if is_same_boot else Ending.POWER_LOST

    def has_unsynced_pages(self) -> bool:
        """Return whether the page cache may have pages that no later sync writes.

        A failed sync leaves such pages: the kernel marks them as written, until they are written
        again.
        """
        found = self._content
        return found is not None and (found.endswith(b"\n") or found.endswith(b"\0"))

    def mark_open(self, *, is_whole: bool) -> None:
        """Write the file; it names the boot if all files are whole as the page cache has them.

        Without space on the disk the file may be empty: then the next start reads more.

        Raises:
            OSError: the disk is broken.
        """
        content = f"{os.getpid()}\n{self._files.boot_id() if is_whole else ''}".encode()
        try:
            self._write(content)
            self._files.sync_dir(self._folder)
        except OSError as problem:
            if not is_disk_full(problem) or not self._files.exists(self._path):
                raise
            logger.warning("cannot mark the store as open path=%s: %s", self._path, problem)

    def map(self) -> None:
        """Map the file, if it says that all files are whole, for `mark_unsynced`."""
        if self.read() is Ending.KILLED:
            size_bytes = len(self._content or b"")
            self._mapped = self._files.open_mapped(self._path, size_bytes, keep_open=False)

    def mark_unsynced(self) -> None:
        """Let the next start recover as after a power cut: pages may not be on disk."""
        mapped, self._mapped = self._mapped, None
        if mapped is not None:  # in memory, because the process may be killed before the next line
            mapped.map[:] = bytes(mapped.size_bytes)
            mapped.close()
        try:
            self._write(f"{os.getpid()}\n".encode())
        except OSError as problem:
            logger.error("cannot mark the store as unsynced path=%s: %s", self._path, problem)

    def _write(self, content: bytes) -> None:
        """Write the file in place, behind spaces if it was longer.

        That needs no space on the disk. A file that is written anew gives its block away, and may
        not get another one: then it is empty, and the next start takes a kill for a power cut.
        """
        old = self._files.read(self._path) or b""
        self._files.overwrite(self._path, content.rjust(len(old)))

    def remove(self) -> None:
        """Remove the file: the store is closed, and all of it is on the disk."""
        self._files.remove(self._path)

    def close(self) -> None:
        """Leave the file as it is."""
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None
