"""Queue locks: which client of a group may consume a queue in order.

group -> queue (topic, broker, id) -> owner (client id, time of its last renewal)

A lock that was not renewed for 60 s is free again. Kept in memory only: after a restart clients
lock anew. Source: RebalanceLockManager, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable

from cometmq.model.queue import MessageQueue
from cometmq.system.clock import Clock

LOCK_LIFE_MS = 60_000


class _Lock:
    __slots__ = ("client_id", "renewed_ms")

    def __init__(self, client_id: str, renewed_ms: int) -> None:
        self.client_id = client_id
        self.renewed_ms = renewed_ms


class QueueLocks:
    """The queue locks of all groups.

    Args:
        clock: tells the time in ms.
        life_ms: how long a lock lives without being renewed.
    """

    def __init__(self, clock: Clock, *, life_ms: int = LOCK_LIFE_MS) -> None:
        self._clock = clock
        self._life_ms = life_ms
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Lock or renew what is free, expired or the client's own; returns the queues granted."""
        now_ms = self._clock.now_ms()
        held = self._groups.setdefault(group, {})
        granted = [queue for queue in queues if self._take(held, queue, client_id, now_ms)]
        if not held:
            del self._groups[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Free the queues which this client holds; the locks of others stay."""
        held = self._groups.get(group)
        if held is None:
            return
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
        if not held:
            del self._groups[group]

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """The client that holds the queue now, or None."""
        lock = self._groups.get(group, {}).get(queue)
        if lock is None or self._has_expired(lock, self._clock.now_ms()):
            return None
        return lock.client_id

    def holds_any(self, group: str) -> bool:
        """Whether the group holds any lock: it consumes in order."""
        held = self._groups.get(group)
        if held is None:
            return False
        now_ms = self._clock.now_ms()
        return any(not self._has_expired(lock, now_ms) for lock in held.values())

    def sweep(self) -> int:
        """Forget expired locks; returns how many there were."""
        now_ms = self._clock.now_ms()
        swept = 0
        for group, held in list(self._groups.items()):
            expired = [queue for queue, lock in held.items() if self._has_expired(lock, now_ms)]
            for queue in expired:
                del held[queue]
            if not held:
                del self._groups[group]
            swept += len(expired)
        return swept

    def _take(
        self, held: dict[MessageQueue, _Lock], queue: MessageQueue, client_id: str, now_ms: int
    ) -> bool:
        lock = held.get(queue)
        if lock is None:
            held[queue] = _Lock(client_id, now_ms)
            return True
        if lock.client_id != client_id and not self._has_expired(lock, now_ms):
            return False
        lock.client_id = client_id
        lock.renewed_ms = now_ms
        return True

    def _has_expired(self, lock: _Lock, now_ms: int) -> bool:
        return now_ms - lock.renewed_ms > self._life_ms
