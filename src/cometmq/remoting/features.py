"""The features of a server: what each of them serves and runs.

A server is a list of features. Each is one folder with a module `feature.py`, whose function
`build` returns its `Feature`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from cometmq.remoting.exchange import Processor
from cometmq.remoting.jobs import Job
from cometmq.remoting.wire import FastPath

Routes = Mapping[int, Processor]
"""The handler of each request code."""


class Feature(msgspec.Struct, frozen=True):
    """What one feature of a server serves and runs."""

    routes: Routes
    """The handlers of its requests."""
    jobs: Sequence[Job] = ()
    """What it does at intervals."""
    fast_path: FastPath | None = None
    """Handles the most common frames of its requests."""
    on_fast_port: bool = True
    """Whether a broker serves it on the fast port too."""


def handlers_of(features: Iterable[Feature]) -> dict[int, Processor]:
    """Return the handler of each request code that any of the features serves.

    Raises:
        ValueError: two features serve one request code.
    """
    handlers: dict[int, Processor] = {}
    for feature in features:
        if twice := sorted(handlers.keys() & feature.routes.keys()):
            raise ValueError(f"request codes {twice} are served by two features, expected one")
        handlers.update(feature.routes)
    return handlers
