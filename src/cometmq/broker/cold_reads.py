"""Brings messages that are on the disk only into memory, in threads.

The event loop reads messages through mappings. A page that is not in memory would make it wait for
the disk, and everybody with it. So a pull is looked at first: what it finds cold is read in a
thread, and the pull runs again. Meanwhile its connection's other frames wait, in their order; other
connections do not notice.
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
    """The threads that read."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cold-read")

    def bring_in(
        self, parts: Sequence[ColdPart], then: Callable[[asyncio.Future[None]], object]
    ) -> None:
        """Read parts of files; calls ``then`` on the event loop with the outcome."""
        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._threads, bring_in, parts).add_done_callback(then)

    async def run(self, read: Callable[[], None]) -> None:
        """Run a function that reads what will be looked at; returns when it has.

        What cannot be read is left to those who look at it.
        """
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, read)
        except Exception as problem:
            log.debug("cannot read ahead: %s", problem)

    def close(self) -> None:
        """Begin no further read."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def bring_in(parts: Sequence[ColdPart]) -> None:
    """Read parts of files."""
    for part in parts:
        part.file.bring_in(part.start, part.stop)
