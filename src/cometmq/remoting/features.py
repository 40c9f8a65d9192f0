"""The features of a server: the request codes and jobs of each.

A server is a list of features. Each is one folder with a module `feature.py`, whose function
`build` returns its `Feature`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from cometmq.remoting.jobs import Job
from cometmq.remoting.requests import RequestHandler
from cometmq.remoting.wire import FastPath

Routes = Mapping[int, RequestHandler]
"""The handler of each request code."""


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
