"""The parts of a pull consumer that all its calls use: settings, fetched messages, positions.

Inside, topics and groups have the names that brokers know. Names that applications pass and see
have no namespace.

Source: DefaultLitePullConsumerImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum

import msgspec

from cometmq.client._connection.broker_calls import QueueOffsets
from cometmq.client._connection.instance import Lease
from cometmq.client._consuming.consumer import Consumer
from cometmq.client._consuming.continuation import Cause, Continuation
from cometmq.client._consuming.handler_calls import ConsumeHookCalls, FilterChain
from cometmq.client._consuming.handover import Handover
from cometmq.client._consuming.pulls import (
    FilterServers,
    Pull,
    PullResult,
    ReplicaChoice,
    pull_once,
)
from cometmq.client._pull.fetcher import BufferLimits, Fetcher, QueueEvents
from cometmq.client._pull.positions import (
    Offsets,
    Positions,
    Reader,
    ReaderState,
    Unfinished,
    check_assigned,
    current_reader,
    state_of,
)
from cometmq.client._supervision import step_limit_s
from cometmq.client.errors import ClientError, WrongModeError
from cometmq.client.filters import Filter
from cometmq.client.hooks import ConsumeEnd, ConsumeHook, FilterHook
from cometmq.client.offsets import (
    Failures,
    OffsetStore,
    StartFrom,
    default_store,
)
from cometmq.client.settings import MIB, ClientSettings, PullSettings, Tables, resolve_settings
from cometmq.model.errors import ResponseError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import retry_topic
from cometmq.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

OnAssigned = Callable[[str, Collection[MessageQueue], Collection[MessageQueue]], Awaitable[None]]


class Mode(Enum):
    """How a consumer gets its queues."""

    ASSIGNED = "is assigned queues"
    SUBSCRIBED = "subscribes to topics"


class AssignmentMode:
    """The way in which a consumer gets its queues, which does not change."""

    def __init__(self) -> None:
        self.mode: Mode | None = None

    def choose(self, mode: Mode) -> None:
        """Choose this way.

        Raises:
            WrongModeError: the consumer uses the other way.
        """
        self.check(mode)
        self.mode = mode

    def check(self, mode: Mode) -> None:
        """Reject a call that belongs to the other way.

        Raises:
            WrongModeError: the consumer uses the other way.
        """
        if self.mode is not None and self.mode is not mode:
            raise WrongModeError(
                f"this consumer {self.mode.value}: use another consumer that {mode.value}"
            )


class AssignedPullQueues:
    """Starts and stops fetching queues for the rebalancer.

    Args:
        fetcher: fetches the assigned queues.
        is_subscribed: whether a topic is still subscribed.
        revoke: commits the finished offset of a queue, and stops fetching it.
        on_assigned: called after each rebalance.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        is_subscribed: Callable[[str], bool],
        revoke: Callable[[MessageQueue], Awaitable[None]],
        on_assigned: OnAssigned,
    ) -> None:
        self._fetcher = fetcher
        self._is_subscribed = is_subscribed
        self._revoke = revoke
        self._on_assigned = on_assigned

    def assigned(self, topic: str) -> Collection[MessageQueue]:
        """Return the queues of a topic that are assigned now."""
        return self._fetcher.of_topic(topic)

    async def assign(self, queue: MessageQueue) -> bool:
        """Start fetching a queue. The fetcher finds where it starts."""
        if self._is_subscribed(queue.topic):
            self._fetcher.begin(queue)
        return True

    async def revoke(self, queue: MessageQueue) -> bool:
        """Stop fetching a queue."""
        await self._revoke(queue)
        return True

    async def rebalanced(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        """Call the listener."""
        await self._on_assigned(topic, queues, mine)


UNFINISHED_S_MAX = 120.0
"""Seconds after which unfinished messages of a reader are logged."""


class PullCore(Consumer):
    """Fetches queues and tracks positions."""

    def __init__(
        self,
        group: str,
        lease: Lease,
        settings: PullSettings,
        tables: Tables | None,
        *,
        start_from: StartFrom | datetime | int,
        broadcast: bool,
        offset_store: OffsetStore | None,
        hooks: Sequence[ConsumeHook | FilterHook],
    ) -> None:
        self._settings = settings
        super().__init__(group, lease, settings, tables, self._shown_filters)
        self._namespace = self._instance.namespace
        self._mode = AssignmentMode()
        self._filters: dict[str, Filter] = {}
        self._positions = Positions(lambda queue: self._fetcher.lowest(queue))
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self._unsettled = 0
        """Calls since `_settle_ended` looked at all readers."""
        self._committing = asyncio.Lock()
        self._replicas = ReplicaChoice()
        self._offsets = QueueOffsets(self._instance.routes, self._instance.brokers)
        self._start_from = start_from
        self._store = offset_store or default_store(
            self._instance,
            self._wire_group,
            broadcast=broadcast,
            folder=self._settings.offset_folder,
        )
        self._handover: Handover | None = None
        """Takes queues from other members; None if queues are assigned by the application."""
        self._doubt_ends_s = 0.0
        """Until when other members may commit offsets of the same queues."""
        self._continuation = Continuation(
            self._store,
            self._offsets,
            start_from=start_from,
            retry_topic=retry_topic(self._wire_group),
        )
        self._hooks = ConsumeHookCalls(
            [*hooks, *self._trace_hooks],
            group=group,
            client_id=self._instance.client_id,
            namespace=self._namespace.name,
            ordered=True,
        )
        self._filter_chain = FilterChain(hooks, group, self._namespace)
        self._fetcher = Fetcher(
            self._pull_next,
            self._first_offset,
            limits=BufferLimits(
                settings.fetched_max,
                settings.queue_messages_max,
                settings.queue_mib_max * MIB,
                settings.span_max,
            ),
            retry_s=self._settings.retry_ms / 1000,
            step_s_max=step_limit_s(
                (self._settings.hold_ms + self._settings.response_margin_ms) / 1000
            ),
            group=group,
            on_permanent=self._tasks.end,
            events=QueueEvents(
                moved=self._continue_elsewhere,
                topic_missed=self._positions.drop,
                hung=self._restart,
            ),
        )
        self._tasks.on_failure = self._fetcher.fail

    @property
    def settings(self) -> PullSettings:
        """The settings that are in effect."""
        return self._settings

    def _shown_filters(self) -> dict[str, Filter]:
        unwrap = self._namespace.unwrap
        return {unwrap(topic): wanted for topic, wanted in self._filters.items()}

    async def _pull(self, pull: Pull, offset: QueueOffset, timeout: float) -> PullResult:
        """Pull from the broker of a queue; again if the queue has moved to another one."""
        try:
            return await self._pull_once(pull, offset, timeout)
        except ResponseError as error:
            if error.code != ResponseCode.NOT_LEADER_FOR_QUEUE:
                raise
            if not await self._instance.routes.has_moved(pull.queue):
                raise
        return await self._pull_once(pull, offset, timeout)

    async def _pull_once(self, pull: Pull, offset: QueueOffset, timeout: float) -> PullResult:
        queue = pull.queue
        address = await self._offsets.address(queue, self._replicas.of(queue))
        if pull.wanted.class_source is not None:
            servers = FilterServers.of(self._instance)
            return await servers.pull(address, pull, offset, timeout=timeout)
        if pull.lite and not self._instance.broker_version(address):
            await self._instance.ensure_heartbeat(address)  # its response has the version
        result = await pull_once(
            self._instance.brokers,
            address,
            pull,
            offset,
            timeout=timeout,
            broker_version=self._instance.broker_version(address),
        )
        self._replicas.advise(queue, result.suggested_broker_id)
        return result

    def _shown(self, result: PullResult) -> PullResult:
        """Take the namespace out of messages."""
        self._namespace.unwrap_topics(result.messages)
        return result

    async def _commit_due(
        self, queues: Iterable[MessageQueue] | None = None
    ) -> list[BaseException]:
        """Commit finished offsets; a queue whose broker fails does not hold up the others.

        Returns the errors of requests. What the application's own store raises is raised.
        """
        self._report_unfinished()
        async with self._committing:
            due = self._positions.to_commit(queues)
            if time.monotonic() < self._doubt_ends_s:
                due = await self._not_overtaken(due)
            failures = await self._store_offsets(due)
            for queue in due.keys() - failures.keys():
                self._positions.committed(queue, due[queue])
        return list(failures.values())

    async def _not_overtaken(self, due: Offsets) -> Offsets:
        """Return the offsets that are not lower than the committed ones.

        A queue with a lower offset was consumed by another member; it begins behind that.
        """
        kept: Offsets = {}
        for queue, offset in due.items():
            is_moved = self._positions.is_moved(queue)
            committed = None if is_moved else await self._store.stored(queue)
            if committed is None or committed <= offset:
                kept[queue] = offset
            else:
                log.warning(
                    "another member has consumed a queue meanwhile, continuing behind it queue=%s"
                    " group=%s offset=%d committed=%d",
                    queue,
                    self._group,
                    offset,
                    committed,
                )
                self._restart(queue)
        return kept

    def _restart(self, queue: MessageQueue) -> None:
        """Begin a queue at its committed offset: another member may have got it meanwhile."""
        if self._handover is not None and queue in self._fetcher.fetches():
            self._handover.contest(queue)
            self._positions.drop(queue)
            self._fetcher.begin(queue)

    async def _store_offsets(self, offsets: Mapping[MessageQueue, QueueOffset]) -> Failures:
        """Store offsets, and return the errors of queues. What a store raises is raised."""
        for queue, offset in offsets.items():
            self._store.forget(queue)  # another client may have changed what was stored last
            self._store.update(queue, offset)
        return await self._store.persist(offsets) or {}

    async def _first_offset(self, queue: MessageQueue) -> QueueOffset:
        if self._handover is None:
            offset = await self._continuation.assigned(queue)
        else:
            offset = await self._handover.begin(queue, self._continuation.assigned)
        is_committed = self._store.position(queue) is not None
        if not is_committed and queue in self._fetcher.fetches():
            self._positions.set_finished(queue, offset)  # a member after this one starts here too
        return offset

    async def _continue_elsewhere(
        self, cause: Cause, queue: MessageQueue, response: PullResult, received_ms: int
    ) -> None:
        self._move(queue, await self._continuation.after(cause, queue, response, received_ms))

    async def _receive(self, messages_max: int) -> Unfinished | None:
        """Finish the caller's messages and wait for more; None after the consumer was closed.

        Raises:
            ClientError: there is nothing to read, and never will be.
        """
        if not self._filters and self._mode.mode is not Mode.ASSIGNED:
            raise ClientError(
                f"{self._owner} has no topics and no queues: call subscribe or assign first"
            )
        reader = current_reader()
        assert reader is not None, "a coroutine runs in a task"
        known = self._finish(reader)
        self._unsettled += 1
        if self._unsettled >= len(self._positions.unfinished) > 0:
            self._settle_ended()
        while (batch := await self._fetcher.take(messages_max)) is not None:
            if not batch.messages:
                self._positions.pass_over(batch)
                continue
            if self._closing.is_set():
                break
            if not known and reader not in self._readers:
                self._readers.add(reader)
                if isinstance(reader, asyncio.Task):
                    reader.add_done_callback(self._reader_ended)
            received = self._positions.deliver(reader, batch)
            shown = self._namespace.unwrap_queue(batch.queue)
            received.delivery = self._hooks.before(shown, batch.messages)
            return received
        return None

    def _finish_for_commit(self) -> None:
        """Count the caller's messages as finished.

        Raises:
            ClientError: the caller is not a reader, and there are several readers.
        """
        self._settle_ended()
        readers = self._callers_readers()
        if not readers and self._positions.unfinished:
            raise ClientError(
                f"commit: expected a call by a task or thread that reads; other"
                f" {len(self._positions.unfinished)} tasks or threads have unfinished messages of"
                f" consumer {self._group}: call commit() in each of them (asyncio.shield, and"
                " asyncio.wait_for before Python 3.12, call it in a new task), or give offsets"
            )
        for reader in readers:
            self._finish(reader)

    def _callers_readers(self) -> list[Reader]:
        """Return the reader that a call concerns: the caller, or else the only reader.

        A task that is no reader may call for the only one: `asyncio.shield` makes such tasks.
        """
        reader, readers = current_reader(), list(self._positions.unfinished)
        if reader is not None and reader in self._readers:
            return [reader]
        return readers if len(readers) == 1 else []

    def _report_unfinished(self) -> None:
        """Log once for each reader that has not finished its messages for long."""
        before_s = time.monotonic() - UNFINISHED_S_MAX
        for reader, received in self._positions.unfinished.items():
            if received.begun_s <= before_s and not received.dropped and not received.reported:
                received.reported = True
                log.warning(
                    "messages not finished, later ones are not committed group=%s queue=%s"
                    " offset=%d seconds=%.0f reader=%s",
                    self._group,
                    received.batch.queue,
                    received.batch.begins,
                    time.monotonic() - received.begun_s,
                    reader.name if isinstance(reader, threading.Thread) else reader.get_name(),
                )

    def _end_unfinished(self) -> None:
        """Drop the unfinished messages of all readers, and log that they are redelivered.

        This happens after a `break` out of ``async for`` without a `commit`.
        """
        for received in self._positions.unfinished.values():
            self._end_delivery(received)
            if not received.dropped:
                log.warning(
                    "closed with unfinished messages, which are redelivered; call commit() before"
                    " close() if they are consumed group=%s queue=%s offset=%d messages=%d",
                    self._group,
                    received.batch.queue,
                    received.batch.begins,
                    len(received.messages),
                )
        self._positions.unfinished.clear()
        for reader in list(self._readers):
            if isinstance(reader, asyncio.Task):  # it may live much longer than this consumer
                reader.remove_done_callback(self._reader_ended)

    def _settle_ended(self) -> None:
        """Finish the messages of ended readers, or deliver them again if the reader failed."""
        self._unsettled = 0
        self._take_back_failed()
        for reader in list(self._positions.unfinished):
            if state_of(reader) is ReaderState.RETURNED:
                self._finish(reader)

    def _reader_ended(self, reader: Reader) -> None:
        if state_of(reader) is ReaderState.FAILED:
            self._take_back(reader)

    def _take_back_failed(self) -> None:
        for reader in list(self._positions.unfinished):
            if state_of(reader) is ReaderState.FAILED:
                self._take_back(reader)

    def _finish(self, reader: Reader) -> bool:
        """Count a reader's messages as finished; False if it has none."""
        received = self._positions.finish(reader)
        if received is None:
            return False
        self._end_delivery(received)
        return True

    def _end_delivery(self, received: Unfinished, end: ConsumeEnd = ConsumeEnd.SUCCESS) -> None:
        self._hooks.after(received.delivery, end, time.monotonic() - received.begun_s)

    def _take_back(self, reader: Reader) -> None:
        received = self._positions.take_back(reader)
        if received is None:
            return
        if not received.dropped:
            self._fetcher.put_back(received.batch)
        self._end_delivery(received, ConsumeEnd.FAILED)

    def _move(self, queue: MessageQueue, offset: QueueOffset) -> None:
        check_assigned(queue, self._fetcher.fetches())
        self._positions.move(queue, offset)
        self._fetcher.begin(queue, offset)

    def _assigned(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return queues as brokers know them.

        Raises:
            ClientClosedError: the consumer is not running.
            NotAssignedError: one is not assigned to this consumer.
        """
        self._check_running()
        found = [self._namespace.wrap_queue(queue) for queue in queues]
        for queue in found:
            check_assigned(queue, self._fetcher.fetches())
        return found

    async def _pull_next(self, queue: MessageQueue, offset: QueueOffset) -> PullResult:
        pull = Pull(
            group=self._wire_group,
            queue=queue,
            wanted=self._filters[queue.topic],
            max_messages=self._settings.pull_batch,
            hold_ms=self._settings.hold_ms,
            lite=True,
        )
        timeout = (self._settings.hold_ms + self._settings.response_margin_ms) / 1000
        result = self._shown(await self._pull(pull, offset, timeout))
        kept = self._filter_chain.keep(queue, result.messages)
        return result if kept is result.messages else msgspec.structs.replace(result, messages=kept)


def as_stream(settings: ClientSettings) -> ClientSettings:
    """Mark requests as a stream's, as pull consumers do by default."""
    if "stream" in settings.given:
        return settings
    return resolve_settings(ClientSettings, keywords={"stream": True}, given=settings)
