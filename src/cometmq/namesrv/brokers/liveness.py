"""Removes brokers that are silent or whose connection is closed, and notifies their groups.

Source: BatchUnregistrationService and RouteInfoManager.notifyMinBrokerIdChanged, RocketMQ 5.3.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from cometmq.model.errors import RemotingError
from cometmq.namesrv.config import NameServerSettings
from cometmq.namesrv.registry import MinIdNotice, Registry
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.namesrv import NotifyMinBrokerIdChangeRequest
from cometmq.remoting import Connection, RemotingClient, Supervisor
from cometmq.remoting.slices import Slices

log = logging.getLogger(__name__)


class BrokerLiveness:
    """Ends registrations, and notifies groups whose smallest broker id changed.

    Args:
        registry: the registered brokers.
        client: sends the notifications.
        supervisor: owns the tasks that send them.
        settings: returns the current settings.
        now_ms: returns the time of a monotonic clock.
    """

    def __init__(
        self,
        registry: Registry,
        client: RemotingClient,
        supervisor: Supervisor,
        settings: Callable[[], NameServerSettings],
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._client = client
        self._supervisor = supervisor
        self._settings = settings
        self._now_ms = now_ms

    async def expire(self) -> None:
        """Remove the brokers that were silent for too long, and close their connections."""
        async for expired in Slices().each(await self._registry.expire(self._now_ms)):
            log.warning("broker heartbeat timed out address=%s", expired.key.address)
            if isinstance(expired.connection, Connection):
                expired.connection.close()
            if expired.notice is not None:
                self.notify(expired.notice)

    def connection_closed(self, connection: Connection) -> None:
        """Remove the brokers that registered over a connection."""
        if self._registry.has_registered(connection):
            log.warning("broker connection closed peer=%s", connection.peer_text)
            self._supervisor.spawn(self._remove_brokers_of(connection), "disconnected")

    async def _remove_brokers_of(self, connection: Connection) -> None:
        async for notice in Slices().each(await self._registry.disconnected(connection)):
            self.notify(notice)

    def notify(self, notice: MinIdNotice) -> None:
        """Notify the brokers of a group that its smallest id changed, if the settings say so."""
        if self._settings().notify_min_broker_id:
            self._supervisor.spawn(self._send(notice), "notify")

    async def _send(self, notice: MinIdNotice) -> None:
        header = header_of(notice)
        for target in notice.targets:
            with contextlib.suppress(RemotingError):
                await self._client.oneway(target, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header)


def header_of(notice: MinIdNotice) -> NotifyMinBrokerIdChangeRequest:
    """Return the header that notifies a broker that the smallest id changed."""
    return NotifyMinBrokerIdChangeRequest(
        min_broker_id=notice.min_id,
        min_broker_addr=notice.min_address,
        offline_broker_addr=notice.offline_address,
        ha_broker_addr=notice.ha_address,
    )
