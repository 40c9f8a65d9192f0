"""Request handlers and jobs for filter servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.filter_servers.servers import FilterServerHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import every

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts


SWEEP_S = 10.0


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handler of registrations, and the removal of silent filter servers."""
    settings = parts.settings()
    servers = FilterServerHandler(
        parts.filter_servers,
        broker_name=settings.broker_name,
        broker_id=settings.broker_id,
    )
    return Feature(
        {RequestCode.REGISTER_FILTER_SERVER: servers.register},
        [every(SWEEP_S, parts.filter_servers.sweep, "sweep-filter-servers")],
    )
