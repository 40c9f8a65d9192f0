"""Does what a request needs first: creates topics, groups and log files, reads records.

Validation, appends and the fast paths must not wait. A topic, a group or the next file of the log
may have to be created first, or a record read from the disk. Then they raise an exception with a
function that does this. The wrapper here calls the function, which may wait for the disk, and then
calls the handler again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from cometmq.model.errors import ResponseError, StoreError
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting import Request, RequestHandler, Response

T = TypeVar("T")

PREREQUISITES_MAX: Final = 8
"""A message sent back needs its record and unit, a group and two topics; what was read may be gone
once."""


class PrerequisiteError(Exception):
    """A request needs something that has to be created, or read from the disk, first.

    Args:
        run: does that.
    """

    def __init__(self, run: Callable[[], Awaitable[object]]) -> None:
        super().__init__("something has to be created or read first")
        self.run = run


class CreationRequiredError(PrerequisiteError):
    """A request needs a topic or a group that does not exist.

    Args:
        create: creates it for a request; for None, without limits.
    """

    def __init__(self, create: Callable[[Request | None], Awaitable[object]]) -> None:
        super().__init__(lambda: create(None))
        self.create = create


def with_prerequisites(
    handler: Callable[[Request], Response | None],
    failed: Callable[[StoreError], Response] | None = None,
) -> RequestHandler:
    """Wrap a handler that may raise `PrerequisiteError`.

    Args:
        handler: the handler.
        failed: returns the response if the prerequisite fails; None for code 14 and the reason.
    """

    def handle(request: Request) -> Response | Awaitable[Response | None] | None:
        try:
            return handler(request)
        except PrerequisiteError as needed:
            request.is_exclusive = True  # the sends of a connection are stored in their order
            if failed is None:
                return run_and_repeat(needed, lambda: handler(request), request)
            return run_or_fail(request, needed, failed)

    async def run_or_fail(
        request: Request, needed: PrerequisiteError, failed: Callable[[StoreError], Response]
    ) -> Response | None:
        try:
            return await _run_then(needed, lambda: handler(request), request)
        except StoreError as problem:
            return failed(problem)

    return handle


async def after_prerequisites(attempt: Callable[[], T], request: Request | None = None) -> T:
    """Call a function, and again after each prerequisite that it needs.

    Args:
        attempt: the function.
        request: the request for which topics and groups are created; None for the broker itself.

    Raises:
        ResponseError: 14, the disk refused, or what was created or read is gone again.
    """
    try:
        return attempt()
    except PrerequisiteError as needed:
        return await run_and_repeat(needed, attempt, request)


async def run_and_repeat(
    needed: PrerequisiteError, attempt: Callable[[], T], request: Request | None = None
) -> T:
    """Run what a function needs, and call it again, also after each further prerequisite.

    Args:
        needed: what the first call has raised.
        attempt: the function.
        request: as for `after_prerequisites`.

    Raises:
        ResponseError: as `after_prerequisites`.
    """
    try:
        return await _run_then(needed, attempt, request)
    except StoreError as problem:
        raise _not_available(problem) from problem


def _not_available(problem: StoreError) -> ResponseError:
    return ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, str(problem))


async def _run_then(
    needed: PrerequisiteError, attempt: Callable[[], T], request: Request | None
) -> T:
    for _ in range(PREREQUISITES_MAX):
        if isinstance(needed, CreationRequiredError):
            await needed.create(request)
        else:
            await needed.run()
        try:
            return attempt()
        except PrerequisiteError as again:
            needed = again
    raise StoreError(
        f"what the request needs was gone again {PREREQUISITES_MAX} times:"
        " a deleted topic or group, or a message that left the memory"
    )
