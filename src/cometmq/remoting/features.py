"""The features of a server: the request codes and jobs of each.

A server is a list of features. Each is one folder with a module `feature.py`, whose function
`build` returns its `Feature`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from cometmq.remoting.jobs import Job
from cometmq.remoting.requests import Request, RequestHandler, Response, exclusive
from cometmq.remoting.wire import FastPath

T = TypeVar("T")

Routes = Mapping[int, RequestHandler]
"""The handler of each request code."""


class Deferred(Generic[T]):
    """An object that is made for its first use, mostly a request, and its module loaded.

    What a server without load does not need, such as the handlers of operators' requests, is made
    like this to keep its memory small: ``make`` imports the class. What every client uses, and what
    has to run or to take a time before the first request, is not.

    It also decorates a function that makes an object.

    Args:
        make: makes the object; called once.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: T | None = None

    def get(self) -> T:
        """Return the object."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def made(self) -> T | None:
        """Return the object if it was needed already."""
        return self._made

    def handler(self, of: Callable[[T], RequestHandler]) -> RequestHandler:
        """Return a handler of requests.

        Args:
            of: returns the method that handles them.
        """

        found: RequestHandler | None = None

        def handle(request: Request) -> Response | Awaitable[Response | None] | None:
            nonlocal found
            if found is None:
                found = of(self.get())
            return found(request)

        return handle

    def exclusive(self, of: Callable[[T], RequestHandler]) -> RequestHandler:
        """Return such a handler that lets the frames behind a request wait until it is handled."""
        return exclusive(self.handler(of))


class Feature(msgspec.Struct, frozen=True):
    """The request handlers, jobs and fast path of one feature of a server."""

    routes: Routes
    """The handlers of its requests."""
    jobs: Sequence[Job] = ()
    """Its work at intervals."""
    fast_path: FastPath | None = None
    """Handles the most common frames of its requests."""
    on_fast_port: bool = True
    """Whether a broker serves it on the fast port too."""


def handlers_of(features: Iterable[Feature]) -> dict[int, RequestHandler]:
    """Return the handler of each request code that any of the features serves.

    Raises:
        ValueError: two features serve one request code.
    """
    handlers: dict[int, RequestHandler] = {}
    for feature in features:
        if twice := sorted(handlers.keys() & feature.routes.keys()):
            raise ValueError(f"request codes {twice} are served by two features, expected one")
        handlers.update(feature.routes)
    return handlers
