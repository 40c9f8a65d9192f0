"""Request handlers and jobs for replication."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import every

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts
    from cometmq.broker.replication.handler import EmptyTablesHandler, HaInfoHandler
    from cometmq.broker.replication.status import StatusHandler

COPY_CHECK_S = 1.0


def build(parts: Parts, endpoint: Endpoint) -> Feature:
    """Build the handlers that serve slaves, and the copy of the master's tables."""

    async def copy_tables() -> None:
        if parts.role.is_slave and (parts.acting is None or parts.acting.has_master):
            await parts.metadata.get().run()

    started_ms = parts.clock.now_ms()

    def make_tables() -> EmptyTablesHandler:
        from cometmq.broker.replication.handler import EmptyTablesHandler

        return EmptyTablesHandler(parts.clock, started_ms)

    def make_state() -> StatusHandler:
        from cometmq.broker.replication.status import StatusHandler

        return StatusHandler(parts.role, parts.store, parts.master, parts.log_copy)

    def make_addresses() -> HaInfoHandler:
        from cometmq.broker.replication.handler import HaInfoHandler

        return HaInfoHandler(
            parts.role,
            None if parts.acting is None else parts.acting.announced,
            address=endpoint.address,
            ha_address=lambda: parts.address.at(parts.master.port),
            log_end=started_at,
            master=parts.master,
        )

    started_at = parts.store.written_to
    tables, state = Deferred(make_tables), Deferred(make_state)
    addresses = Deferred(make_addresses)
    return Feature(
        {
            RequestCode.EXCHANGE_BROKER_HA_INFO: addresses.handler(lambda h: h.exchange),
            RequestCode.GET_BROKER_HA_STATUS: state.handler(lambda h: h.status),
            RequestCode.RESET_MASTER_FLUSH_OFFSET: state.handler(lambda h: h.reset_flush_offset),
            RequestCode.GET_TIMER_CHECK_POINT: tables.handler(lambda h: h.timer_checkpoint),
            RequestCode.GET_TIMER_METRICS: tables.handler(lambda h: h.timer_metrics),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: tables.handler(lambda h: h.request_modes),
        },
        [every(COPY_CHECK_S, copy_tables, "copy-tables", first_s=0.0)],
    )
