"""Deletes files and directories in a thread, because that may take long.

A file or directory is out of use before it is deleted: the file is removed from its stream, the
directory is renamed. After a crash a file may exist again; the next start deletes it or uses it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cometmq.system.files import Files

logger = logging.getLogger(__name__)

_LEFT_MAX = 100_000
"""While the disk deletes nothing, further files stay; the next start finds them."""


class Remover:
    """Deletes files and directories, in the order of the calls.

    Args:
        files: the file system.
        in_thread: whether a thread deletes; else each call returns when it has deleted.
    """

    def __init__(self, files: Files, *, in_thread: bool) -> None:
        self._files = files
        self._in_thread = in_thread
        self._thread: ThreadPoolExecutor | None = None
        self._left: dict[Path, deque[Path]] = {}
        """Files to delete by their directory; the first of each could not be deleted."""

    def remove(self, path: Path) -> None:
        """Delete a file, after earlier files of its directory that could not be deleted.

        So no file of a stream is deleted before an older one: a start would miss it. Other
        streams go on, or a file that the disk keeps would fill the disk.
        """
        self.run(lambda: self._remove_in_order(path))

    def retry(self) -> None:
        """Delete the files that could not be deleted before."""
        if self._left:
            self.run(self._remove_left)

    def _remove_in_order(self, path: Path) -> None:
        if sum(map(len, self._left.values())) < _LEFT_MAX:
            self._left.setdefault(path.parent, deque()).append(path)
        self._remove_left_in(path.parent)

    def _remove_left(self) -> None:
        first: OSError | None = None
        for folder in list(self._left):
            try:
                self._remove_left_in(folder)
            except OSError as problem:
                first = first or problem
        if first is not None:
            raise first

    def _remove_left_in(self, folder: Path) -> None:
        left = self._left.get(folder)
        while left:
            self._files.remove(left[0])
            left.popleft()
        self._left.pop(folder, None)

    def remove_tree(self, path: Path) -> None:
        """Delete a directory with all that is in it."""
        self.run(lambda: self._files.remove_tree(path))

    def run(self, work: Callable[[], object]) -> None:
        """Run a function after all earlier deletions; a failure is logged."""
        if not self._in_thread:
            _run(work)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-removal")
        self._thread.submit(_run, work)

    def stop(self) -> None:
        """Return when all is deleted."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


def _run(work: Callable[[], object]) -> None:
    try:
        work()
    except OSError as problem:
        logger.error("cannot delete: %s", problem)
