"""Reads messages that are not in the page cache, in threads.

The event loop reads messages through mappings. A page that is not in memory would block it until
the disk has read the page. So a pull first finds the pages that it needs and that are not in
memory; a thread reads them, and the pull runs again. Meanwhile the other frames of its connection
wait, in their order; other connections are served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cometmq.store.reading import ColdPart

log = logging.getLogger(__name__)

THREADS: Final = 8
"""Reads at a time; a disk seldom does more at once."""


class ColdReads:
    """The threads that read from the disk."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cold-read")

    def bring_in(
        self, parts: Sequence[ColdPart], then: Callable[[asyncio.Future[None]], object]
    ) -> None:
        """Read parts of files, then call ``then`` on the event loop with the outcome."""
        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._threads, bring_in, parts).add_done_callback(then)

    async def run(self, read: Callable[[], None]) -> None:
        """Run a function that reads pages into memory; return when it has ended.

        Errors are ignored here: the later read on the event loop meets them.
        """
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, read)
        except Exception as problem:
            log.debug("cannot read ahead: %s", problem)

    def close(self) -> None:
        """Start no further reads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def bring_in(parts: Sequence[ColdPart]) -> None:
    """Read parts of files."""
    for part in parts:
        part.file.bring_in(part.start, part.stop)
