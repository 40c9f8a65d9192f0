"""Handles requests between a master and its slaves.

Source: AdminBrokerProcessor.exchangeBrokerHaInfo, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cometmq.broker.core import Core
from cometmq.broker.replication.greeting import SlaveNames
from cometmq.broker.replication.master import Master
from cometmq.model.errors import ProtocolError, ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.broker_admin import (
    ExchangeBrokerHaInfoRequest,
    ExchangeBrokerHaInfoResponse,
)
from cometmq.remoting import Request, Response


class HaInfoHandler:
    """Handles the exchange of addresses between a master and its slaves.

    Args:
        core: of the broker.
        announced: takes the addresses of a master; None if only controllers name it.
        address: where clients reach this broker.
        log_end: the end of its log when it started.
        master: gives tickets for the port of the log, where slaves reach this broker.
    """

    def __init__(
        self,
        core: Core,
        announced: Callable[[Request], Awaitable[Response]] | None,
        *,
        address: str,
        log_end: int,
        master: Master,
    ) -> None:
        self._role = core.role
        self._master = master
        self._announced = announced
        self._address = address
        self._host = core.address
        self._log_end = log_end

    async def exchange(self, request: Request) -> Response:
        """EXCHANGE_BROKER_HA_INFO (906)."""
        if self._role.is_slave:
            return Response() if self._announced is None else await self._announced(request)
        header = request.header(ExchangeBrokerHaInfoRequest)
        if header.master_ha_address is not None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, "this broker is a master, expected one that follows"
            )
        return Response(
            header=ExchangeBrokerHaInfoResponse(
                master_ha_address=self._host.at(self._master.port),
                master_flush_offset=self._log_end,
                master_address=self._address,
                log_ticket=None if header.log_slave is None else self._ticket(header.log_slave),
                set_id=self._master.set_id() or None,
            )
        )

    def _ticket(self, slave: str) -> str:
        try:
            return self._master.tickets.give(SlaveNames.decode(bytes.fromhex(slave)))
        except (ValueError, ProtocolError) as problem:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"logSlave={slave[:40]}: {problem}"
            ) from problem
