"""Request handlers of a broker whose role a controller decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import Request, RequestHandler, Response
from cometmq.remoting.features import Feature, Routes

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers for controllers and operators."""
    epochs: RequestHandler = _no_epochs
    routes: Routes = {}
    if parts.elected is not None:
        from cometmq.broker.failover.handler import ElectedHandler

        handler = ElectedHandler(parts.elected, parts.role, parts.settings)
        epochs = handler.epochs
        routes = {RequestCode.NOTIFY_BROKER_ROLE_CHANGED: handler.role_changed}
    return Feature({RequestCode.GET_BROKER_EPOCH_CACHE: epochs, **routes})


def _no_epochs(_request: Request) -> Response:
    """Refuse GET_BROKER_EPOCH_CACHE (1007) as RocketMQ does without a controller."""
    raise ResponseError(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode")
