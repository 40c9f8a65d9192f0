"""The interface between a controller and etcd; `EtcdGateway` implements it.

Everything a controller decides is one transaction on few keys. A transaction compares the
``mod_revision`` of the keys that its decision was read from, so it fails if any of them changed
since. Safety rests on that alone. Leases only say which controller is active; a controller that
wrongly believes to be active can lose a race, but cannot undo the decision of another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from cometmq.model.errors import CometError


class EtcdUnavailableError(CometError):
    """etcd gave no response: nothing is known of the outcome of a transaction."""


class KeyValue(msgspec.Struct, frozen=True):
    """One key, as read."""

    key: str
    value: bytes
    mod_revision: int
    """The revision of the store at the last change of this key; at least 1."""


class Compare(msgspec.Struct, frozen=True):
    """A condition of a transaction."""

    key: str
    mod_revision: int
    """0: the key does not exist."""


class Put(msgspec.Struct, frozen=True):
    """Writes a key."""

    key: str
    value: bytes
    lease: int = 0
    """The lease at whose end the key is deleted; 0 for none."""


class Delete(msgspec.Struct, frozen=True):
    """Deletes a key, if it exists."""

    key: str


Operation = Put | Delete


class Etcd(Protocol):
    """A client of etcd; the simulation and unit tests put a model in its place.

    What it promises: reads and transactions are linearizable; a transaction is applied as a whole
    or not at all; a lease ends no earlier than its time to live after the last successful
    `keep_alive` was sent. A call either returns the response of etcd or raises
    `EtcdUnavailableError`, within a bounded time. After that error a transaction may have been
    applied, or may be applied later, so callers read again and compare; they never take the error
    for a refusal.
    """

    async def get(self, key: str) -> KeyValue | None:
        """Return a key, or None if it does not exist.

        Raises:
            EtcdUnavailableError: etcd gave no response.
        """

    async def range(self, prefix: str) -> Sequence[KeyValue]:
        """Return all keys with a prefix, in ascending order, of one revision.

        Raises:
            EtcdUnavailableError: etcd gave no response.
        """

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> bool:
        """Apply the operations if all conditions hold, and return whether they were applied.

        They are not applied either if the lease of a `Put` has ended. Each key is in at most one
        operation, as etcd demands.

        Raises:
            EtcdUnavailableError: the outcome is unknown.
        """

    async def grant(self, ttl_s: int) -> int:
        """Return the id of a new lease.

        Raises:
            EtcdUnavailableError: etcd gave no response.
        """

    async def keep_alive(self, lease: int) -> bool:
        """Prolong a lease by its time to live; False if it has ended.

        Raises:
            EtcdUnavailableError: etcd gave no response.
        """

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys; a lease that has ended is no error.

        Raises:
            EtcdUnavailableError: etcd gave no response.
        """

    async def close(self) -> None:
        """Close the connections."""
