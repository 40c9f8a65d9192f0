"""Reads queues in the application's own loop, and commits offsets.

Source: DefaultLitePullConsumer and DefaultMQPullConsumer, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Unpack

from cometmq.client._connection.instance import ClientInstance, Membership, acquire_instance
from cometmq.client._connection.name_servers import HasNameServers
from cometmq.client._consuming.consumer import (
    check_flag,
    check_parts,
    newer,
    resolve,
    subscriptions_of,
)
from cometmq.client._consuming.engine import bounded
from cometmq.client._consuming.group_calls import GroupCalls, check_filters, join
from cometmq.client._consuming.handover import DOUBT_S, HAND_OVER_S, IDLE_S, Handover
from cometmq.client._consuming.pause_detector import PauseDetector
from cometmq.client._consuming.pulls import Pull, PullResult
from cometmq.client._consuming.rebalancer import (
    Intervals,
    MemberAllocation,
    Rebalancer,
    RouteListenerCalls,
)
from cometmq.client._consuming.request_handlers import RequestHandlers, common_properties
from cometmq.client._consuming.retries import DeadLetterRule, Retries
from cometmq.client._pull.core import AssignedPullQueues, Mode, as_stream
from cometmq.client._pull.fetcher import UNLIMITED
from cometmq.client._pull.offset_calls import OffsetCalls
from cometmq.client._pull.positions import Offsets, Released
from cometmq.client._supervision import raise_non_transient
from cometmq.client.allocation import AllocationStrategy, Averagely
from cometmq.client.errors import ClientClosedError, ClientError
from cometmq.client.filters import Filter
from cometmq.client.handlers import QueueListener
from cometmq.client.hooks import ConsumeHook, FilterHook
from cometmq.client.offsets import OffsetStore, StartFrom, check_start, consume_from_where
from cometmq.client.options import PullOptions
from cometmq.client.settings import MIB, ClientSettings, PullSettings
from cometmq.model.arguments import checks_arguments
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.times import milliseconds, now_ms, seconds, timeout_s
from cometmq.model.topic import check_topic_name
from cometmq.protocol.bodies.client import ConsumerRunningInfo, ProcessQueueInfo
from cometmq.protocol.bodies.heartbeat import ConsumerData, ConsumeType, MessageModel
from cometmq.remoting import Supervisor
from cometmq.remoting.tasks import raise_unless_failure

log = logging.getLogger(__name__)

PULLED_MAX = 1024
"""The limit of messages of one `PullConsumer.pull`; brokers have smaller ones of their own."""
HOLD_S_MAX = 120
"""The limit of seconds that a broker may hold one `PullConsumer.pull`."""


@checks_arguments(unchecked=("assign",))
class PullConsumer(OffsetCalls):
    """Reads queues in the application's own loop, and commits offsets.

    Use `subscribe` to share the queues of topics with the other members of the group, or `assign`
    to choose queues. One consumer uses one of the two.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses.
        group: the consumer group, which owns the committed offsets.
        topic: a topic to subscribe to, with all its messages.
        subscriptions: topics to subscribe to at the start: topic to tags or `Filter`.
        start_from: where to start in a queue without a committed offset. A time means the first
            message stored at that time or later. On a young store LAST and a time deliver the whole
            backlog, see `StartFrom`.
        broadcast: this consumer reads all queues of its topics and stores its own offsets.
        strategy: allocates the queues to members. All members must use the same strategy.
        offset_store: stores the offsets; by default the brokers, or a local file if ``broadcast``.
        on_queues: called with a topic, its queues and the assigned ones after each rebalance. With
            `assign`, called when the queues of a topic change.
        hooks: run around deliveries, or remove fetched messages.
        settings: the settings of the consumer.
        client: the settings of its connections.
        instance: a shared instance to use instead of new connections. The caller starts and
            closes it.
        config: a TOML file with tables ``[pull]`` and ``[client]``.
        options: settings of `PullSettings` and `ClientSettings` by name.

    Delivery is at least once. A message counts as consumed when the task that received it requests
    the next one. Consumed messages are committed every few seconds and on closing. After a crash,
    messages that are not committed are redelivered.

    Several tasks may read. Each message goes to one of them. The unfinished messages of a task, and
    all later messages of the same queue, are not committed before that task requests more or
    commits. If a task fails or is cancelled, its unfinished messages are redelivered.

    Example:
        async with PullConsumer(
            name_server, group="audit", subscriptions={"orders": "*"}, start_from=StartFrom.FIRST
        ) as consumer:
            async for message in consumer:
                print(message.body)
                break
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | HasNameServers = "",
        *,
        group: str,
        topic: str | None = None,
        subscriptions: Mapping[str, str | Filter] | None = None,
        start_from: StartFrom | datetime | int = StartFrom.LAST,
        broadcast: bool = False,
        strategy: AllocationStrategy | None = None,
        offset_store: OffsetStore | None = None,
        on_queues: QueueListener | None = None,
        hooks: Sequence[ConsumeHook | FilterHook] = (),
        settings: PullSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        config: Path | None = None,
        **options: Unpack[PullOptions],
    ) -> None:
        subscribed = subscriptions_of(group, topic, subscriptions)
        check_parts(
            group, hooks=hooks, strategy=strategy, offset_store=offset_store, on_queues=on_queues
        )
        check_start(group, start_from)
        check_flag(group, "broadcast", broadcast)
        used, connecting, tables = resolve(
            PullSettings, options, settings=settings, client=client, config=config
        )
        lease = acquire_instance(
            name_servers,
            settings=as_stream(connecting),
            instance=instance,
            keep_name=broadcast,
        )
        super().__init__(
            group,
            lease,
            used,
            tables,
            start_from=start_from,
            broadcast=broadcast,
            offset_store=offset_store,
            hooks=hooks,
        )
        self._broadcast = broadcast
        self._revocations = Supervisor(f"consumer {group}")
        self._started_ms = 0
        self._rebalancing = False
        self._listener = RouteListenerCalls(
            on_queues,
            self._instance,
            group,
            assigned=lambda: self._fetcher.queues,
            tasks=self._tasks,
        )
        self._retries = Retries(
            self._instance,
            self._wire_group,
            rule=DeadLetterRule.of(self._settings.retries_max),
            wrap_topic=self._namespace.wrap_topic,
            on_failed=self._hooks.failed,
        )
        self._allocation = MemberAllocation(
            self._instance,
            self._wire_group,
            broadcast=broadcast,
            strategy=strategy or Averagely(),
        )
        self._pauses = PauseDetector(self._paused)
        self._releasing: set[MessageQueue] = set()
        """Revoked queues that are not committed yet: their next owners wait."""
        self._rebalancer = Rebalancer(
            instance=self._instance,
            group=self._wire_group,
            allocate=self._allocation,
            topics=self._topics,
            owner=AssignedPullQueues(
                self._fetcher,
                lambda topic: topic in self._filters,
                self._hand_over,
                self._listener.call,
            ),
            intervals=Intervals(self._settings.rebalance_ms / 1000),
            on_permanent=self._tasks.end,
            on_topic=self._look,
        )
        self._requests = RequestHandlers(
            self._instance,
            self._wire_group,
            rebalance=self._rebalancer.wake,
            running_info=self.running_info,
            offsets=self._finished,
            move=self._move_assigned,
        )
        for name, wanted in subscribed.items():
            self._note_subscription(name, Filter.of(wanted))

    def membership(self) -> Membership:
        """Return this consumer's entry in the heartbeat."""
        model = MessageModel.BROADCASTING if self._broadcast else MessageModel.CLUSTERING
        data = ConsumerData(
            group_name=self._wire_group,
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            message_model=model,
            consume_from_where=consume_from_where(self._start_from),
            subscription_data_set=[
                wanted.data(topic) for topic, wanted in sorted(self._filters.items())
            ],
            unit_mode=self._instance.settings.unit_mode,
        )
        return Membership(consumers=[data])

    async def start(self) -> None:
        """Connect, and join the group if there are subscriptions.

        Raises:
            ClientError: the client already has a consumer of this group. The consumer is closed,
                as after all other errors.
            ClientClosedError: the consumer was closed before, or during the start.
            ConfigError: a broker does not support the filter of a subscription.
            ResponseError, RemotingError: a broker refused the account or the filter, or did not
                respond to the check of the filter.
            StoreError: the stored offsets cannot be read.
        """
        await super().start()

    async def _start(self) -> None:
        self._started_ms = now_ms()
        await self._connect()
        await self._store.load()
        await check_filters(self._instance, self._wire_group, self._filters)
        self._listener.start()
        self._retain_traces()
        self._requests.open()
        if self._settings.auto_commit_ms:
            self._tasks.repeat(
                self._settings.auto_commit_ms / 1000, self._commit_periodically, "commit"
            )
        if self._mode.mode is Mode.SUBSCRIBED:
            await join(self._instance, list(self._filters))
            self._start_rebalancing()

    def _start_rebalancing(self) -> None:
        if not self._rebalancing and not self._closing.is_set():
            self._rebalancing = True
            self._listener.stop()
            if not self._broadcast:
                calls = GroupCalls(self._instance)
                self._handover = Handover(calls, self._wire_group, self._allocation)
                self._pauses.start()
                self._instance.on_broker.append(self._broker_came)
                self._instance.on_broker_lost.append(self._broker_lost)
            self._rebalancer.start(self._tasks)
            self._check.start(self._tasks)

    async def _until_assigned(self) -> None:
        if self._mode.mode is Mode.SUBSCRIBED:
            await self._rebalancer.until_assigned(self._topics)
        await self._fetcher.until_started()

    async def close(self) -> None:
        """Commit consumed messages, unregister from the brokers and close the connections.

        Tasks that wait for a message receive the end of the iteration. Cancelling stops the
        waiting, not the closing. An error of the ``offset_store`` is raised once, after everything
        else is closed.
        """
        await super().close()

    async def _close(self) -> None:
        self._requests.close()
        self._listener.stop()
        self._pauses.stop()
        if self._broker_came in self._instance.on_broker:
            self._instance.on_broker.remove(self._broker_came)
            self._instance.on_broker_lost.remove(self._broker_lost)
        await self._rebalancer.stop()
        await self._tasks.cancel()
        self._positions.count_finished()
        await self._fetcher.stop()
        error = await self._commit_at_close() if self._started else None
        await self._revocations.cancel()
        if self._handover is not None:
            await self._handover.stop()
        self._end_unfinished()
        self._listener.close()
        await self._release()
        if error is not None:
            raise error

    async def subscribe(self, topic: str, filter: str | Filter = "*") -> None:
        """Subscribe to a topic; a second call replaces the filter of the first.

        The group allocates the topic's queues to its members. If the topic does not exist yet,
        reading starts at the next rebalance after it exists (``rebalance_ms``, 20 s).

        Args:
            topic: the topic.
            filter: tags such as ``a || b``, or a `Filter`.

        Raises:
            WrongModeError: this consumer uses `assign`.
            ClientClosedError: the consumer was closed.
            ConfigError: the filter is invalid, or a broker does not support it.
            ResponseError, RemotingError: a broker refused to check the filter, or did not respond.
            InvalidNameError: the topic name is invalid.
        """
        self._mode.check(Mode.SUBSCRIBED)
        check_topic_name(topic)
        chosen = Filter.of(filter)
        if not self._started and not self._closing.is_set():
            self._note_subscription(topic, chosen)
            return
        self._check_running()
        name = self._namespace.wrap_topic(topic)
        await check_filters(self._instance, self._wire_group, {name: chosen})
        self._check_running()
        before = self._filters.get(name)
        changed = before not in (None, chosen)
        self._note_subscription(topic, chosen)
        if changed:
            self._fetch_anew(name)
        try:
            await join(self._instance, [name])  # brokers tell the members only to a member
        except ResponseError:
            del self._filters[name]
            if before is not None:
                self._filters[name] = newer(before, chosen)
            await self._instance.heartbeat()
            raise
        finally:
            self._start_rebalancing()
            self._rebalancer.wake()
            self._check.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic, and commit its consumed messages.

        Raises:
            WrongModeError: this consumer uses `assign`.
        """
        self._check_loop()
        self._mode.check(Mode.SUBSCRIBED)
        name = self._namespace.wrap_topic(topic)
        if self._filters.pop(name, None) is None:
            return
        await self._revoke(*self._fetcher.of_topic(name))
        if self.running:
            await self._instance.heartbeat()
            self._rebalancer.wake()
            self._check.wake()

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic. `on_queues` then reports changes of this topic.

        Raises:
            ClientClosedError: the consumer is not running.
            TopicNotFoundError: no broker has the topic.
            NameServerError: no name server responded.
        """
        self._check_running()
        name = self._namespace.wrap_topic(topic)
        queues = (await self._instance.routes.find(name)).read_queues
        self._listener.look(name, queues)
        return [self._namespace.unwrap_queue(queue) for queue in queues]

    async def assign(self, queues: Iterable[MessageQueue], *, filter: str | Filter = "*") -> None:
        """Read these queues and no others.

        Queues that were assigned before continue at their position. New queues start at the
        committed offset, or at ``start_from``. For queues that are released, consumed messages are
        committed, unless automatic commits are off.

        Args:
            queues: the queues; an empty iterable stops all reading.
            filter: tags such as ``a || b``, or a `Filter`.

        Raises:
            ClientClosedError: the consumer is not running.
            WrongModeError: this consumer subscribes to topics.
            ConfigError: the queues are something else, such as a topic; or the filter is invalid,
                or a broker does not support it.
            ResponseError, RemotingError: a broker refused to check the filter, or did not respond.
        """
        self._check_running()
        self._mode.check(Mode.ASSIGNED)
        is_several = isinstance(queues, Iterable) and not isinstance(queues, str)
        found: list[Any] = list(queues) if is_several else [None]
        if not all(isinstance(queue, MessageQueue) for queue in found):
            raise ConfigError(
                f"{self._owner}: assign({queues!r}): expected a list of MessageQueue; fetch_queues "
                "returns those of a topic"
            )
        chosen = {self._namespace.wrap_queue(queue) for queue in found}
        of_topics = Filter.of(filter)
        filters = {queue.topic: of_topics for queue in chosen}
        await check_filters(self._instance, self._wire_group, filters)
        self._check_running()
        self._mode.choose(Mode.ASSIGNED)
        revoked = self._drop_queues(set(self._fetcher.queues) - chosen)
        before = self._filters
        self._filters = {topic: newer(of_topics, before.get(topic)) for topic in filters}
        for topic in filters:
            if before.get(topic) not in (None, of_topics):
                self._fetch_anew(topic)
        for queue in sorted(chosen.difference(self._fetcher.queues)):
            self._fetcher.begin(queue)
        await self._commit_shielded(revoked)
        await join(self._instance, filters)  # some brokers commit only for groups they know

    def __aiter__(self) -> AsyncIterator[StoredMessage]:
        return self

    async def __anext__(self) -> StoredMessage:
        """Wait for the next message of any queue; each queue's come in order.

        Asking for the next message finishes the one before. After a ``break`` the last message is
        not finished and is redelivered to the group, unless `commit` is called. The iteration ends
        when the consumer is closed.

        Raises:
            ClientClosedError: the consumer was never started.
            ClientError: the consumer neither subscribes to a topic nor was assigned queues.
            Exception: the consumer failed and cannot go on, see `failure`.
        """
        if self._closing.is_set():
            raise StopAsyncIteration
        self._check_running()
        received = await self._receive(1)
        if received is None:
            raise StopAsyncIteration
        return received.messages[0]

    async def poll(self, timeout: float | timedelta = 5.0) -> list[StoredMessage]:
        """Return the fetched messages of one queue, or wait for messages.

        Args:
            timeout: seconds to wait for the first message.

        Returns:
            Messages in queue order; empty if none arrived in time.

        Raises:
            ClientClosedError: the consumer is not running.
            ClientError: the consumer neither subscribes to a topic nor was assigned queues.
            Exception: the consumer failed and cannot go on, see `failure`.
        """
        self._check_running()
        try:
            async with asyncio.timeout(timeout_s(timeout)):
                received = await self._receive(UNLIMITED)
        except TimeoutError:
            return []
        if received is None:
            raise ClientClosedError(f"{self._owner} is closed")
        return received.messages.copy()  # they count as unfinished, whatever becomes of the list

    def take_back(self) -> None:
        """Redeliver the messages that the caller received last: they are not consumed.

        Does nothing if they are committed, or if their queue was moved or released meanwhile.
        """
        self._check_loop()
        for reader in self._callers_readers():
            self._take_back(reader)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        filter: str | Filter = "*",
        max_messages: int = 32,
        wait: float | timedelta = 0.0,
        timeout: float | timedelta = 10.0,
    ) -> PullResult:
        """Pull messages of a queue once, from an offset. Assigns and commits nothing.

        Args:
            queue: any queue of any topic.
            offset: the queue offset of the first message.
            filter: tags such as ``a || b``, or a `Filter`.
            max_messages: 1 to 1024. RocketMQ returns at most 32 messages at once.
            wait: seconds that the broker may hold the pull until a message arrives, 0 to 120.
            timeout: seconds for the response, in addition to ``wait``.

        Returns:
            A status, the matching messages, and the next offset.

        Raises:
            ConfigError, ClientClosedError, TopicNotFoundError, QueueNotFoundError: no request was
                sent.
            ResponseError: the broker refused.
            RemotingError: no response.
        """
        self._check_running()
        if not 1 <= max_messages <= PULLED_MAX:
            raise ConfigError(f"max_messages={max_messages}: expected 1 to {PULLED_MAX}")
        hold_ms = milliseconds(wait, "wait")
        if not 0 <= hold_ms <= HOLD_S_MAX * 1000:
            raise ConfigError(f"wait={wait}: expected 0 to {HOLD_S_MAX} seconds")
        request = Pull(
            group=self._wire_group,
            queue=self._namespace.wrap_queue(queue),
            wanted=Filter.of(filter),
            max_messages=max_messages,
            hold_ms=hold_ms,
        )
        within_s = seconds(wait, "wait") + timeout_s(timeout)
        return self._shown(await self._pull(request, QueueOffset(offset), within_s))

    async def send_back(self, message: StoredMessage, *, delay_level: int = 0) -> None:
        """Send a message to the group's retry topic, for redelivery after a delay.

        A pull consumer reads the retry topic only if it subscribes to ``%RETRY%`` plus its group.

        Args:
            message: a delivered message.
            delay_level: a level of the broker; 0 for a level that grows with the retries; -1 to
                dead-letter the message at once.

        Raises:
            ClientError: no broker accepted the message.
        """
        self._check_running()
        if not await self._retries.send(message, delay_level):
            raise ClientError(f"no broker accepted message {message.message_id} for redelivery")

    def running_info(self) -> ConsumerRunningInfo:
        """Return this consumer's settings, queues and rates, as administrators see them."""
        return ConsumerRunningInfo(
            properties=common_properties(
                self._instance,
                self._settings,
                group=self._wire_group,
                concurrency=0,
                started_ms=self._started_ms,
                ordered=True,
                consume_type=ConsumeType.CONSUME_ACTIVELY,
            ),
            subscription_set=[wanted.data(topic) for topic, wanted in self._filters.items()],
            mq_table={
                queue: self._queue_info(queue)
                for queue in [*self._fetcher.begun(), *self._releasing]
            },
        )

    async def _commit_periodically(self) -> None:
        raise_non_transient(await self._auto_commit())

    async def _auto_commit(self) -> list[BaseException]:
        self._take_back_failed()
        return await self._commit_due()  # the store logs failures

    async def _commit_at_close(self) -> BaseException | None:
        """Commit what is finished, for a limited time, and return the error of the store."""
        if not self._settings.auto_commit_ms:
            return None
        timeout = self._instance.settings.call_timeout_ms / 1000
        await self._revocations.drain(timeout)
        return await bounded(self._auto_commit(), timeout, "offsets")

    def _note_subscription(self, topic: str, wanted: Filter) -> None:
        check_topic_name(topic)
        self._mode.choose(Mode.SUBSCRIBED)
        name = self._namespace.wrap_topic(topic)
        self._filters[name] = newer(wanted, self._filters.get(name))

    def _topics(self) -> list[str]:
        return list(self._filters)

    def _missing(self) -> str:
        return self._without_route(self._filters)

    def _failures(self) -> list[str]:
        return [*self._rebalancer.failures(), *self._fetcher.failures.reasons()]

    def _finished(self) -> dict[MessageQueue, QueueOffset]:
        finished = {queue: self._positions.finished(queue) for queue in self._fetcher.queues}
        return {queue: offset for queue, offset in finished.items() if offset is not None}

    async def _move_assigned(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None:
        for queue in self._fetcher.queues:
            if queue in offsets:
                self._move(queue, offsets[queue])

    def _queue_info(self, queue: MessageQueue) -> ProcessQueueInfo:
        held = self._fetcher.held_of(queue)
        offset = self._positions.position(queue) or 0
        return ProcessQueueInfo(
            commit_offset=self._positions.finished(queue) or 0,
            cached_msg_min_offset=offset if held.count else 0,
            cached_msg_max_offset=offset + held.count - 1 if held.count else 0,
            cached_msg_count=held.count,
            cached_msg_size_in_mib=held.size_bytes // MIB,
            last_pull_timestamp=held.pulled_ms,
        )

    def _fetch_anew(self, topic: str) -> None:
        """Go on with a topic's queues where they are, with another filter from now on."""
        for queue in self._fetcher.of_topic(topic):
            self._fetcher.begin(queue, self._positions.fetch_from(queue))

    def _look(self, topic: str, queues: Collection[MessageQueue] | None) -> None:
        self._continuation.look(topic, queues)
        if queues is None:
            self._allocation.forget(topic)

    def _broker_came(self, address: str) -> None:
        """Doubt all queues: a new connection may follow on one that was lost."""
        self._doubt_ends_s = time.monotonic() + DOUBT_S

    def _broker_lost(self, address: str) -> None:
        """Doubt all queues until there is a new connection: others may get them meanwhile."""
        self._doubt_ends_s = math.inf

    def _paused(self, seconds: float) -> None:
        """Doubt all queues, or begin them anew, after this process stood still."""
        log.warning(
            "the process stood still, other members may have its queues group=%s seconds=%.0f",
            self._group,
            seconds,
        )
        self._doubt_ends_s = time.monotonic() + DOUBT_S
        if seconds >= IDLE_S:
            for queue in self._fetcher.queues:
                self._restart(queue)

    async def _hand_over(self, queue: MessageQueue) -> None:
        """Release a queue to another member after its readers have finished their messages."""
        if not self._settings.auto_commit_ms:
            self._drop_queues([queue])
            return
        due, is_moved = self._positions.to_commit([queue]), self._positions.is_moved(queue)
        left = self._positions.release(queue)
        self._fetcher.end(queue)
        self._releasing.add(queue)
        handing = self._finish_and_commit(left, due, is_moved=is_moved)
        await asyncio.shield(self._revocations.spawn(handing, "hand-over", awaited=True))

    async def _finish_and_commit(self, left: Released, due: Offsets, *, is_moved: bool) -> None:
        """Commit what is finished, at once and after the readers have finished their messages."""
        try:
            await self._commit_revoked(due, even_lower=is_moved)
            offset = await left.finished(HAND_OVER_S)
            if offset is not None and offset != left.offset:
                await self._commit_revoked({left.queue: offset}, even_lower=is_moved)
        finally:
            self._releasing.discard(left.queue)

    async def _revoke(self, *queues: MessageQueue) -> None:
        """Release queues to other members, which continue after what is finished."""
        await self._commit_shielded(self._drop_queues(queues))

    def _drop_queues(self, queues: Iterable[MessageQueue]) -> Offsets:
        """Stop fetching queues. Returns the finished offsets that are not committed."""
        queues = list(queues)
        due = self._positions.to_commit(queues)
        self._fetcher.end(*queues)
        for queue in queues:
            self._positions.drop(queue)
        return due

    async def _commit_shielded(self, due: Offsets) -> None:
        """Commit, even if the caller is cancelled: the queues' positions are dropped already."""
        if due and self._settings.auto_commit_ms:
            commit = self._commit_revoked(due)
            await asyncio.shield(self._revocations.spawn(commit, "commit-revoked", awaited=True))

    async def _commit_revoked(self, due: Offsets, *, even_lower: bool = True) -> None:
        async with self._committing:
            try:
                await self._store_offsets(due if even_lower else await self._not_overtaken(due))
            except BaseException as error:
                raise_unless_failure(error)
                log.exception("commit of revoked queues failed group=%s", self._group)
