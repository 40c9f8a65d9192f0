"""Reads chosen queues at the application's own pace, and keeps its place.

Source: DefaultLitePullConsumer in assign mode and DefaultMQPullConsumer, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence

from cometmq.client.config import ClientSettings, PullSettings
from cometmq.client.errors import ClientError
from cometmq.client.fetching import Batch, Fetcher
from cometmq.client.instance import ClientInstance, Membership
from cometmq.client.lifetime import Lifetime
from cometmq.client.offsets import StartFrom
from cometmq.client.pulling import Pull, PullResult, pull_once
from cometmq.client.queue_offsets import QueueBounds, QueueOffsets
from cometmq.client.registry import lease
from cometmq.client.subscription import Filter
from cometmq.model.errors import CometError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import check_group_name
from cometmq.protocol.bodies import ConsumerData, ConsumeType, MessageModel
from cometmq.remoting import Supervisor

log = logging.getLogger(__name__)


class PullConsumer(Lifetime):
    """Reads the queues it is told to, and commits how far it came.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses.
        group: whose place is kept by the brokers.
        start_from: where to begin in a queue of which the group has committed nothing.
        settings: the consumer's settings.
        client: settings of its connections.
        instance: share these connections instead of opening own ones; the caller starts and
            closes them.

    Delivery is at least once: a message counts as finished when the next one is asked for, and
    finished messages are committed every few seconds and on closing. What was handed out and not
    committed is handed out again after a crash.

    Example:
        ``async with PullConsumer("127.0.0.1:9876", group="audit") as consumer:``
        ``    await consumer.assign(await consumer.fetch_queues("orders"))``
        ``    async for message in consumer: print(message.body)``
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] = (),
        *,
        group: str,
        start_from: StartFrom = StartFrom.LAST,
        settings: PullSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        check_group_name(group)
        self._group = group
        self._start_from = start_from
        self._settings = settings or PullSettings()
        self._lease = lease(name_servers, settings=client, instance=instance)
        self._instance = self._lease.instance
        self._offsets = QueueOffsets(self._instance.routes, self._instance.brokers)
        self._filters: dict[str, Filter] = {}
        self._handed_out: dict[MessageQueue, QueueOffset] = {}
        self._finished: dict[MessageQueue, QueueOffset] = {}
        self._committed: dict[MessageQueue, QueueOffset] = {}
        self._waiting: deque[StoredMessage] = deque()
        self._batch: Batch | None = None
        self._committing = asyncio.Lock()
        self._tasks = Supervisor(f"pull consumer {group}")
        self._fetcher = Fetcher(
            self._pull_next,
            self._first_offset,
            fetched_max=self._settings.fetched_max,
            retry_s=self._settings.retry_ms / 1000,
            name=f"pull consumer {group}",
        )

    @property
    def group(self) -> str:
        """The consumer's group."""
        return self._group

    def membership(self) -> Membership:
        """Say what the heartbeat tells of this consumer."""
        data = ConsumerData(
            group_name=self._group,
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=self._start_from.value,
            subscription_data_set=[
                wanted.data(topic) for topic, wanted in sorted(self._filters.items())
            ],
        )
        return Membership(consumers=[data])

    async def start(self) -> None:
        """Make the consumer ready to be assigned queues.

        Raises:
            ClientError: the shared instance has a consumer of this group already.
        """
        await self._lease.open(self)
        if self._settings.auto_commit_ms:
            self._tasks.every(self._settings.auto_commit_ms / 1000, self._auto_commit, "commit")

    async def close(self) -> None:
        """Commit what is finished, tell the brokers goodbye and close the connections."""
        await self._tasks.cancel()
        await self._fetcher.stop()
        if self._settings.auto_commit_ms and self._instance.running:
            await self._commit_at_close()
        await self._lease.close(self)

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Give the queues of a topic that can be read.

        Raises:
            ClientClosedError: the consumer is not running.
            TopicNotFoundError: no broker serves the topic.
            NameServerError: no name server answered.
        """
        self._instance.check_running()
        return list((await self._instance.routes.find(topic)).read_queues)

    async def assign(self, queues: Iterable[MessageQueue], *, wanted: str | Filter = "*") -> None:
        """Read these queues from now on, and no others.

        Queues that were assigned before go on where they are; new ones begin at the committed
        offset, or where ``start_from`` says.

        Args:
            queues: the queues; none stops all reading.
            wanted: tags like ``a || b``, or a `Filter`.

        Raises:
            ClientClosedError: the consumer is not running.
            ConfigError: the filter makes no sense.
        """
        self._instance.check_running()
        wanted_filter, chosen = Filter.of(wanted), set(queues)
        for queue in self.assignment():
            if queue not in chosen or self._filters.get(queue.topic) != wanted_filter:
                self._give_up(queue)
        self._filters = {queue.topic: wanted_filter for queue in chosen}
        for queue in sorted(chosen - set(self.assignment())):
            self._fetcher.begin(queue)
        await self._instance.heartbeat()

    def assignment(self) -> list[MessageQueue]:
        """Give the queues that are being read."""
        return self._fetcher.queues

    def __aiter__(self) -> AsyncIterator[StoredMessage]:
        return self

    async def __anext__(self) -> StoredMessage:
        """Wait for the next message of any assigned queue; each queue's come in order."""
        self._finish_handed_out()
        while not self._waiting:
            self._take(await self._fetcher.take())
        message = self._waiting.popleft()
        self._hand_out(message)
        return message

    async def poll(self, timeout: float = 5.0) -> list[StoredMessage]:
        """Take the messages that wait, or wait for some; all are of one queue.

        Args:
            timeout: seconds to wait for a first one.

        Returns:
            Messages in order; empty if none came in time.
        """
        self._finish_handed_out()
        try:
            async with asyncio.timeout(timeout):
                while not self._waiting:
                    self._take(await self._fetcher.take())
        except TimeoutError:
            return []
        messages = list(self._waiting)
        self._waiting.clear()
        self._hand_out(messages[-1])
        return messages

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
        self._instance.check_running()
        request = Pull(
            group=self._group,
            queue=queue,
            offset=QueueOffset(offset),
            wanted=Filter.of(wanted),
            max_messages=max_messages,
            hold_ms=int(wait * 1000),
        )
        address = await self._offsets.address(queue)
        return await pull_once(self._instance.brokers, address, request, timeout=wait + timeout)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on reading an assigned queue at another offset.

        Raises:
            ClientError: the queue is not assigned.
        """
        if queue not in self.assignment():
            raise ClientError(f"{queue} is not assigned to this consumer")
        self._give_up(queue)
        self._handed_out[queue] = self._finished[queue] = QueueOffset(offset)
        self._fetcher.begin(queue, QueueOffset(offset))

    async def seek_to_time(self, timestamp_ms: int) -> None:
        """Go on in every assigned queue at the first message stored at or after a time.

        Args:
            timestamp_ms: milliseconds since 1970.

        Raises:
            ResponseError, RemotingError: a broker was no help; queues before it were moved.
        """
        for queue in self.assignment():
            await self.seek(queue, await self._offsets.at_time(queue, timestamp_ms))

    async def seek_to_begin(self) -> None:
        """Go on in every assigned queue at its oldest message."""
        for queue in self.assignment():
            await self.seek(queue, (await self._offsets.bounds(queue)).min_offset)

    async def seek_to_end(self) -> None:
        """Go on in every assigned queue behind its newest message."""
        for queue in self.assignment():
            await self.seek(queue, (await self._offsets.bounds(queue)).max_offset)

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Give a queue's oldest offset and the one its next message will have."""
        self._instance.check_running()
        return await self._offsets.bounds(queue)

    async def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset this group has committed of a queue, or None.

        Brokers give 0 for a group they do not know while the queue's first message is in memory.
        """
        self._instance.check_running()
        return await self._offsets.committed(self._group, queue)

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset behind the last message handed out of a queue, or None before one."""
        return self._handed_out.get(queue)

    async def commit(self) -> None:
        """Commit everything handed out so far, the message in hand included.

        Raises:
            ResponseError, RemotingError: a broker was no help; what it serves stays uncommitted
                and is handed out again after a restart, unless a later commit succeeds.
        """
        self._instance.check_running()
        self._finish_handed_out()
        await self._commit_finished()

    async def _auto_commit(self) -> None:
        try:
            await self._commit_finished()
        except CometError as error:
            log.warning("commit failed group=%s error=%s", self._group, error)

    async def _commit_at_close(self) -> None:
        try:
            async with asyncio.timeout(self._instance.settings.call_timeout_ms / 1000):
                await self._auto_commit()
        except TimeoutError:
            log.warning("commit at close took too long group=%s", self._group)

    async def _commit_finished(self) -> None:
        async with self._committing:
            for queue in list(self._finished):
                offset = self._finished.get(queue)
                if offset is not None and self._committed.get(queue) != offset:
                    await self._offsets.commit(self._group, queue, offset)
                    self._committed[queue] = offset

    async def _pull_next(self, queue: MessageQueue, offset: QueueOffset) -> PullResult:
        request = Pull(
            group=self._group,
            queue=queue,
            offset=offset,
            wanted=self._filters[queue.topic],
            max_messages=self._settings.pull_batch,
            hold_ms=self._settings.hold_ms,
        )
        address = await self._offsets.address(queue)
        timeout = (self._settings.hold_ms + self._settings.answer_margin_ms) / 1000
        return await pull_once(self._instance.brokers, address, request, timeout=timeout)

    async def _first_offset(self, queue: MessageQueue) -> QueueOffset:
        committed = await self._offsets.committed(self._group, queue)
        if committed is not None:
            return committed
        bounds = await self._offsets.bounds(queue)
        return bounds.max_offset if self._start_from is StartFrom.LAST else bounds.min_offset

    def _take(self, batch: Batch) -> None:
        self._batch = batch
        self._waiting.extend(batch.messages)
        if not batch.messages:
            self._handed_out[batch.queue] = self._finished[batch.queue] = batch.next_offset

    def _hand_out(self, message: StoredMessage) -> None:
        """Note how far the application is once it is done with this message."""
        assert self._batch is not None
        behind = QueueOffset(message.queue_offset + 1)
        place = self._batch.next_offset if not self._waiting else behind
        self._handed_out[self._batch.queue] = place

    def _finish_handed_out(self) -> None:
        self._finished.update(self._handed_out)

    def _give_up(self, queue: MessageQueue) -> None:
        self._fetcher.end(queue)
        self._handed_out.pop(queue, None)
        self._finished.pop(queue, None)
        if self._batch is not None and self._batch.queue == queue:
            self._waiting.clear()
            self._batch = None
