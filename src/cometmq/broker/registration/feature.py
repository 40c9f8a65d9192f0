"""The registration at the name servers, from the start to the stop of the broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.registration.name_servers import Identity

if TYPE_CHECKING:
    from cometmq.broker.registration.name_servers import Registration
    from cometmq.broker.replication.feature import ReplicationFeature


class RegistrationFeature(BrokerFeature):
    """Registers the broker once it listens, for clients and for slaves.

    Args:
        core: of the broker.
        registration: at the name servers.
        replication: knows the port for slaves.
        name_servers: returns the addresses of the name servers.
    """

    def __init__(
        self,
        core: Core,
        registration: Registration,
        replication: ReplicationFeature,
        name_servers: Callable[[], Sequence[str]],
    ) -> None:
        super().__init__(core)
        self.registration = registration
        self._replication = replication
        self._name_servers = name_servers

    async def begin(self, endpoint: Endpoint) -> None:
        """Register, unless controllers decide the role first."""
        if not self._core.role.is_elected:
            await self.register(endpoint)

    async def register(self, endpoint: Endpoint) -> None:
        """Register; return when that is done, or when the time for it is over."""
        settings = self._core.settings()
        identity = Identity(
            cluster=settings.broker_cluster_name,
            broker_name=settings.broker_name,
            address=endpoint.address,
            ha_address=self._replication.ha_address(endpoint),
        )
        await self.registration.start(identity, self._name_servers())

    def role_changed(self) -> None:
        """Register in the new role."""
        self.registration.hurry()

    async def drain(self) -> None:
        """Take the broker out of all name servers."""
        await self.registration.stop()
