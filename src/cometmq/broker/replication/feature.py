"""Request handlers and jobs for replication."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import every

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts
    from cometmq.broker.replication.handler import SlaveTablesHandler
    from cometmq.broker.replication.status import StatusHandler

COPY_CHECK_S = 1.0


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers that serve slaves, and the copy of the master's tables."""

    async def copy_tables() -> None:
        if parts.role.is_slave:
            await parts.metadata.get().run()

    started_ms = parts.clock.now_ms()

    def make_tables() -> SlaveTablesHandler:
        from cometmq.broker.replication.handler import SlaveTablesHandler

        return SlaveTablesHandler(parts.clock, started_ms)

    def make_state() -> StatusHandler:
        from cometmq.broker.replication.status import StatusHandler

        return StatusHandler(parts.role, parts.store, parts.master, parts.log_copy)

    tables, state = Deferred(make_tables), Deferred(make_state)
    return Feature(
        {
            RequestCode.GET_BROKER_HA_STATUS: state.handler(lambda h: h.status),
            RequestCode.GET_TIMER_CHECK_POINT: tables.handler(lambda h: h.timer_checkpoint),
            RequestCode.GET_TIMER_METRICS: tables.handler(lambda h: h.timer_metrics),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: tables.handler(lambda h: h.request_modes),
        },
        [every(COPY_CHECK_S, copy_tables, "copy-tables", first_s=0.0)],
    )
