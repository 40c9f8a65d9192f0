"""The facts about a cluster that its servers have sent to the checks."""

from __future__ import annotations

from typing import NamedTuple

from cometmq.cli.doctor.findings import Finding, fine
from cometmq.client import AdminClient
from cometmq.protocol.bodies.route import MASTER_ID, BrokerData


class Broker(NamedTuple):
    """A broker that responded."""

    name: str
    number: int
    """0 for the master of its name."""
    address: str
    figures: dict[str, str]
    """Its runtime information."""
    config: dict[str, str]
    """Its settings."""

    @property
    def subject(self) -> str:
        """How findings name it."""
        return f"{self.name} ({self.address})"

    @property
    def is_master(self) -> bool:
        """Whether it is the master of its name."""
        return self.number == MASTER_ID

    @property
    def host(self) -> str:
        """The host of its address, without brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port of its address."""
        return int(self.address.rpartition(":")[2])

    @property
    def log_end(self) -> int | None:
        """The physical offset of the end of its log; None if it does not show it."""
        text = self.figures.get("commitLogMaxOffset", "")
        return int(text) if text.isdigit() else None

    def setting(self, key: str, default: int) -> int:
        """Return a setting that is a number; the default if this broker does not have it."""
        text = self.config.get(key, "")
        return int(text) if text.isdigit() else default


def responds(broker: Broker) -> Finding:
    """Return the finding that a broker responds, with its version."""
    version = broker.figures.get("brokerVersionDesc", "version unknown")
    return fine("brokers", broker.subject, f"responds, {version}")


class Cluster:
    """A cluster as far as it is known.

    Args:
        admin: calls its servers.
    """

    def __init__(self, admin: AdminClient) -> None:
        self.admin = admin
        self.registered: dict[str, BrokerData] = {}
        """The registered brokers by name."""
        self.topics: frozenset[str] = frozenset()
        self.brokers: list[Broker] = []
        """The brokers that responded."""

    @property
    def masters(self) -> list[Broker]:
        """The masters that responded."""
        return [broker for broker in self.brokers if broker.is_master]

    def named(self, name: str) -> list[Broker]:
        """Return the brokers of a name that responded, the master first."""
        found = [broker for broker in self.brokers if broker.name == name]
        return sorted(found, key=lambda broker: broker.number)
