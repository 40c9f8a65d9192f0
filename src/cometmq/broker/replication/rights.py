"""The rights that requests between a master and its slaves need."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import ADMINISTRATOR, NOTHING, Action, Needs
from cometmq.access.rights import CHANGE, READ, Lookups, Right, Rights, on_cluster
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.broker_admin import ExchangeBrokerHaInfoRequest
from cometmq.remoting import Request


def _exchange(request: Request, _: Lookups) -> Needs:
    """Without any field it is a query."""
    header = request.header(ExchangeBrokerHaInfoRequest)
    given = (header.master_ha_address, header.master_address, header.log_slave)
    return NOTHING if given == (None, None, None) else ADMINISTRATOR


RIGHTS: Final = {
    RequestCode.EXCHANGE_BROKER_HA_INFO: Rights(
        plain=Right(_exchange), users=on_cluster(Action.UPDATE)
    ),
    RequestCode.GET_BROKER_HA_STATUS: READ,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: CHANGE,
}
