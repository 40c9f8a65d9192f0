"""The pull consumer: reads queues at the application's own pace, and keeps its place.

Source: DefaultLitePullConsumer and DefaultMQPullConsumer, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cometmq.client.config import ClientSettings, PullSettings
from cometmq.client.consistency import Difference, SubscriptionWatch
from cometmq.client.errors import ClientClosedError, ClientError
from cometmq.client.handlers import QueueListener
from cometmq.client.hooks import ConsumeEnd, ConsumeHook, FilterHook
from cometmq.client.instance import ClientInstance, Membership
from cometmq.client.lifetime import Ending
from cometmq.client.offsets import OffsetStore, StartFrom, consume_from_where
from cometmq.client.pull.answers import Answers
from cometmq.client.pull.assignment import Mode, Ownership
from cometmq.client.pull.joining import check_filters, join
from cometmq.client.pull.listening import Listening
from cometmq.client.pull.positions import Offsets
from cometmq.client.pull.seeking import PlaceCalls
from cometmq.client.pulling import Pull, PullResult
from cometmq.client.push.sending_back import SendingBack
from cometmq.client.rebalance import AllocationStrategy, Averagely
from cometmq.client.rebalance.rebalancer import Rebalancer
from cometmq.client.subscription import Filter
from cometmq.model.errors import CometError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import check_topic_name
from cometmq.protocol.bodies import ConsumerData, ConsumeType, MessageModel
from cometmq.remoting import Supervisor

log = logging.getLogger(__name__)


class PullConsumer(PlaceCalls):
    """Reads queues when the application asks, and commits how far it came.

    Its queues are either told (`assign`) or those that fall to it when the members of its group
    divide the queues of topics (`subscribe`); one consumer does one or the other.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses.
        group: whose place is kept.
        subscriptions: topics to subscribe to at the start, and what is wanted of each.
        start_from: where to begin in a queue of which the group has committed nothing; a time means
            the first message stored then or later.
        broadcast: every member reads all queues of the topics it subscribes to, and keeps its
            places itself.
        strategy: divides the queues; every member of the group must use the same one.
        offset_store: where places are kept; by default the brokers, or a file when broadcasting.
        on_queues: told a topic, its queues, and those that are this consumer's, whenever they were
            divided anew; when queues are assigned, whenever the queues of a topic change.
        hooks: see what is handed out, or take messages out of what was fetched.
        settings: the consumer's settings.
        client: settings of its connections.
        instance: share these connections instead of opening own ones; the caller starts and
            closes them.
        config: a TOML file with tables ``[pull]`` and ``[client]``.
        options: settings of `PullSettings` and `ClientSettings` by name.

    Delivery is at least once: a message counts as finished when the next one is asked for, and
    finished messages are committed every few seconds and on closing. What was handed out and not
    committed is handed out again after a crash. One task at a time may ask for messages.

    Example:
        ``async with PullConsumer("127.0.0.1:9876", group="audit") as consumer:``
        ``    await consumer.subscribe("orders")``
        ``    async for message in consumer: print(message.body)``
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] = "",
        *,
        group: str,
        subscriptions: Mapping[str, str | Filter] | None = None,
        start_from: StartFrom | datetime = StartFrom.LAST,
        broadcast: bool = False,
        strategy: AllocationStrategy | None = None,
        offset_store: OffsetStore | None = None,
        on_queues: QueueListener | None = None,
        hooks: Sequence[ConsumeHook | FilterHook] = (),
        settings: PullSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        config: Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            name_servers,
            group=group,
            start_from=start_from,
            broadcast=broadcast,
            offset_store=offset_store,
            hooks=hooks,
            settings=settings,
            client=client,
            instance=instance,
            config=config,
            options=options,
        )
        self._start_from = start_from
        self._broadcast = broadcast
        self._tasks = Supervisor(f"pull consumer {group}")
        self._listening = Listening(
            on_queues,
            instance=self._instance,
            group=group,
            plain=self._plain,
            mine=lambda: self._fetcher.queues,
            tasks=self._tasks,
        )
        self._closed = False
        self._dividing = False
        self._ending = Ending(self._close, f"pull consumer {group}.close")
        self._sending_back = SendingBack(
            self._instance,
            self._group,
            deliveries_max=self._settings.deliveries_max,
            wrap_topic=self._names.wrap_topic,
        )
        self._rebalancer = Rebalancer(
            instance=self._instance,
            group=self._group,
            broadcast=broadcast,
            strategy=strategy or Averagely(),
            topics=self._subscribed,
            owner=Ownership(
                self._fetcher,
                lambda topic: topic in self._filters,
                self._leave,
                self._listening.tell,
            ),
            interval_s=self._settings.rebalance_ms / 1000,
        )
        self._watch = SubscriptionWatch(self._instance, group, self._wanted)
        self._answers = Answers(
            self._instance,
            self._group,
            fetcher=self._fetcher,
            positions=self._positions,
            filters=lambda: self._filters,
            divide=self._rebalancer.wake,
            move=self._move,
        )
        for topic, wanted in (subscriptions or {}).items():
            self._note_subscription(topic, Filter.of(wanted))

    def membership(self) -> Membership:
        """Say what the heartbeat tells of this consumer."""
        model = MessageModel.BROADCASTING if self._broadcast else MessageModel.CLUSTERING
        data = ConsumerData(
            group_name=self._group,
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
        """Make the consumer ready, and let it join its group if it subscribes to topics.

        Raises:
            ClientError: the shared instance has a consumer of this group already.
            ClientClosedError: it was closed before.
            ConfigError: a broker cannot filter as a subscription wants; the consumer is closed.
            RemotingError: a broker did not say whether it can.
            StoreError: the kept places cannot be read.
        """
        if self._open:
            return
        if self._closed:
            raise ClientClosedError(f"consumer {self._plain_group} was closed: make a new one")
        try:
            await self._lease.open(self)
            await self._places.load()
            await check_filters(self._instance, self._group, self._filters)
            self._begin()
            if self._chosen.mode is Mode.SUBSCRIBED:
                await join(self._instance, list(self._filters))
                self._begin_dividing()
        except BaseException:
            await self.close()
            raise

    def _begin(self) -> None:
        self._open = True
        self._listening.begin()
        self._traces_begin()
        self._answers.begin()
        if self._settings.auto_commit_ms:
            self._tasks.every(self._settings.auto_commit_ms / 1000, self._auto_commit, "commit")

    def _begin_dividing(self) -> None:
        if self._open and not self._dividing:
            self._dividing = True
            self._listening.end()
            self._rebalancer.start(self._tasks)
            self._watch.start(self._tasks)

    async def close(self) -> None:
        """Commit what is finished, tell the brokers goodbye and close the connections.

        Whoever waits for a message is told that there are no more. Cancelling stops the waiting,
        not the closing.
        """
        self._closed = True
        await self._ending.reached()

    async def _close(self) -> None:
        was_open, self._open = self._open, False
        self._answers.end()
        self._listening.end()
        await self._rebalancer.stop()
        await self._tasks.cancel()
        await self._fetcher.stop()
        if was_open and self._settings.auto_commit_ms:
            await self._commit_at_close()
        self._deliveries.end()
        await self._traces_end()
        self._listening.close()
        await self._lease.close(self)

    async def subscribe(self, topic: str, wanted: str | Filter = "*") -> None:
        """Read this consumer's share of a topic from soon on; a second time replaces the first.

        The members of the group divide the topic's queues among them. One that does not exist yet
        is read once it does.

        Args:
            topic: the topic.
            wanted: tags like ``a || b``, or a `Filter`.

        Raises:
            WrongModeError: this consumer is assigned queues.
            ClientClosedError: it was closed.
            ConfigError: the filter makes no sense, or a broker cannot filter by it.
            InvalidNameError: the topic's name breaks the rules.
        """
        self._chosen.check(Mode.SUBSCRIBED)
        chosen = Filter.of(wanted)
        if not self._open and not self._closed:
            self._note_subscription(topic, chosen)
            return
        self._check_running()
        name = self._names.wrap_topic(topic)
        await check_filters(self._instance, self._group, {name: chosen})
        self._check_running()
        changed = self._filters.get(name) not in (None, chosen)
        self._note_subscription(topic, chosen)
        if changed:
            self._fetch_anew(name)
        try:
            await join(self._instance, [name])  # brokers tell the members only to a member
        finally:
            self._begin_dividing()
            self._rebalancer.wake()
            self._watch.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Read nothing of a topic any more; what is finished is committed.

        Raises:
            WrongModeError: this consumer is assigned queues.
        """
        self._chosen.check(Mode.SUBSCRIBED)
        name = self._names.wrap_topic(topic)
        if self._filters.pop(name, None) is None:
            return
        await self._leave(*(queue for queue in self._fetcher.queues if queue.topic == name))
        if self._open:
            await self._instance.heartbeat()
            self._rebalancer.wake()
            self._watch.wake()

    def disagreements(self) -> list[Difference]:
        """Give what other members of the group subscribe differently, as last seen."""
        return self._watch.disagreements()

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Give the queues of a topic that can be read, and let ``on_queues`` hear of changes.

        Raises:
            ClientClosedError: the consumer is not running.
            TopicNotFoundError: no broker serves the topic.
            NameServerError: no name server answered.
        """
        self._check_running()
        name = self._names.wrap_topic(topic)
        queues = (await self._instance.routes.find(name)).read_queues
        self._listening.look(name, queues)
        return [self._plain(queue) for queue in queues]

    async def assign(self, queues: Iterable[MessageQueue], *, wanted: str | Filter = "*") -> None:
        """Read these queues from now on, and no others.

        Queues that were assigned before go on where they are; new ones begin at the committed
        offset, or where ``start_from`` says. What is finished of the others is committed, unless
        that is left to `commit`.

        Args:
            queues: the queues; none stops all reading.
            wanted: tags like ``a || b``, or a `Filter`.

        Raises:
            ClientClosedError: the consumer is not running.
            WrongModeError: this consumer subscribes to topics.
            ConfigError: the filter makes no sense, or a broker cannot filter by it.
        """
        self._check_running()
        self._chosen.check(Mode.ASSIGNED)
        wanted_filter, chosen = Filter.of(wanted), {self._inner(queue) for queue in queues}
        filters = {queue.topic: wanted_filter for queue in chosen}
        await check_filters(self._instance, self._group, filters)
        self._check_running()
        self._chosen.choose(Mode.ASSIGNED)
        given_up = self._give_up(set(self._fetcher.queues) - chosen)
        before, self._filters = self._filters, filters
        for topic in filters:
            if before.get(topic) not in (None, wanted_filter):
                self._fetch_anew(topic)
        for queue in sorted(chosen.difference(self._fetcher.queues)):
            self._fetcher.begin(queue)
        await self._commit_given_up(given_up)
        await self._instance.heartbeat()

    def __aiter__(self) -> AsyncIterator[StoredMessage]:
        return self

    async def __anext__(self) -> StoredMessage:
        """Wait for the next message of any queue; each queue's come in order.

        The iteration ends when the consumer is closed.

        Raises:
            ClientClosedError: the consumer was never started.
        """
        if self._closed:
            raise StopAsyncIteration
        self._check_running()
        self._finish_handed_out()
        if not await self._fill():
            raise StopAsyncIteration
        message = self._positions.hand_out_one()
        self._deliveries.begin(message.queue, [message])
        return message

    async def poll(self, timeout: float = 5.0) -> list[StoredMessage]:
        """Take the messages that wait, or wait for some; all are of one queue.

        Args:
            timeout: seconds to wait for a first one.

        Returns:
            Messages in order; empty if none came in time.

        Raises:
            ClientClosedError: the consumer is not running.
        """
        self._check_running()
        self._finish_handed_out()
        try:
            async with asyncio.timeout(timeout):
                going_on = await self._fill()
        except TimeoutError:
            return []
        if not going_on:
            raise ClientClosedError(f"the consumer of {self._plain_group} is closed")
        messages = self._positions.hand_out_all()
        self._deliveries.begin(messages[0].queue, messages)
        return messages

    def take_back(self) -> None:
        """Hand out again, next time, what was handed out last: it is not finished.

        Nothing happens if that was committed, or its queue moved or given up meanwhile.
        """
        self._positions.take_back()
        self._deliveries.end(ConsumeEnd.FAILED)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        wanted: str | Filter = "*",
        max_messages: int = 32,
        wait: float = 0.0,
        timeout: float = 10.0,
    ) -> PullResult:
        """Ask once for the messages of a queue from an offset on; assigns and commits nothing.

        Args:
            queue: any queue of any topic.
            offset: of the first wanted message.
            wanted: tags like ``a || b``, or a `Filter`.
            max_messages: 1 to 1024; brokers give at most 32 of those in memory at once.
            wait: seconds that the broker may wait for a message to come, 0 to 120.
            timeout: seconds for the answer beyond ``wait``.

        Returns:
            A status, the messages that match, and where to go on.

        Raises:
            ClientClosedError, TopicNotFoundError, QueueNotFoundError: nobody was asked.
            ResponseError: the broker refused.
            RemotingError: no answer.
        """
        self._check_running()
        request = Pull(
            group=self._group,
            queue=self._inner(queue),
            offset=QueueOffset(offset),
            wanted=Filter.of(wanted),
            max_messages=max_messages,
            hold_ms=int(wait * 1000),
        )
        return self._shown(await self._pull(request, wait + timeout))

    async def send_back(self, message: StoredMessage, *, delay_level: int = 0) -> None:
        """Have a message delivered again, to the group's retry topic, after a delay.

        A pull consumer reads that topic only if it subscribes to ``%RETRY%`` and its group.

        Args:
            message: one that was handed out.
            delay_level: a level of the broker, 0 for one that grows with the retries, -1 for a dead
                letter at once.

        Raises:
            ClientError: no broker took it; nothing is known to have changed.
        """
        self._check_running()
        if not await self._sending_back.send(message, delay_level):
            raise ClientError(f"no broker took message {message.message_id} back")

    async def _fill(self) -> bool:
        """Have messages to hand out; False when there will be no more."""
        while not self._positions.waiting:
            batch = await self._fetcher.take()
            if batch is None:
                return False
            self._positions.take(batch)
        return not self._closed

    async def _auto_commit(self) -> None:
        try:
            await self._commit_due()
        except CometError as error:
            log.warning("commit failed group=%s error=%s", self._group, error)

    async def _commit_at_close(self) -> None:
        try:
            async with asyncio.timeout(self._instance.settings.call_timeout_ms / 1000):
                await self._auto_commit()
        except TimeoutError:
            log.warning("commit at close took too long group=%s", self._group)

    def _note_subscription(self, topic: str, wanted: Filter) -> None:
        check_topic_name(topic)
        self._chosen.choose(Mode.SUBSCRIBED)
        self._filters[self._names.wrap_topic(topic)] = wanted

    def _subscribed(self) -> Collection[str]:
        return list(self._filters)

    def _wanted(self) -> dict[str, Filter]:
        return {self._names.unwrap(topic): wanted for topic, wanted in self._filters.items()}

    def _fetch_anew(self, topic: str) -> None:
        """Go on with a topic's queues where they are, with another filter from now on."""
        for queue in self._fetcher.queues:
            if queue.topic == topic:
                place = self._positions.position(queue)
                self._positions.set_aside(queue)
                self._fetcher.begin(queue, place)

    async def _leave(self, *queues: MessageQueue) -> None:
        """Give queues up to other members, who go on behind what is finished."""
        await self._commit_given_up(self._give_up(queues))

    def _give_up(self, queues: Iterable[MessageQueue]) -> Offsets:
        """Read queues no longer; gives what is finished of them and not committed."""
        queues = list(queues)
        due = self._positions.due(queues)
        for queue in queues:
            self._fetcher.end(queue)
            self._positions.drop(queue)
        return due

    async def _commit_given_up(self, due: Offsets) -> None:
        if not due or not self._settings.auto_commit_ms:
            return
        async with self._committing:
            for failure in (await self._places.commit(due)).values():
                log.warning("commit failed group=%s error=%s", self._group, failure)
