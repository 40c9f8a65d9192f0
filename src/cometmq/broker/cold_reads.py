"""Reads messages that are not in the page cache, in threads.

The event loop reads messages through mappings. A page that is not in memory would block it until
the disk has read the page. So a pull first finds the pages that it needs and that are not in
memory; a thread reads them, and the pull runs again. Meanwhile the other frames of its connection
wait, in their order; other connections are served.

A file that is read in order is read in blocks, some of them ahead. Pulls that need the same block
wait for one read. Single records, for example those that a client requests by their ids, have
threads of their own, so that neither kind waits for a crowd of the other.

A disk that cannot read fails the request with its error. The pages are not touched then: that would
end the process.

With flow control a pull may have to wait before it reads (`ColdFlowControl`). It lets the other
frames of its connection pass then, as a held pull does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.broker.prerequisites import PrerequisiteError
from cometmq.model.errors import ResponseError, StoreError
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.features import Deferred
from cometmq.remoting.slices import Slices
from cometmq.remoting.slow_requests import spent_on
from cometmq.store.message_store import bring_in
from cometmq.store.queues.queue_reader import ColdPart
from cometmq.system.failure_log import RateLimitedLog
from cometmq.system.files import MappedFile

if TYPE_CHECKING:
    from cometmq.broker.cold_flow_control import ColdFlowControl
    from cometmq.remoting import Request
    from cometmq.store.index.key_search import KeySearch

log = logging.getLogger(__name__)

THREADS: Final = 8
"""Reads for pulls at a time; a disk seldom does more at once."""
LOOKUP_THREADS: Final = 2
"""Reads of single records at a time."""
WAITING_MAX: Final = 10_000
"""Reads that wait for a thread or for flow control; a request beyond is refused."""
ENTRIES_PER_STEP: Final = 2_000
"""Entries of the key index that are looked at before other requests are handled."""
BLOCK_BYTES: Final = 1024 * 1024
AHEAD_BYTES: Final = 4 * BLOCK_BYTES
"""How far a file is read ahead of the last pull that waited."""
UNDER_WAY_MAX: Final = 64
"""Blocks that are being read while none is read ahead."""


class _Block:
    """A block that is being read, and how far its file is read after it."""

    def __init__(
        self, file: MappedFile, start: int, stop: int, group: str, done: asyncio.Future[None]
    ) -> None:
        self.file = file
        self.start = start
        self.stop = stop
        self.group = group
        self.done = done
        self.ahead_to = stop


class ColdReads:
    """The threads that read from the disk.

    Args:
        flow: decides when pulls may read, if they are limited.
        limited: returns whether they are.
        reads_ahead: returns whether more is read than a pull needs.
    """

    def __init__(
        self,
        flow: Deferred[ColdFlowControl] | None = None,
        limited: Callable[[], bool] = lambda: False,
        *,
        reads_ahead: Callable[[], bool] = lambda: True,
    ) -> None:
        self.flow = flow
        """Decides when pulls may read, if they are limited."""
        self._limited = limited
        self._reads_ahead = reads_ahead
        self._delayed: dict[asyncio.Task[None], None] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cold-read")
        self._lookup_threads = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="lookup")
        self._waiting = 0
        self._problems = RateLimitedLog(
            log, "reads from the disk failed", level=logging.ERROR, lines_max=1
        )
        self._closed = False
        self._blocks: dict[tuple[MappedFile, int], _Block] = {}
        """The blocks under way, by their ends."""

    @property
    def waiting(self) -> int:
        """The number of reads that wait for a thread or for the disk."""
        return self._waiting

    @property
    def is_limited(self) -> bool:
        """Whether flow control may delay reads."""
        return self._limited()

    def bring_in(
        self,
        parts: Sequence[ColdPart],
        then: Callable[[asyncio.Future[None]], object],
        group: str = "",
    ) -> None:
        """Read parts of files for a group, then call ``then`` on the event loop with the outcome.

        The outcome may be a `StoreError` if the disk cannot read, or a `ResponseError` if the read
        would wait for too long. After `close` the outcome is that the read was cancelled.
        """
        reads: list[asyncio.Future[None]] = []
        scattered: list[ColdPart] = []
        reads_ahead = self._reads_ahead()
        for part in parts:
            if part.useful_to > part.stop and reads_ahead:
                reads += self._read_in_order(part, group)
            else:
                scattered.append(part)
        if scattered:
            size_bytes = sum(part.stop - part.start for part in scattered)
            reads.append(self._read(partial(bring_in, scattered), size_bytes, group))
        if len(reads) == 1:
            reads[0].add_done_callback(then)
        else:
            asyncio.ensure_future(_all_of(reads)).add_done_callback(then)

    def _read_in_order(self, part: ColdPart, group: str) -> list[asyncio.Future[None]]:
        """Read a part up to the end of its block, and blocks after it that no request waits for."""
        stop = min(part.useful_to, -(-part.stop // BLOCK_BYTES) * BLOCK_BYTES)
        block = self._blocks.get((part.file, stop))
        if block is None:
            block = self._begin(part.file, part.start, stop, group)
        block.ahead_to = max(block.ahead_to, min(part.useful_to, stop + AHEAD_BYTES))
        if block.start <= part.start:
            return [block.done]
        before = partial(part.file.bring_in, part.start, block.start)
        return [block.done, self._read(before, block.start - part.start, group)]

    def _begin(self, file: MappedFile, start: int, stop: int, group: str) -> _Block:
        done = self._read(partial(file.bring_in, start, stop), stop - start, group)
        block = self._blocks[file, stop] = _Block(file, start, stop, group, done)
        done.add_done_callback(partial(self._ended, block))
        return block

    def _read(self, read: Callable[[], None], size_bytes: int, group: str) -> asyncio.Future[None]:
        """Read for a pull, as soon as flow control allows it."""
        if self._closed or self.flow is None:
            return self._submit(self._threads, read)
        flow = self.flow.get() if self._limited() else self.flow.made()
        if flow is None:
            return self._submit(self._threads, read)
        try:
            delay_s = flow.admit(group, size_bytes, asyncio.get_running_loop().time())
        except ResponseError as refusal:
            return _failed(refusal)
        if delay_s <= 0:
            return self._submit(self._threads, read)
        if len(self._delayed) >= WAITING_MAX:
            return _refused(f"{len(self._delayed)} cold reads wait for flow control")
        delayed = asyncio.ensure_future(self._read_later(read, delay_s))
        self._delayed[delayed] = None
        delayed.add_done_callback(self._forget)
        return delayed

    async def _read_later(self, read: Callable[[], None], delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._submit(self._threads, read)

    def _submit(
        self, threads: ThreadPoolExecutor, read: Callable[[], object]
    ) -> asyncio.Future[None]:
        """Read in one of some threads; the outcome is a `StoreError` if the disk cannot."""
        loop = asyncio.get_running_loop()
        if self._closed:
            cancelled: asyncio.Future[None] = loop.create_future()
            cancelled.cancel()
            return cancelled
        if self._waiting >= WAITING_MAX:
            return _refused(f"{self._waiting} reads wait for the disk")
        self._waiting += 1
        reading = loop.run_in_executor(threads, _checked, read)
        reading.add_done_callback(self._has_read)
        return reading

    def _has_read(self, reading: asyncio.Future[None]) -> None:
        self._waiting -= 1
        problem = None if reading.cancelled() else reading.exception()
        if isinstance(problem, StoreError):
            self._problems.add("%s", problem)

    def _ended(self, block: _Block, done: asyncio.Future[None]) -> None:
        """Read the next block, if a pull will need it soon."""
        del self._blocks[block.file, block.stop]
        if self._closed or done.cancelled() or done.exception() is not None:
            return
        if self._waiting >= THREADS:  # by reads that a pull waits for
            return
        start = block.stop
        while start < block.ahead_to and len(self._blocks) < UNDER_WAY_MAX:
            stop = min(start + BLOCK_BYTES, block.ahead_to)
            if (block.file, stop) in self._blocks:
                return  # which is itself followed by others
            if not block.file.is_resident(start, stop):
                self._begin(block.file, start, stop, block.group).ahead_to = block.ahead_to
                return
            start = stop

    async def run(self, read: Callable[[], object] | None) -> None:
        """Run a function that reads pages into memory; return when it has ended.

        Args:
            read: the function; None if there is nothing to read.

        Raises:
            StoreError: the disk cannot read, or the broker stops.
            ResponseError: too many reads wait.
        """
        if read is None:
            return
        reading = self._submit(self._lookup_threads, read)
        with spent_on("disk"):
            await asyncio.wait((reading,))  # a cancelled caller does not cancel it
        if reading.cancelled():
            raise StoreError("the broker is stopping")
        reading.result()

    async def search(self, search: KeySearch, request: Request, bytes_max: int) -> bool:
        """Carry out a search, whose result is in memory then.

        Args:
            search: by a key.
            request: needs it; the search ends with its connection.
            bytes_max: the limit of what is read of the messages that are found.

        Returns:
            Whether the search is complete.
        """
        slices = Slices()
        while not request.connection.closed:
            await self.run(partial(search.bring_in, ENTRIES_PER_STEP))
            await slices.pause()
            if search.advance(ENTRIES_PER_STEP):
                await self.run(partial(search.bring_in_found, bytes_max))
                return True
        return False

    def require_in_memory(self, cold: Callable[[], None] | None) -> None:
        """Let `with_prerequisites` read something and repeat the request, if it is cold.

        Args:
            cold: reads it; None if it is in memory.

        Raises:
            PrerequisiteError: it is cold.
        """
        if cold is not None:
            raise PrerequisiteError(partial(self.run, cold))

    def _forget(self, delayed: asyncio.Task[None]) -> None:
        self._delayed.pop(delayed, None)

    def close(self) -> None:
        """Start no further reads."""
        self._closed = True
        for delayed in self._delayed:
            delayed.cancel()
        for threads in (self._threads, self._lookup_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for the reads that `close` found under way."""
        for threads in (self._threads, self._lookup_threads):
            threads.shutdown()


async def _all_of(reads: Sequence[asyncio.Future[None]]) -> None:
    await asyncio.gather(*reads)


def _refused(reason: str) -> asyncio.Future[None]:
    return _failed(ResponseError(ResponseCode.SYSTEM_BUSY, reason))


def _failed(problem: ResponseError) -> asyncio.Future[None]:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failed.set_exception(problem)
    return failed


def _checked(read: Callable[[], object]) -> None:
    try:
        read()
    except OSError as problem:
        raise StoreError(f"cannot read from the disk: {problem}") from problem
