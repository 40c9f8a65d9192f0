"""The role of this broker in replication: master or slave, and of which master.

All parts of the broker read the role when they need it and keep no copy, because it may change
while the broker runs. What starts or stops with the role is called by `RoleChanges`, feature by
feature.

Source: BrokerStartup (which ids belong to which role), RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cometmq.model.errors import ConfigError

ASYNC_MASTER: Final = "ASYNC_MASTER"
SYNC_MASTER: Final = "SYNC_MASTER"
SLAVE: Final = "SLAVE"
ROLES: Final = (ASYNC_MASTER, SYNC_MASTER, SLAVE)

MASTER_ID: Final = 0
"""The broker id of every master; slaves have ids above it."""

UNKNOWN_ID: Final = 1
"""The broker id before a controller has given one; it is shown to no other server."""

Listener = Callable[[], None]


def check_role(name: str, broker_id: int) -> None:
    """Refuse a broker id that does not belong to the role.

    Raises:
        ConfigError: a slave has the id of masters, or a master the id of slaves.
    """
    if name == SLAVE and broker_id <= MASTER_ID:
        raise ConfigError(f"brokerId={broker_id} with brokerRole={SLAVE}: expected 1 or more")
    if name != SLAVE and broker_id != MASTER_ID:
        raise ConfigError(
            f"brokerId={broker_id} with brokerRole={name}: a master has brokerId={MASTER_ID};"
            f" set brokerRole={SLAVE} for a slave"
        )


class Role:
    """The role of this broker, and the master that it follows.

    Args:
        name: one of `ROLES`.
        broker_id: 0 for a master.
        ha_address: where the master sends its log; addresses of name servers are ignored.
        is_elected: whether a controller names the master, so that name servers only add where it
            sends its log.

    Raises:
        ConfigError: role and id do not belong together.
    """

    def __init__(
        self,
        name: str = ASYNC_MASTER,
        broker_id: int = MASTER_ID,
        *,
        ha_address: str = "",
        is_elected: bool = False,
    ) -> None:
        self._listeners: list[Listener] = []
        self._master_listeners: list[Listener] = []
        self.has_fixed_ha_address = bool(ha_address)
        """Whether `master_ha_address` stays what it is, whatever name servers say."""
        self.is_elected = is_elected
        """Whether a controller names the master."""
        self.master_address = ""
        """``host:port`` of the master of a slave; empty if it is not known."""
        self.master_ha_address = ha_address
        """``host:port`` at which that master sends its log; empty if it is not known."""
        self.in_force = asyncio.Event()
        """Set while the role is in force: a slave, or a master that accepts sends."""
        self.in_force.set()
        self._take(name, broker_id)

    def _take(self, name: str, broker_id: int) -> None:
        check_role(name, broker_id)
        self.name = name
        self.broker_id = broker_id
        self.is_slave = name == SLAVE
        self.is_sync_master = name == SYNC_MASTER

    def change(self, name: str, broker_id: int) -> None:
        """Take another role; the listeners are called in the order in which they were added.

        Raises:
            ConfigError: role and id do not belong together; nothing has changed.
        """
        if (name, broker_id) == (self.name, self.broker_id):
            return
        self._take(name, broker_id)
        for listener in self._listeners:
            listener()

    def follow(self, master_address: str, ha_address: str) -> None:
        """Take the addresses of the master; an empty one leaves the known one as it is.

        If a controller names the master, the addresses of another broker are ignored.
        """
        if self.is_elected and master_address != self.master_address:
            return
        if self.has_fixed_ha_address:
            ha_address = ""
        self._follow(master_address or self.master_address, ha_address or self.master_ha_address)

    def follow_elected(self, master_address: str) -> None:
        """Take the address of the elected master, empty if there is none.

        Where it sends its log is not known then, see `follow`.
        """
        self._follow(master_address, "")

    def _follow(self, master_address: str, ha_address: str) -> None:
        found = (master_address, ha_address)
        if found == (self.master_address, self.master_ha_address):
            return
        self.master_address, self.master_ha_address = found
        for listener in self._master_listeners:
            listener()

    def on_change(self, listener: Listener) -> None:
        """Call a function after each change of the role."""
        self._listeners.append(listener)

    def on_master(self, listener: Listener) -> None:
        """Call a function after each change of the master's addresses."""
        self._master_listeners.append(listener)
