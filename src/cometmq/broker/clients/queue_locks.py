"""Queue locks: which client of a group may consume a queue in order.

group -> queue (topic, broker, id) -> owner (client id, time of its last renewal)

A lock that was not renewed for 60 s is free again. Locks are kept in memory only: after a restart
clients lock anew. LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42) change them. Whether the topic exists
is not checked, as in RocketMQ; the number of locks is limited instead.

Source: RebalanceLockManager, AdminBrokerProcessor.lockBatchMQ and unlockBatchMQ, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from cometmq.broker.checks import check_body, check_client_id
from cometmq.broker.groups.table import GroupTable
from cometmq.broker.prerequisites import after_prerequisites
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.group import LockBatchRequestBody, LockBatchResponseBody
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import Slices, batched, decode, encode
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Enough for all 65,535 queues of a topic."""
LOCK_EXPIRY_MS: Final = 60_000
LOCKS_MAX: Final = 100_000
"""Locks of all groups; further ones are not granted until others expire."""


class _Lock:
    __slots__ = ("client_id", "renewed_ms")

    def __init__(self, client_id: str, renewed_ms: int) -> None:
        self.client_id = client_id
        self.renewed_ms = renewed_ms


class QueueLocks:
    """The queue locks of all groups.

    Args:
        clock: the wall clock.
        expiry_ms: a lock that was not renewed for longer than this is free.
        locks_max: limit for all groups together.
    """

    def __init__(
        self, clock: Clock, *, expiry_ms: int = LOCK_EXPIRY_MS, locks_max: int = LOCKS_MAX
    ) -> None:
        self._clock = clock
        self._expiry_ms = expiry_ms
        self._locks_max = locks_max
        self._count = 0
        self._is_full = False
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Lock free queues, renew the locks of the client; return the queues granted."""
        now_ms = self._clock.now_ms()
        held = self._groups.setdefault(group, {})
        granted = [queue for queue in queues if self._take(held, queue, client_id, now_ms)]
        if not held:
            del self._groups[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of this client; the locks of other clients stay."""
        held = self._groups.get(group)
        if held is None:
            return
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
                self._count -= 1
        if not held:
            del self._groups[group]

    def owner(self, group: str, queue: MessageQueue) -> str | None:
        """Return the client that holds the lock of a queue, or None."""
        lock = self._groups.get(group, {}).get(queue)
        if lock is None or self._has_expired(lock, self._clock.now_ms()):
            return None
        return lock.client_id

    def holds_any(self, group: str) -> bool:
        """Return whether a group holds any lock: it consumes in order."""
        held = self._groups.get(group)
        if held is None:
            return False
        now_ms = self._clock.now_ms()
        return any(not self._has_expired(lock, now_ms) for lock in held.values())

    def sweep(self) -> int:
        """Remove expired locks; return how many there were."""
        now_ms = self._clock.now_ms()
        swept = 0
        for group, held in list(self._groups.items()):
            expired = [queue for queue, lock in held.items() if self._has_expired(lock, now_ms)]
            for queue in expired:
                del held[queue]
            if not held:
                del self._groups[group]
            swept += len(expired)
        self._count -= swept
        return swept

    def _take(
        self, held: dict[MessageQueue, _Lock], queue: MessageQueue, client_id: str, now_ms: int
    ) -> bool:
        lock = held.get(queue)
        if lock is None:
            if self._count >= self._locks_max:
                self._note_full()
                return False
            held[queue] = _Lock(client_id, now_ms)
            self._count += 1
            self._is_full = False
            return True
        if lock.client_id != client_id and not self._has_expired(lock, now_ms):
            return False
        lock.client_id = client_id
        lock.renewed_ms = now_ms
        return True

    def _note_full(self) -> None:
        if not self._is_full:
            log.error("queue locks refused: limit reached locks_max=%d", self._locks_max)
        self._is_full = True

    def _has_expired(self, lock: _Lock, now_ms: int) -> bool:
        return now_ms - lock.renewed_ms > self._expiry_ms


class LockHandler:
    """Locks and unlocks queues for clients.

    Args:
        locks: the locks of all groups.
        groups: the table of groups.
    """

    def __init__(self, locks: QueueLocks, *, groups: GroupTable) -> None:
        self._locks = locks
        self._groups = groups

    async def lock(self, request: Request) -> Response:
        """Lock queues that are free or expired, and renew the client's locks."""
        body = await self._read(request)
        slices = Slices()
        queues = {queue: None async for queue in slices.each(body.mq_set)}
        granted: list[MessageQueue] = []
        for some in batched(queues):
            granted += self._locks.lock(body.consumer_group, body.client_id, some)
            await slices.pause()
        response = LockBatchResponseBody(lock_ok_mq_set=granted)
        return Response(body=await encode(response, slices))

    async def unlock(self, request: Request) -> Response:
        """Release the locks of the client."""
        body = await self._read(request)
        slices = Slices()
        for some in batched(body.mq_set):
            self._locks.unlock(body.consumer_group, body.client_id, some)
            await slices.pause()
        return Response()

    async def _read(self, request: Request) -> LockBatchRequestBody:
        check_body(request, BODY_BYTES_MAX)
        body = await decode(LockBatchRequestBody, request.body)
        check_client_id(body.client_id)
        await after_prerequisites(partial(self._groups.require, body.consumer_group), request)
        return body
