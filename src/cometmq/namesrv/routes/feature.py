"""Request handlers for routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.access.needs import NOTHING, Needs
from cometmq.namesrv.routes.handler import RouteHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Feature

if TYPE_CHECKING:
    from cometmq.namesrv.core import Core


NEEDS: Mapping[int, Needs] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: NOTHING,
    RequestCode.GET_BROKER_CLUSTER_INFO: NOTHING,
}
"""The needs of the requests with ``aclEnable``: a signature only, if clients send them to read."""


def build(core: Core) -> Feature:
    """Build the handlers of routes of topics, and of brokers by cluster."""
    routes = RouteHandler(core)
    return Feature(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: routes.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: exclusive(routes.clusters),
        }
    )
