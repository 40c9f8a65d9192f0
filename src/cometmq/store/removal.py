"""Deletes files and directories in a thread: that may take the disk long.

What is deleted is out of use before: a file is no part of its stream any more, a directory has been
renamed. A crash may bring a file back; the next start deletes it again, or goes on using it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cometmq.system.files import Files

logger = logging.getLogger(__name__)


class Remover:
    """Deletes, in the order of the calls.

    Args:
        files: the way to the disk.
        in_thread: whether in a thread; else each call returns when it is done.
    """

    def __init__(self, files: Files, *, in_thread: bool) -> None:
        self._files = files
        self._in_thread = in_thread
        self._thread: ThreadPoolExecutor | None = None

    def remove(self, path: Path) -> None:
        """Delete a file."""
        self.run(lambda: self._files.remove(path))

    def remove_tree(self, path: Path) -> None:
        """Delete a directory with all that is in it."""
        self.run(lambda: self._files.remove_tree(path))

    def run(self, work: Callable[[], object]) -> None:
        """Do something before what is deleted later; a failure is logged."""
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
