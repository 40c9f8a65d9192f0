"""Shows the state of replication.

Source: AdminBrokerProcessor.getBrokerHaStatus and resetMasterFlushOffset, RocketMQ 5.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.core import Core
from cometmq.broker.replication.master import Master
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.broker_admin import HARuntimeInfo
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting import Request, Response
from cometmq.remoting.features import Deferred

if TYPE_CHECKING:
    from cometmq.broker.replication.slave import LogCopy


class StatusHandler:
    """Shows the slaves of a master, or how a slave follows its master.

    Args:
        core: of the broker.
        master: the slaves.
        copy: the connection to the master.
    """

    def __init__(self, core: Core, master: Master, copy: Deferred[LogCopy]) -> None:
        self._role = core.role
        self._store = core.store
        self._master = master
        self._copy = copy

    def status(self, request: Request) -> Response:
        """GET_BROKER_HA_STATUS (907)."""
        body = HARuntimeInfo(
            master=not self._role.is_slave, master_commit_log_max_offset=self._store.written_to
        )
        if self._role.is_slave:
            body.ha_client_runtime_info = self._copy.get().status()
        else:
            body.ha_connection_info = self._master.status()
            body.in_sync_slave_nums = sum(slave.in_sync for slave in body.ha_connection_info)
        return Response(body=body.encode())

    def reset_flush_offset(self, request: Request) -> Response:
        """RESET_MASTER_FLUSH_OFFSET (908): a master has nothing to reset.

        Raises:
            ResponseError: 1, this broker is a slave. Where RocketMQ's slave truncates its log at
                this offset, ours compares it with the log of its master.
        """
        if self._role.is_slave:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                "this slave compares its log with that of its master: it keeps no flush offset",
            )
        return Response()
