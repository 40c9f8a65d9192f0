"""Creates topics, groups and log files that a request needs, before it is handled.

Validation, appends and the fast paths must not wait. If a topic, a group or the next file of the
log has to be created first, they raise an exception that names it; the wrapper here creates it,
which waits for the disk, and calls the handler again. A record that only the disk has is read in
the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from cometmq.model.errors import ResponseError, StoreError
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting import Request, RequestHandler, Response

T = TypeVar("T")

FAILURE_S: Final = 1.0
"""For this long further calls fail with the same error, before the next attempt."""
CREATIONS_MAX: Final = 6
"""A message sent back needs its record, a group and two topics; what was read may be gone once."""


class CreationNeededError(Exception):
    """A request names something that does not exist yet and may be created.

    Args:
        create: creates it.
    """

    def __init__(self, create: Callable[[], Awaitable[object]]) -> None:
        super().__init__("something has to be created first")
        self.create = create


class SharedCall:
    """Runs a blocking function in a thread; callers at the same time share one run.

    Args:
        call: the function.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._running: asyncio.Future[object] | None = None
        self._failed_s = -FAILURE_S
        self._failure: StoreError | None = None

    async def __call__(self) -> object:
        """Wait for the end of a run.

        Raises:
            StoreError: of this run, or of one that failed less than a second ago.
        """
        if self._failure is not None:
            if asyncio.get_running_loop().time() < self._failed_s + FAILURE_S:
                raise self._failure
            self._failure = None
        if self._running is None:
            loop = asyncio.get_running_loop()
            self._running = asyncio.ensure_future(loop.run_in_executor(None, self._call))
            self._running.add_done_callback(self._ended)
        return await asyncio.shield(self._running)

    def _ended(self, run: asyncio.Future[object]) -> None:
        self._running = None
        failure = None if run.cancelled() else run.exception()
        if isinstance(failure, StoreError):
            self._failure, self._failed_s = failure, asyncio.get_running_loop().time()


class NextCall:
    """Runs a blocking function in a thread; callers before the start of a run share it.

    Args:
        call: the function.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._next: asyncio.Future[None] | None = None
        self._runner: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Wait for the end of a run that begins now or later."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        waiting = self._next
        if self._runner is None or self._runner.done():
            self._runner = asyncio.ensure_future(self._run())
        await asyncio.shield(waiting)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._next is not None:
            waiting, self._next = self._next, None
            try:
                await loop.run_in_executor(None, self._call)
            except Exception as problem:
                waiting.set_exception(problem)
                waiting.exception()  # marked as retrieved: perhaps no caller waits any more
            else:
                waiting.set_result(None)


def creating(
    handler: Callable[[Request], Response | None],
    failed: Callable[[StoreError], Response] | None = None,
) -> RequestHandler:
    """Wrap a handler that may raise `CreationNeededError`.

    Args:
        handler: the handler.
        failed: returns the response if the creation fails; None for code 14 and the reason.
    """

    def handle(request: Request) -> Response | Awaitable[Response | None] | None:
        try:
            return handler(request)
        except CreationNeededError as needed:
            request.is_exclusive = True  # the sends of a connection are stored in their order
            return create_and_repeat(request, needed)

    async def create_and_repeat(request: Request, needed: CreationNeededError) -> Response | None:
        try:
            return await _created_then(needed, lambda: handler(request))
        except StoreError as problem:
            if failed is None:
                raise _not_available(problem) from problem
            return failed(problem)

    return handle


async def with_creation(attempt: Callable[[], T]) -> T:
    """Call a function, and again after each creation that it needs.

    Raises:
        ResponseError: 14, the disk refused, or what was created does not exist any more.
    """
    try:
        return attempt()
    except CreationNeededError as needed:
        try:
            return await _created_then(needed, attempt)
        except StoreError as problem:
            raise _not_available(problem) from problem


def _not_available(problem: StoreError) -> ResponseError:
    return ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, str(problem))


async def _created_then(needed: CreationNeededError, attempt: Callable[[], T]) -> T:
    for _ in range(CREATIONS_MAX):
        await needed.create()
        try:
            return attempt()
        except CreationNeededError as again:
            needed = again
    raise StoreError(
        f"what the request needs was gone again {CREATIONS_MAX} times: a deleted topic or group,"
        " or a message on a broken disk"
    )
