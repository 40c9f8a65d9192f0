"""Handles requests of clients for routes and for the brokers of clusters.

Clients before 4.9.4 read routes whose integer keys are bare (``{0:"…"}``), later ones strict JSON.

Source: ClientRequestProcessor and ZoneRouteRPCHook, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from cometmq.model.errors import ResponseError
from cometmq.namesrv.config import NameServerSettings
from cometmq.namesrv.kv_config.table import ORDER_NAMESPACE
from cometmq.namesrv.routes.route_data import (
    BROKERS_AT_ONCE,
    cluster_info,
    long_route_of,
    route_of,
)
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.route import TopicRouteData
from cometmq.protocol.codes import FAQ, ResponseCode
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.protocol.version import STRICT_ROUTE_VERSION_MIN
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import encode, join

if TYPE_CHECKING:
    from cometmq.namesrv.core import Core

_NAME_SHOWN_MAX = 512


class RouteHandler:
    """Handles requests for routes and clusters.

    Args:
        core: of the name server.
    """

    def __init__(self, core: Core) -> None:
        self._registry = core.registry
        self._kv = core.kv
        self._settings = core.settings
        self._up_ms = core.up_ms

    def route(self, request: Request) -> Response | Awaitable[Response]:
        """GET_ROUTEINFO_BY_TOPIC (105)."""
        header = request.header(GetRouteinfoByTopicRequest)
        settings = self._settings()
        if settings.needs_wait_for_service and self._up_ms() < settings.service_wait_s * 1000:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "name server not ready")
        options: dict[str, Any] = {
            "order_config": self._order_config(header.topic, settings),
            "shows_acting_masters": settings.supports_acting_master,
            "zone": _wanted_zone(header),
        }
        is_strict = bool(header.accept_standard_json_only) or (
            request.command.version >= STRICT_ROUTE_VERSION_MIN
        )
        if len(self._registry.topics.get(header.topic, ())) <= BROKERS_AT_ONCE:
            route = _existing(route_of(self._registry, header.topic, **options), header)
            if not fastjson.is_long(route):
                return Response(body=route.encode_strict() if is_strict else route.encode())
        request.is_exclusive = True
        return self._long_route(header, is_strict, options)

    async def _long_route(
        self, header: GetRouteinfoByTopicRequest, is_strict: bool, options: dict[str, Any]
    ) -> Response:
        route = _existing(await long_route_of(self._registry, header.topic, **options), header)
        return Response(body=await join(route.strict_parts() if is_strict else route.parts()))

    def _order_config(self, topic: str, settings: NameServerSettings) -> str | None:
        return self._kv.get(ORDER_NAMESPACE, topic) if settings.order_message_enable else None

    async def clusters(self, request: Request) -> Response:
        """GET_BROKER_CLUSTER_INFO (106)."""
        return Response(body=await encode(await cluster_info(self._registry)))


def _existing(route: TopicRouteData | None, header: GetRouteinfoByTopicRequest) -> TopicRouteData:
    if route is None:
        raise ResponseError(
            ResponseCode.TOPIC_NOT_EXIST,
            "No topic route info in name server for the topic:"
            f" {header.topic[:_NAME_SHOWN_MAX]}{FAQ}",
        )
    return route


def _wanted_zone(header: GetRouteinfoByTopicRequest) -> str | None:
    if (header.zone_mode or "").lower() != "true" or not (header.zone_name or "").strip():
        return None
    return header.zone_name
