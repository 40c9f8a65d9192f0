"""Request handlers and jobs for filter servers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.broker.filter_servers.servers import FilterServerHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import every

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts

log = logging.getLogger(__name__)

SWEEP_S = 10.0


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handler of registrations, and the removal of silent filter servers."""
    settings = parts.settings()
    if settings.filter_server_nums > 0:
        log.warning(
            "filterServerNums=%d has no effect, this broker starts no filter servers: start each of"
            " them with `cometmq filtersrv`",
            settings.filter_server_nums,
        )
    servers = FilterServerHandler(
        parts.filter_servers,
        broker_name=settings.broker_name,
        broker_id=settings.broker_id,
    )
    return Feature(
        {RequestCode.REGISTER_FILTER_SERVER: servers.register},
        [every(SWEEP_S, parts.filter_servers.sweep, "sweep-filter-servers")],
    )
