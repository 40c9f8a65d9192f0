"""The filter servers of this broker, and the requests and jobs for them."""

from __future__ import annotations

import logging

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.filter_servers.servers import FilterServerHandler, FilterServers
from cometmq.broker.life import BrokerFeature
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Connection
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import every

log = logging.getLogger(__name__)

SWEEP_S = 10.0


class FilterServersFeature(BrokerFeature):
    """Keeps the filter servers, which routes name.

    Args:
        core: of the broker.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.servers = FilterServers(core.clock)

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handler of registrations, and the removal of silent filter servers."""
        settings = self._core.settings()
        if settings.filter_server_nums > 0:
            log.warning(
                "filterServerNums=%d has no effect, this broker starts no filter servers: start"
                " each of them with `cometmq filtersrv`",
                settings.filter_server_nums,
            )
        handler = FilterServerHandler(
            self.servers, broker_name=settings.broker_name, broker_id=settings.broker_id
        )
        return Feature(
            {RequestCode.REGISTER_FILTER_SERVER: handler.register},
            [every(SWEEP_S, self.servers.sweep, "sweep-filter-servers")],
        )

    def connection_closed(self, connection: Connection) -> None:
        """Remove the filter server of the connection."""
        self.servers.connection_closed(connection)
