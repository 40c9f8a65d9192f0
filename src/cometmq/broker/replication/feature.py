"""Request handlers and jobs for replication."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.replication.handler import SlaveTablesHandler
from cometmq.broker.replication.status import StatusHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import every

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts

COPY_CHECK_S = 1.0


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers that serve slaves, and the copy of the master's tables."""

    async def copy_tables() -> None:
        if parts.role.is_slave:
            await parts.metadata.get().run()

    tables = SlaveTablesHandler(parts.clock)
    state = StatusHandler(parts.role, parts.store, parts.master, parts.log_copy)
    return Feature(
        {
            RequestCode.GET_BROKER_HA_STATUS: state.status,
            RequestCode.GET_TIMER_CHECK_POINT: tables.timer_checkpoint,
            RequestCode.GET_TIMER_METRICS: tables.timer_metrics,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: tables.request_modes,
        },
        [every(COPY_CHECK_S, copy_tables, "copy-tables", first_s=0.0)],
    )
