"""Handles requests about the role that a controller decides.

Source: AdminBrokerProcessor.notifyBrokerRoleChanged and getBrokerEpochCache, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cometmq.broker.config import BrokerSettings
from cometmq.broker.failover.elected_role import ElectedRole
from cometmq.broker.failover.epochs.epoch_file import Epoch
from cometmq.broker.role import Role
from cometmq.protocol.bodies.controller import EpochEntry, EpochEntryCache
from cometmq.remoting import Request, Response

_LAST_END: Final = 2**63 - 1
"""The end of the newest epoch in responses, as in RocketMQ."""


class ElectedHandler:
    """Handles requests of controllers, other brokers and tools.

    Args:
        elected: the role.
        role: the same as all parts of the broker see it.
        settings: returns the current settings of the broker.
    """

    def __init__(
        self,
        elected: ElectedRole,
        role: Role,
        settings: Callable[[], BrokerSettings],
    ) -> None:
        self._elected = elected
        self._role = role
        self._settings = settings

    def role_changed(self, request: Request) -> Response:
        """NOTIFY_BROKER_ROLE_CHANGED (1008).

        Any peer can send it, so its content is not used: this broker requests the decision from the
        controllers.
        """
        self._elected.notified()
        return Response()

    def epochs(self, request: Request) -> Response:
        """GET_BROKER_EPOCH_CACHE (1007)."""
        body = epoch_cache(
            self._settings(), self._role.broker_id, self._elected.epochs, self._elected.log_end
        )
        return Response(body=body.encode())


def epoch_cache(
    settings: BrokerSettings, broker_id: int, epochs: Sequence[Epoch], log_end: int
) -> EpochEntryCache:
    """Return the epochs of a log in the form of the wire."""
    ends = [epoch.start for epoch in epochs[1:]] + [_LAST_END]
    return EpochEntryCache(
        cluster_name=settings.broker_cluster_name,
        broker_name=settings.broker_name,
        broker_id=broker_id,
        epoch_list=[
            EpochEntry(epoch=epoch.number, start_offset=epoch.start, end_offset=end)
            for epoch, end in zip(epochs, ends, strict=False)
        ],
        max_offset=log_end,
    )
