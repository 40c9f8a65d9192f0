"""Decides which controller is active: the controller whose lease holds a key in etcd.

The lease only keeps controllers from working against each other. A controller that does not know
yet that its lease has ended does no harm, see `cometmq.controller.etcd`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from cometmq.controller.etcd import Compare, Etcd, EtcdUnavailableError, Put
from cometmq.system.failure_log import FailureLog

log = logging.getLogger(__name__)


class ControllerEntry(msgspec.Struct, frozen=True):
    """A controller, as it is known in etcd."""

    id: str
    address: str
    lease: int
    """Distinguishes this run of the controller from earlier ones with the same id."""


class ActiveController:
    """Holds or waits for the key of the active controller.

    Args:
        etcd: where the key is.
        prefix: of all keys of one group of controllers; it ends with a slash.
        own: returns the id and the address of this controller; called at each renewal.
        ttl_s: how long the lease lasts.
        now_s: returns the time of a monotonic clock.
    """

    def __init__(
        self,
        etcd: Etcd,
        prefix: str,
        *,
        own: Callable[[], tuple[str, str]],
        ttl_s: int,
        now_s: Callable[[], float],
    ) -> None:
        self._etcd = etcd
        self._active_key = f"{prefix}active"
        self._members = f"{prefix}members/"
        self._own = own
        self._ttl_s = ttl_s
        self._now_s = now_s
        self._lease: int | None = None
        self._holds_key = False
        self._until_s = 0.0
        self._failures = FailureLog(
            log, fails="etcd is unavailable", works="etcd is available again", name="keys"
        )
        self.active: ControllerEntry | None = None
        """The active controller as last read; None if it is unknown."""
        self.members: list[ControllerEntry] = []
        """All controllers of the group as last read."""

    @property
    def is_active(self) -> bool:
        """Whether this controller is the active one, as far as it can know."""
        return self._holds_key and self._now_s() < self._until_s

    async def renew(self) -> bool:
        """Prolong the lease, try to become active, and return whether this call achieved it.

        Call it at a third of the time to live.
        """
        was_active = self.is_active
        try:
            await self._renew()
        except EtcdUnavailableError as error:
            self._failures.failed(self._members, error)
            if was_active and not self.is_active:
                log.warning("controller is no longer active")
            self.active = None if not self.is_active else self.active
            return False
        self._failures.succeeded(self._members)
        if self.is_active and not was_active:
            log.info("controller is active id=%s address=%s", *self._own())
        return self.is_active and not was_active

    async def _renew(self) -> None:
        began_s = self._now_s()
        if self._lease is not None and not await self._etcd.keep_alive(self._lease):
            log.warning("the lease of this controller has ended lease=%d", self._lease)
            self._lease, self._holds_key = None, False
        if self._lease is None:
            began_s = self._now_s()
            self._lease = await self._etcd.grant(self._ttl_s)
        id_, address = self._own()
        entry = ControllerEntry(id_, address, self._lease)
        value = msgspec.json.encode(entry)
        member = f"{self._members}{id_}"
        found = await self._etcd.get(self._active_key)
        if found is None:
            puts = [Put(self._active_key, value, self._lease), Put(member, value, self._lease)]
            await self._etcd.transact([Compare(self._active_key, 0)], puts)
            found = await self._etcd.get(self._active_key)
        self.active = _entry(found.value) if found is not None else None
        self._holds_key = self.active == entry
        self._until_s = began_s + self._ttl_s
        self.members = [_entry(one.value) for one in await self._etcd.range(self._members)]
        if entry not in self.members:
            await self._etcd.transact([], [Put(member, value, self._lease)])

    async def resign(self) -> None:
        """End the lease, so that another controller takes over at once."""
        lease, self._lease, self._holds_key = self._lease, None, False
        if lease is not None:
            try:
                await self._etcd.revoke(lease)
            except EtcdUnavailableError as error:
                log.warning("the lease was not ended, it ends by itself: %s", error)


def _entry(value: bytes) -> ControllerEntry:
    return msgspec.json.decode(value, type=ControllerEntry)
