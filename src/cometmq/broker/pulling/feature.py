"""Request handlers for pulls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.prerequisites import with_prerequisites
from cometmq.broker.pulling.fast_path import PullFastPath
from cometmq.broker.pulling.handler import PullHandler
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.octets import is_compiled
from cometmq.remoting.features import Feature

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers of pulls; the fast port does not serve them."""
    handler = PullHandler(
        store=parts.store,
        topics=parts.topics,
        groups=parts.groups,
        consumers=parts.consumers,
        filters=parts.filters,
        offsets=parts.offsets,
        held=parts.held,
        cold_reads=parts.cold_reads,
        settings=parts.settings,
        role=parts.role,
        stats=parts.stats,
        host=parts.address.host,
        latencies=parts.latencies,
        access=parts.access,
    )
    parts.consumers.on_changed_expressions = handler.changed_expressions
    check = None if parts.access is None else parts.access.for_pulls()
    pull = with_prerequisites(handler.handle)
    return Feature(
        {RequestCode.PULL_MESSAGE: pull, RequestCode.LITE_PULL_MESSAGE: pull},
        fast_path=PullFastPath(handler, check) if is_compiled() else None,
        on_fast_port=False,
    )
