"""Request handlers of a broker whose role a controller decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Feature

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers for controllers and operators."""
    if parts.elected is None:
        return Feature({})
    from cometmq.broker.failover.handler import ElectedHandler

    handler = ElectedHandler(parts.elected, parts.role, parts.settings)
    return Feature(
        {
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: handler.role_changed,
            RequestCode.GET_BROKER_EPOCH_CACHE: handler.epochs,
        }
    )
