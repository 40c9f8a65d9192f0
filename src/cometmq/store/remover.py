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
        self._left: deque[Path] = deque()
        """Files to delete, the first of which could not be deleted."""

    def remove(self, path: Path) -> None:
        """Delete a file, after those that could not be deleted before.

        So no file of a stream is deleted before an older one: a start would miss it.
        """
        self.run(lambda: self._remove_in_order(path))

    def retry(self) -> None:
        """Delete the files that could not be deleted before."""
        if self._left:
            self.run(self._remove_left)

    def _remove_in_order(self, path: Path) -> None:
        if len(self._left) < _LEFT_MAX:
            self._left.append(path)
        self._remove_left()

    def _remove_left(self) -> None:
        while self._left:
            self._files.remove(self._left[0])
            self._left.popleft()

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
