"""Keeps the process queue of a push consumer filled.

Source: PullAPIWrapper and DefaultMQPushConsumerImpl.pullMessage, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeVar

from cometmq.client._connection.broker_calls import QueueOffsets
from cometmq.client._connection.instance import ClientCore
from cometmq.client._connection.routes import MASTER_ID
from cometmq.client._consuming.continuation import Cause, cause_of, log_cause
from cometmq.client._consuming.handler_calls import MessageFilter
from cometmq.client._consuming.pulls import (
    FilterServers,
    Pull,
    PullResult,
    PullStatus,
    ReplicaChoice,
)
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._push.fast_path import PullFastPath, QueuePulls
from cometmq.client._push.process_queue import FetchedBatch, Limits, ProcessQueue
from cometmq.client._supervision import FetchLoop, SupervisedFailureLog, step_limit_s
from cometmq.client.errors import ClientError
from cometmq.client.filters import Filter
from cometmq.client.offsets import OffsetStore
from cometmq.client.settings import PushSettings
from cometmq.model.errors import RemotingError, ResponseError
from cometmq.model.offsets import QueueOffset
from cometmq.protocol.codes import ResponseCode

P = TypeVar("P", contravariant=True)

FirstOffset = Callable[[], Awaitable[QueueOffset]]

log = logging.getLogger(__name__)

WAITS_UNTIL_LOGGED = 30
"""A loop that has waited so often in a row logs which limit it waits for."""
_NOT_SUBSCRIBED = (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST)
"""Codes of a broker that has no subscription of the topic, or not the newest one."""
REFRESH_EVERY = 3
"""Failed pulls in a row until the topic's route is requested again."""


class ConsumeService(Protocol[P]):
    """Consumes what was put into process queues; ``P`` is the kind of process queue."""

    def submit(self, queue: P, batch: FetchedBatch) -> None:
        """Consume these messages, which are in the queue already; never blocks.

        Args:
            queue: the process queue.
            batch: what was just put into it.
        """

    async def stop(self, *, grace_s: float) -> None:
        """Take no further messages, wait for running handlers, then cancel what still runs."""


class _Target(NamedTuple):
    address: str
    is_master: bool


class PullRequests(NamedTuple):
    """The requests of all pull loops of a consumer."""

    instance: ClientCore
    """The connections to use."""
    group: str
    """The consumer group."""
    filter_of: Callable[[str], Filter | None]
    """Returns the filter of a topic; None while it is not subscribed."""
    settings: PushSettings
    replica: ReplicaChoice
    """Which replica to pull from."""
    commit_offsets: bool
    """Whether a pull to the master commits the consumed offset."""


class PullConditions(NamedTuple):
    """The conditions under which a queue is pulled."""

    limits: Limits
    """When the queue has enough messages."""
    suspended: Callable[[], bool]
    """Returns whether nothing is to be pulled for now."""
    need_lock: bool
    """Whether the queue must be locked at its broker."""
    check_pause: Callable[[], None] = lambda: None
    """Called before a pull and after its response: drops the process queue if this process stood
    still for long."""


class PullConsumption(NamedTuple):
    """The way of pulled messages to the handler."""

    keep: MessageFilter
    """Takes messages out that are not to be consumed."""
    service: ConsumeService[ProcessQueue]
    """Consumes the others."""
    store: OffsetStore
    """Gets the offset of an empty queue, and returns what may be committed."""
    stats: Statistics | None
    """Counts pulls."""


class PullLoop(FetchLoop[PullResult]):
    """Keeps one process queue filled.

    Args:
        process_queue: what is filled.
        first_offset: where to start, or how to find out.
        requests, conditions, consumption: see there; all loops of a consumer share them.
        failures: logs failed pulls.
        on_moved: called with the cause and the response when the queue cannot continue at its
            offset. It drops the process queue, so that the loop ends, and has the queue assigned
            again elsewhere. If it raises before, the loop pulls again.
        on_broken: called when messages could not be handed over after they were put in, or a pull
            made no progress for long: the process queue is dropped, and the queue must be assigned
            again at the committed offset.
    """

    def __init__(
        self,
        process_queue: ProcessQueue,
        first_offset: FirstOffset | QueueOffset,
        *,
        requests: PullRequests,
        conditions: PullConditions,
        consumption: PullConsumption,
        failures: SupervisedFailureLog,
        on_moved: Callable[[Cause, PullResult], Awaitable[None]],
        on_broken: Callable[[], None],
    ) -> None:
        instance, settings = requests.instance, requests.settings
        self.queue = process_queue.queue
        self.next_offset: QueueOffset | None = None
        """The offset of the next pull; None until it is known."""
        super().__init__(
            f"pull-{self.queue}",
            str(self.queue),
            failures,
            retry_s=settings.retry_ms / 1000,
            step_s_max=step_limit_s(settings.pull_timeout_ms / 1000),
        )
        self._process_queue = process_queue
        self._instance = instance
        self._routes = instance.routes
        self._fast_path = PullFastPath.of(instance)
        self._filter_servers = FilterServers.of(instance)
        self._offsets = QueueOffsets(instance.routes, instance.brokers)
        self._group = requests.group
        self._first_offset = first_offset
        self._filter_of = requests.filter_of
        self._settings = settings
        self._replica = requests.replica
        self._commit_offsets = requests.commit_offsets
        self._limits, self._suspended, self._need_lock, self._check_pause = conditions
        self._keep, self._service, self._store, self._stats = consumption
        self._on_moved = on_moved
        self._on_broken = on_broken
        self._pulls: QueuePulls | None = None
        self._received: PullResult | None = None
        """A response whose messages were handed over when it was received."""
        self._receive_error: BaseException | None = None
        self._target: _Target | None = None
        """The broker of the last pull."""
        self._target_replica = MASTER_ID
        self._routes_version = -1
        """The replica that the target was found for, and the version of the routes it was found
        in."""
        self._failed_pulls = 0
        self._waits = 0
        self._broken = False

    def _has_ended(self) -> bool:
        self._check_pause()
        return self._process_queue.dropped

    def _replace(self) -> None:
        """Release a queue that was not pulled for long: another member may have it."""
        super()._replace()
        self._release()

    # --- waiting ------------------------------------------------------------------------------

    def _is_blocked(self) -> bool:
        return (
            self._suspended()
            or (self._need_lock and not self._process_queue.locked)
            or self._filter_of(self.queue.topic) is None
            or self._limits.reached_limit(self._process_queue) is not None
        )

    async def _wait(self, seconds: float) -> None:
        self._process_queue.note_pull()
        self._waits += 1
        if self._waits == WAITS_UNTIL_LOGGED:
            self._log_limit()
        self._process_queue.on_removed = self._wake_if_free
        self._limits.waiting.add(self._wake_if_free)
        try:
            await super()._wait(seconds)
        finally:
            self._process_queue.on_removed = None
            self._limits.waiting.discard(self._wake_if_free)

    def _wake_if_free(self) -> None:
        if self._process_queue.dropped or not self._is_blocked():
            self.wake()

    def _log_limit(self) -> None:
        reason = self._limits.reached_limit(self._process_queue)
        if reason is not None and not self._suspended():
            log.warning(
                "pull paused: a buffer limit is reached queue=%s group=%s reason=%r",
                self.queue,
                self._group,
                reason,
            )

    # --- pulling ------------------------------------------------------------------------------

    async def _fetch(self) -> PullResult | None:
        self._process_queue.note_pull()
        self._waits = 0
        if self.next_offset is None:
            first = self._first_offset
            self.next_offset = await first() if callable(first) else first
        wanted = self._filter_of(self.queue.topic)
        if wanted is None:
            return None
        pulls = self._pulls
        if pulls is None or pulls.pull.wanted is not wanted:
            pulls = self._pulls = self._pulls_of(wanted)
        try:
            target = self._target
            replica = self._replica.of(self.queue)
            if (
                target is None
                or self._routes_version != self._routes.version
                or self._target_replica != replica
            ):
                target = await self._find_target(replica)
            timeout = self._settings.pull_timeout_ms / 1000
            if wanted.class_source is not None:  # the offset is committed without the pulls
                result = await self._filter_servers.pull(
                    target.address, pulls.pull, self.next_offset, timeout=timeout
                )
            else:
                consumed = None
                if self._commits_with_pull():
                    consumed = self._store.position(self.queue)
                result = await self._fast_path.pull(
                    target.address,
                    pulls,
                    self.next_offset,
                    (consumed or None) if target.is_master else None,
                    timeout,
                    self._receive,
                )
        except (RemotingError, ClientError):
            self._failed_pulls += 1
            await self._try_elsewhere()
            raise
        except ResponseError as error:
            if target is not None and error.code in _NOT_SUBSCRIBED:
                self._instance.heartbeat_in_full(target.address)
                remark = (
                    f"{error.remark}: if it goes on, another member of group {self._group} has "
                    "other topics or filters; give each application a group of its own"
                )
                raise ResponseError(error.code, remark) from None
            if error.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
                if await self._routes.has_moved(self.queue):
                    return None  # the next pull goes to the new broker
                raise
            if target is not None and target.is_master:
                self._process_queue.topic_missed |= error.code == ResponseCode.TOPIC_NOT_EXIST
            raise
        self._failed_pulls = 0
        return result if result is self._received or self._is_valid(wanted) else None

    def _is_valid(self, wanted: Filter) -> bool:
        """Return whether to act on a response.

        The broker may have applied another filter, whose messages this one would drop. What a
        suspended consumer gets from a held pull is pulled again later.
        """
        self._check_pause()
        return not (
            self._process_queue.dropped
            or self._suspended()
            or self._filter_of(self.queue.topic) != wanted
        )

    def _commits_with_pull(self) -> bool:
        queue = self._process_queue
        return self._commit_offsets and not queue.topic_missed and not queue.is_in_doubt()

    def _pulls_of(self, wanted: Filter) -> QueuePulls:
        pull = Pull(
            group=self._group,
            queue=self.queue,
            wanted=wanted,
            max_messages=self._settings.pull_batch,
            max_bytes=self._settings.pull_bytes,
            hold_ms=self._settings.hold_ms,
            send_filter=self._settings.send_filter,
        )
        return self._fast_path.pulls_of(pull)

    async def _find_target(self, replica: int) -> _Target:
        """Find the broker to pull from: this replica, else any of its name."""
        address = await self._offsets.address(self.queue, replica)
        self._target_replica, self._routes_version = replica, self._routes.version
        route = self._routes.known(self.queue.topic)
        self._target = _Target(address, route is None or route.master(self.queue) == address)
        return self._target

    async def _try_elsewhere(self) -> None:
        """Go back to the master, or refresh the route if it is the master that failed."""
        if self._replica.of(self.queue) != MASTER_ID:
            self._replica.forget(self.queue)
        elif self._failed_pulls % REFRESH_EVERY == 0:
            await self._routes.refresh(self.queue.topic)

    # --- what was pulled ----------------------------------------------------------------------

    def _receive(self, response: PullResult) -> None:
        """Hand over messages while they are received: so handlers begin before the next pull."""
        pulls = self._pulls
        if not response.messages or pulls is None:
            return
        try:
            if self._is_valid(pulls.pull.wanted) and self._cause_of(response) is None:
                self._received = response
                self._hand_over(response)
                self.next_offset = response.next_offset
        except BaseException as error:  # `_act` raises it
            self._receive_error = error

    def _cause_of(self, response: PullResult) -> Cause | None:
        topic_missed = self._process_queue.topic_missed
        return cause_of(response, self.next_offset, topic_missed=topic_missed)

    async def _act(self, response: PullResult, took_s: float) -> bool:
        before = self.next_offset
        self._replica.advise(self.queue, response.suggested_broker_id)
        if response is not self._received:
            cause = self._cause_of(response)
            if cause is not None:
                log_cause(log, cause, self.queue, self._group, self.next_offset, response)
                await self._on_moved(cause, response)
                return True
            self._hand_over(response)
        self._received = None
        error, self._receive_error = self._receive_error, None
        if error is not None:
            raise error
        self.next_offset = response.next_offset
        if self._stats is not None and response.status is PullStatus.FOUND:
            self._stats.pulled(self.queue.topic, len(response.messages), took_s * 1000)
        return bool(response.messages) or response.next_offset != before

    def _rest_s(self, response: PullResult) -> float:
        return self._settings.pull_interval_ms / 1000 if response.messages else 0.0

    def _hand_over(self, response: PullResult) -> None:
        # Until the messages are put in, an error leaves everything as it was: they are pulled
        # again. Behind that, only the committed offset still says which were not consumed.
        messages = response.messages and self._keep(self.queue, response.messages)
        if not messages:
            if self._process_queue.count == 0:
                self._store.update(self.queue, response.next_offset, increase_only=True)
            return
        try:
            batch = self._process_queue.put(messages)
            if batch is not None:
                self._service.submit(self._process_queue, batch)
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        self._broken = True
        self._process_queue.drop()
        self._on_broken()

    def _forget_failures(self) -> None:
        if not self._broken:  # else the loop that follows counts on
            super()._forget_failures()
