"""etcd in memory, which replaces the client of etcd in unit tests and the simulation.

The store outlives its clients, as the real one does: each controller gets a `ModelEtcd` of its own
on one `EtcdStore`. Time comes from a function, so leases end in virtual time. Faults are chosen by
the test: a link is up, cut before a call reaches the store, or cut before the response comes back,
in which case the transaction is applied although its caller sees an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum

from cometmq.controller.etcd import (
    Compare,
    Delete,
    EtcdUnavailableError,
    KeyValue,
    Operation,
    Put,
)


class Link(Enum):
    """What happens to the calls of one client."""

    UP = "up"
    NO_REQUEST = "no request arrives"
    NO_RESPONSE = "requests are applied, responses are lost"


class EtcdStore:
    """The keys and leases.

    Args:
        monotonic: returns seconds that only grow.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._keys: dict[str, tuple[KeyValue, int]] = {}
        self._leases: dict[int, tuple[int, float]] = {}
        self._lease_ids = 0
        self.revision = 1
        """Grows by 1 with each transaction that changes something; a new etcd has 1, too."""

    def get(self, key: str) -> KeyValue | None:
        self._expire()
        found = self._keys.get(key)
        return found[0] if found is not None else None

    def range(self, prefix: str) -> list[KeyValue]:
        self._expire()
        return [self._keys[key][0] for key in sorted(self._keys) if key.startswith(prefix)]

    def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> bool:
        self._expire()
        named = [operation.key for operation in operations]
        if len(set(named)) < len(named):
            raise ValueError(f"etcd refuses a transaction that writes a key twice: {named}")
        for compare in compares:
            found = self._keys.get(compare.key)
            if (found[0].mod_revision if found is not None else 0) != compare.mod_revision:
                return False
        leases = {put.lease for put in operations if isinstance(put, Put) and put.lease}
        if not leases <= self._leases.keys():
            return False
        revision = self.revision + 1
        for operation in operations:
            if isinstance(operation, Delete):
                if self._keys.pop(operation.key, None) is not None:
                    self.revision = revision
            else:
                self._put(operation, revision)
        return True

    def _put(self, put: Put, revision: int) -> None:
        self._keys[put.key] = KeyValue(put.key, put.value, revision), put.lease
        self.revision = revision

    def backup(self, part: str = "") -> dict[str, bytes]:
        """Return the keys whose names have a part, for `restore`."""
        return {key: found.value for key, (found, _) in self._keys.items() if part in key}

    def restore(self, values: dict[str, bytes]) -> None:
        """Write keys as they were; each gets a new revision, as from a restored backup."""
        self.transact([], [Put(key, value) for key, value in values.items()])

    def clear(self, part: str) -> None:
        """Delete the keys whose names have a part: those of an etcd that was emptied."""
        self.transact([], [Delete(key) for key in self._keys if part in key])

    def grant(self, ttl_s: int) -> int:
        self._lease_ids += 1
        self._leases[self._lease_ids] = ttl_s, self._monotonic() + ttl_s
        return self._lease_ids

    def keep_alive(self, lease: int) -> bool:
        self._expire()
        if lease not in self._leases:
            return False
        ttl_s, _ = self._leases[lease]
        self._leases[lease] = ttl_s, self._monotonic() + ttl_s
        return True

    def revoke(self, lease: int) -> None:
        if self._leases.pop(lease, None) is None:
            return
        ended = [key for key, (_, its_lease) in self._keys.items() if its_lease == lease]
        for key in ended:
            del self._keys[key]
        self.revision += bool(ended)

    def _expire(self) -> None:
        now_s = self._monotonic()
        for lease in [lease for lease, (_, end_s) in self._leases.items() if end_s <= now_s]:
            self.revoke(lease)


class ModelEtcd:
    """A client of the store; it has the calls of `cometmq.controller.etcd.Etcd`.

    Args:
        store: the keys and leases.
        delay: awaited before each request and each response; a simulation lets time pass there.
    """

    def __init__(self, store: EtcdStore, delay: Callable[[], float] = lambda: 0.0) -> None:
        self._store = store
        self._delay = delay
        self.link = Link.UP

    async def get(self, key: str) -> KeyValue | None:
        await self._request()
        found = self._store.get(key)
        await self._response()
        return found

    async def range(self, prefix: str) -> Sequence[KeyValue]:
        await self._request()
        found = self._store.range(prefix)
        await self._response()
        return found

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> bool:
        await self._request()
        applied = self._store.transact(compares, operations)
        await self._response()
        return applied

    async def grant(self, ttl_s: int) -> int:
        await self._request()
        lease = self._store.grant(ttl_s)
        await self._response()
        return lease

    async def keep_alive(self, lease: int) -> bool:
        await self._request()
        alive = self._store.keep_alive(lease)
        await self._response()
        return alive

    async def revoke(self, lease: int) -> None:
        await self._request()
        self._store.revoke(lease)
        await self._response()

    async def close(self) -> None:
        """Nothing is open."""

    async def _request(self) -> None:
        await asyncio.sleep(self._delay())
        if self.link is Link.NO_REQUEST:
            raise EtcdUnavailableError("the model of etcd is cut off")

    async def _response(self) -> None:
        await asyncio.sleep(self._delay())
        if self.link is not Link.UP:
            raise EtcdUnavailableError("the response of the model of etcd is lost")
