"""What a pull loop needs of the consumer that owns it.

Source: ConsumeMessageService and PullAPIWrapper, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeVar

from cometmq.client._connection.instance import ClientInstance
from cometmq.client._connection.queue_offsets import QueueOffsets
from cometmq.client._connection.routes import MASTER_ID
from cometmq.client._consuming.process_queue import FetchedBatch, Limits, ProcessQueue
from cometmq.client._consuming.pulls import Pull, PullResult, PullStatus, ReplicaChoice, pull_once
from cometmq.client._failure_log import trace_of
from cometmq.client.errors import ClientError
from cometmq.client.filters import Filter
from cometmq.client.offsets import OffsetStore
from cometmq.client.settings import PushSettings
from cometmq.model.errors import CometError, RemotingError, ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting import Supervisor
from cometmq.remoting.tasks import failure_of, is_call_failure

P = TypeVar("P", contravariant=True)

MessageFilter = Callable[[MessageQueue, list[StoredMessage]], list[StoredMessage]]
"""Gives the messages of a pull that are to be consumed; the others count as consumed."""


class ConsumeService(Protocol[P]):
    """Consumes what was put into the queues it is told of; ``P`` is the kind of process queue."""

    def submit(self, queue: P, batch: FetchedBatch) -> None:
        """Consume these messages, which are in the queue already; never blocks.

        Args:
            queue: the process queue.
            batch: what was just put into it.
        """

    async def stop(self, *, grace_s: float) -> None:
        """Take no further messages, wait for running handlers, then cancel what still runs."""


class PullStats(Protocol):
    """Counts pulls."""

    def pulled(self, topic: str, messages: int, cost_ms: float) -> None:
        """A pull of a topic has brought so many messages, and took so long from call to answer."""


log = logging.getLogger(__name__)

BROKER_BUSY_S = 0.02
"""Pause after a broker said that it has too much to do."""
LOOK_S = 1.0
"""How often a loop that waits looks again whether it still has to."""
LOOKS_TO_TELL = 30
"""A loop that has looked so often without a chance to pull tells why."""
JITTER = 0.2
"""By which part a pause after an error may be longer, so that queues do not come all at once."""
QUICK_S = 0.01
"""A pull that brings nothing and takes less than this was not held by the broker."""
REFRESH_EVERY = 10
"""Failed pulls in a row until the topic's route is asked for again."""

FirstOffset = Callable[[], Awaitable[QueueOffset]]


class _Target(NamedTuple):
    address: str
    is_master: bool


class PullLoop:
    """Keeps one process queue filled.

    Args:
        process_queue: what is filled.
        instance: whose connections are used.
        group: who pulls.
        wanted: gives the filter of the queue's topic; None while it is not subscribed.
        first_offset: where to begin, or how to find out; asked again until it says.
        store: is told how far an empty queue is, and tells what may be committed.
        service: is given what was pulled.
        limits: when the queue holds enough.
        keep: takes messages out that are not to be consumed.
        settings: of the consumer.
        replica: which replica to pull from.
        suspended: whether nothing is to be pulled for now.
        ordered: whether the queue must be locked at its broker before it is pulled.
        commit_with_pull: whether a pull tells the master how far the queue is consumed.
        stats: counts pulls.
        on_illegal: called when the queue does not reach to the offset that was asked for; the
            process queue is dropped by then, and the nearest offset kept in the store. The loop
            ends.
    """

    def __init__(
        self,
        process_queue: ProcessQueue,
        *,
        instance: ClientInstance,
        group: str,
        wanted: Callable[[], Filter | None],
        first_offset: FirstOffset | QueueOffset,
        store: OffsetStore,
        service: ConsumeService[ProcessQueue],
        limits: Limits,
        keep: MessageFilter,
        settings: PushSettings,
        replica: ReplicaChoice,
        suspended: Callable[[], bool],
        ordered: bool,
        commit_with_pull: bool,
        stats: PullStats | None,
        on_illegal: Callable[[QueueOffset], Awaitable[None]],
    ) -> None:
        self.queue = process_queue.queue
        self.next_offset: QueueOffset | None = None
        """Where the next pull begins; None until that is known."""
        self._fetched = process_queue
        self._instance = instance
        self._offsets = QueueOffsets(instance.routes, instance.brokers)
        self._group = group
        self._wanted = wanted
        self._first_offset = first_offset
        self._store = store
        self._service = service
        self._limits = limits
        self._keep = keep
        self._settings = settings
        self._replica = replica
        self._suspended = suspended
        self._ordered = ordered
        self._commit_with_pull = commit_with_pull
        self._stats = stats
        self._on_illegal = on_illegal
        self._looked = asyncio.Event()
        self._failures = 0
        self._quick_pulls = 0
        self._looks = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def failed(self) -> bool:
        """Whether an error ended the loop, which was logged."""
        task = self._task
        return task is not None and task.done() and failure_of(task) is not None

    def start(self, tasks: Supervisor) -> None:
        """Begin pulling in the background."""
        assert self._task is None, "a pull loop starts once"
        self._task = tasks.spawn(self._run(), f"pull-{self.queue}")

    async def stop(self) -> None:
        """Stop pulling; a pull that is held is given up, and what it brings is not put in."""
        task = self._task
        if task is None or task is asyncio.current_task():
            return
        task.cancel()
        await asyncio.wait([task])

    def wake(self) -> None:
        """Look again at once whether there is something to wait for: after a resume or a lock."""
        self._looked.set()

    async def _run(self) -> None:
        while not self._fetched.dropped:
            self._fetched.note_pull()
            if self._has_to_wait():
                await self._wait()
                continue
            self._looks = 0
            try:
                if self.next_offset is None:
                    self.next_offset = await self._begin()
                    continue
                await self._pull(self.next_offset)
            except CometError as error:
                await self._recover(error)

    def _has_to_wait(self) -> bool:
        return (
            self._suspended()
            or (self._ordered and not self._fetched.locked)
            or self._wanted() is None
            or self._limits.holds_enough(self._fetched) is not None
        )

    async def _wait(self) -> None:
        """Wait until there is room, or somebody says that something has changed."""
        self._looked.clear()
        self._looks += 1
        if self._looks == LOOKS_TO_TELL:
            self._tell_why()
        self._fetched.on_room = self._look
        self._limits.waiting.add(self._look)
        try:
            async with asyncio.timeout(LOOK_S):
                await self._looked.wait()
        except TimeoutError:
            pass
        finally:
            self._fetched.on_room = None
            self._limits.waiting.discard(self._look)

    def _tell_why(self) -> None:
        """Say once that the queue waits for its handlers, if that is what it waits for."""
        reason = self._limits.holds_enough(self._fetched)
        if reason is not None and not self._suspended():
            log.warning(
                "pull paused: a buffer limit is reached queue=%s group=%s reason=%r",
                *(self.queue, self._group, reason),
            )

    def _look(self) -> None:
        if self._fetched.dropped or not self._has_to_wait():
            self._looked.set()

    async def _begin(self) -> QueueOffset:
        if not callable(self._first_offset):
            return self._first_offset
        return await self._first_offset()

    async def _pull(self, offset: QueueOffset) -> None:
        loop = asyncio.get_running_loop()
        wanted = self._wanted()
        if wanted is None:
            return
        began = loop.time()
        result = await self._fetch(offset, wanted)
        if result is None or self._fetched.dropped:
            return
        self._replica.advise(self.queue, result.suggested_broker_id)
        took_s = loop.time() - began
        await self._act_on(result, took_s)
        self._recovered()
        if self._settings.pull_interval_ms and result.messages:
            await asyncio.sleep(self._settings.pull_interval_ms / 1000)
        await self._slow_down(offset, result, took_s)

    async def _fetch(self, offset: QueueOffset, wanted: Filter) -> PullResult | None:
        """Send one pull; None if it failed, after the pause that the error calls for.

        An error of a hook or of a custom offset store is treated as one of the broker. Behind the
        response the loop has taken messages, so that an error there must end it: see `failed`.
        """
        try:
            target = await self._target()
            return await pull_once(
                self._instance.brokers,
                target.address,
                self._request(offset, wanted, target),
                timeout=self._settings.answer_ms / 1000,
            )
        except BaseException as error:
            if not is_call_failure(error):
                raise
            await self._recover(error)
            return None

    def _request(self, offset: QueueOffset, wanted: Filter, target: _Target) -> Pull:
        consumed = self._store.position(self.queue)
        commits = self._commit_with_pull and target.is_master and consumed
        return Pull(
            group=self._group,
            queue=self.queue,
            offset=offset,
            wanted=wanted,
            max_messages=self._settings.pull_batch,
            max_bytes=self._settings.pull_bytes,
            hold_ms=self._settings.hold_ms,
            commit_offset=consumed if commits else None,
            send_filter=self._settings.send_filter,
        )

    async def _target(self) -> _Target:
        """Find the broker to ask: the replica it advised, else any of its name."""
        address = await self._offsets.address(self.queue, self._replica.of(self.queue))
        route = self._instance.routes.known(self.queue.topic)
        return _Target(address, route is None or route.master(self.queue) == address)

    async def _act_on(self, result: PullResult, took_s: float) -> None:
        if result.status is PullStatus.OFFSET_ILLEGAL:
            await self._leave(result)
            return
        self.next_offset = result.next_offset
        messages = result.messages and self._keep(self.queue, result.messages)
        if messages:
            batch = self._fetched.put(messages, behind=result.max_offset)
            if batch is not None:
                self._service.submit(self._fetched, batch)
        elif self._fetched.count == 0:
            self._store.update(self.queue, result.next_offset, increase_only=True)
        if self._stats is not None and result.status is PullStatus.FOUND:
            self._stats.pulled(self.queue.topic, len(result.messages), took_s * 1000)

    async def _leave(self, result: PullResult) -> None:
        """Drop the queue: it does not reach to the offset, and whoever takes it begins nearby."""
        log.warning(
            "offset out of range queue=%s group=%s offset=%s min=%d max=%d",
            *(self.queue, self._group, self.next_offset, result.min_offset, result.max_offset),
        )
        self.next_offset = result.next_offset
        self._fetched.drop()
        self._store.freeze(self.queue, result.next_offset)
        try:
            await self._store.persist([self.queue])
        finally:
            await self._on_illegal(result.next_offset)

    async def _slow_down(self, offset: QueueOffset, result: PullResult, took_s: float) -> None:
        """Pause if the broker answers at once that there is nothing, again and again."""
        if result.messages or result.next_offset != offset or took_s > QUICK_S:
            self._quick_pulls = 0
            return
        self._quick_pulls += 1
        if self._quick_pulls > 1:
            await asyncio.sleep(min(QUICK_S * 2 ** min(self._quick_pulls, 10), LOOK_S))

    async def _recover(self, error: BaseException) -> None:
        self._failures += 1
        first = self._failures == 1
        log.log(
            logging.WARNING if first else logging.DEBUG,
            "pull failed, retrying queue=%s group=%s failures=%d error=%s: %s",
            *(self.queue, self._group, self._failures, type(error).__name__, error),
            exc_info=trace_of(error),
        )
        if isinstance(error, ResponseError) and error.code == ResponseCode.FLOW_CONTROL:
            await asyncio.sleep(BROKER_BUSY_S)
            return
        if isinstance(error, (RemotingError, ClientError)):
            await self._look_elsewhere()
        await asyncio.sleep(self._settings.retry_ms / 1000 * random.uniform(1, 1 + JITTER))

    async def _look_elsewhere(self) -> None:
        """Go back to the master, and if it is the one that failed, see what the route says now."""
        if self._replica.of(self.queue) != MASTER_ID:
            self._replica.forget(self.queue)
        elif self._failures % REFRESH_EVERY == 0:
            await self._instance.routes.refresh(self.queue.topic)

    def _recovered(self) -> None:
        if self._failures:
            log.info("pull succeeds again queue=%s group=%s", self.queue, self._group)
            self._failures = 0
