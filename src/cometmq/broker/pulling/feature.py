"""What the broker serves for pulls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.creation import creating
from cometmq.broker.pulling.fast_path import PullFastPath
from cometmq.broker.pulling.handler import PullHandler
from cometmq.protocol.codes import RequestCode

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts, Routes


CODES = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
"""The requests of this feature; the fast port (listenPort - 2) does not serve them."""


def routes(parts: Parts, _endpoint: Endpoint) -> Routes:
    """The handler of pulls."""
    return dict.fromkeys(CODES, creating(_pull_handler(parts).pull))


def fast_path(parts: Parts) -> PullFastPath:
    """The fast path of pulls."""
    return PullFastPath(_pull_handler(parts))


def _pull_handler(parts: Parts) -> PullHandler:
    return PullHandler(
        store=parts.store,
        topics=parts.topics,
        groups=parts.groups,
        consumers=parts.consumers,
        offsets=parts.offsets,
        held=parts.held,
        cold_reads=parts.cold_reads,
        settings=parts.settings,
        stats=parts.stats,
    )
