"""Sends messages and waits for brokers to store them.

Source: DefaultMQProducer and DefaultMQProducerImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cometmq.client.accumulator import Accumulator
from cometmq.client.begun_sends import BegunSends
from cometmq.client.config import (
    ClientSettings,
    ProducerSettings,
    layered,
    read_tables,
    shared_out,
)
from cometmq.client.destinations import Place
from cometmq.client.detector import Detector
from cometmq.client.errors import ReplyTimeoutError, SendFailedError, SendTimeoutError
from cometmq.client.hooks import ForbiddenHook, SendHook
from cometmq.client.instance import ClientInstance, Membership
from cometmq.client.lifetime import Ending, Lifetime
from cometmq.client.queue_choice import QueueSelector, by_key
from cometmq.client.recall import recall
from cometmq.client.receipt import SendReceipt
from cometmq.client.registry import lease
from cometmq.client.replies import Replies, reply_to
from cometmq.client.sender import Sender
from cometmq.client.splitting import split
from cometmq.client.trace import SendTrace, TraceDispatcher, trace_recall
from cometmq.model.errors import CometError, ConfigError, InvalidNameError
from cometmq.model.message import Message, StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import check_group_name
from cometmq.protocol.bodies import ProducerData
from cometmq.protocol.compression import CompressionError, compress_body

log = logging.getLogger(__name__)

DEFAULT_GROUP = "DEFAULT_PRODUCER"
"""RocketMQ's group of producers that were given none; nobody may use it."""

REQUEST_S = 3.0
"""Time for a request and its reply, and for a recall."""
READY_S = 3.0
"""Time for finding the route of a topic ahead of the first send."""


class Producer(Lifetime):
    """Sends messages to the brokers of a cluster.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses; empty to look in the
            settings, then in the environment.
        group: name of the producers that do the same work; brokers show it.
        settings: the producer's settings.
        client: settings of its connections.
        instance: share these connections instead of opening own ones; the caller starts and
            closes them.
        hooks: watch every send, or forbid it.
        config: a TOML file with settings; None for the one that COMETMQ_CONFIG names.
        options: single settings of the producer or of its connections, such as ``retries=0``.

    Raises:
        ConfigError: a setting is unknown or out of its range.
        InvalidNameError: the group has no valid name.

    Many sends may run at once: await them together with ``asyncio.gather``, or begin them with
    `send_soon`, which costs less.
    Example:
        ``async with Producer("127.0.0.1:9876", group="shop") as producer: ...``
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] = "",
        *,
        group: str,
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        hooks: Sequence[SendHook | ForbiddenHook] = (),
        config: Path | None = None,
        **options: Any,
    ) -> None:
        _check_group(group)
        own, connection = shared_out(options, ProducerSettings, ClientSettings)
        self._tables = tables = read_tables(config) if config is not None else None
        self._group = group
        self._settings = layered(ProducerSettings, keywords=own, given=settings, tables=tables)
        _check_compressor(self._settings)
        used = layered(ClientSettings, keywords=connection, given=client, tables=tables)
        self._lease = lease(name_servers, settings=used, instance=instance)
        self._instance = self._lease.instance
        self._sender = Sender(self._instance, group, self._settings, hooks=hooks)
        self._accumulator = (
            Accumulator(self._sender, self._settings) if self._settings.auto_batch else None
        )
        self._begun = BegunSends(self._sender, self._settings, self._accumulator)
        latency = self._sender.destinations.latency
        self._detector = (
            Detector(latency, self._instance, self._settings)
            if self._settings.detector and latency is not None
            else None
        )
        self._traces: TraceDispatcher | None = None
        self._ending = Ending(self._close, f"producer {group}.close")

    @property
    def group(self) -> str:
        """The producer's group."""
        return self._group

    @property
    def settings(self) -> ProducerSettings:
        """The settings in force."""
        return self._settings

    def membership(self) -> Membership:
        """Say what the heartbeat tells of this producer."""
        group = self._instance.namespace.wrap_group(self._group)
        return Membership(producers=[ProducerData(group_name=group)])

    async def start(self) -> None:
        """Make the producer ready to send.

        A topic of the setting ``topics`` whose route is not found is logged, and looked for again
        by the first send to it.

        Raises:
            ClientError: the shared instance has a producer of this group already.
        """
        await self._lease.open(self)
        self._begun.open()
        if self._detector is not None:
            self._detector.start()
        if self._settings.trace and self._traces is None:
            self._traces = TraceDispatcher.of(self._instance, self._tables)
            self._traces.retain()
            self._sender.watch(SendTrace(self._traces, self._settings.trace_topic))
        try:
            await asyncio.gather(*map(self._look_ahead, self._settings.topics))
        except BaseException:
            await self.close()
            raise

    async def _look_ahead(self, topic: str) -> None:
        try:
            await self.ready(topic)
        except CometError as error:
            log.warning("route not found ahead of the first send topic=%s error=%s", topic, error)

    async def close(self) -> None:
        """Wait for the sends that were begun, tell the brokers goodbye and close the connections.

        The waiting is bounded by the time that each send has; sends that other tasks await fail.
        Cancelling stops the waiting, not the closing.
        """
        await self._ending.reached()

    async def _close(self) -> None:
        timeout = self._settings.timeout_ms / 1000
        try:
            if self._detector is not None:
                await self._detector.close()
            if self._accumulator is not None:
                await self._accumulator.close(timeout)
            await self._begun.close(timeout)
            traces, self._traces = self._traces, None
            if traces is not None:
                await traces.release()
        finally:
            await self._lease.close(self)

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send one message and wait until a broker has stored it.

        Args:
            message: topic, properties and a body of 1 byte to 4 MiB.
            queue: send to just this queue, without retries.
            order_key: send to the queue that all messages with this key go to, without retries;
                whoever awaits one send before the next keeps their order.
            selector: picks the queue from those of the topic, without retries.
            timeout: seconds for the whole call, at most two retries on other brokers included;
                None for the settings' ``timeout_ms``. With the setting ``auto_batch``, only sends
                without a timeout of their own are gathered.

        Returns:
            Message id, queue, queue offset and ``status``. A status other than ``SEND_OK`` means
            stored, but not yet flushed or replicated as the broker is set to do.

        Raises:
            InvalidMessageError: the message breaks a limit; nothing was sent.
            InvalidNameError: the topic's name breaks the rules; nothing was sent.
            TopicNotFoundError: no broker serves the topic; nothing was sent.
            QueueNotFoundError: the topic has no such queue; nothing was sent.
            NameServerError: the topic's route is unknown and nobody tells; nothing was sent.
            ResponseError: the broker refused it; not stored, unless an earlier try that got no
                answer was: the error's notes tell of such.
            SendTimeoutError: no answer in time; perhaps stored, so sending again may duplicate it.
            SendFailedError: no broker answered; ``maybe_stored`` tells whether it may be stored.

        Cancelling stops the waiting; a request already on the wire may still be stored.
        Source: DefaultMQProducer.send, RocketMQ 5.3.
        Example: ``receipt = await producer.send(Message(topic="orders", body=b"42"))``
        """
        place = _place(queue, order_key, selector)
        gathers = self._accumulator
        if gathers is not None and timeout is None and gathers.takes(message, place):
            self._instance.check_running()
            promise: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
            gathers.add(message, place, promise, awaited=True)
            return await promise
        seconds = self._time(timeout)
        quick = self._begun.begin_awaited(message, place, seconds)
        if quick is not None:
            return await quick
        return await self._sender.send_message(message, place, timeout=seconds)

    def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Begin to send one message, and return at once.

        Args:
            message, queue, order_key, selector, timeout: as for `send`.

        Returns:
            What becomes of it: the receipt, or any error that `send` raises. Failures of the
            network are tried again, with a chosen queue at the same broker; what a broker refuses
            is not. With the setting ``back_pressure``, BackPressureError says that too much is on
            its way already and nothing was sent: `drain` waits until there is room.

        Messages that are begun one after the other may be stored in another order, even in one
        queue: await each `send` where the order counts.

        Cancelling the future stops the waiting; the message may still be stored.
        Source: DefaultMQProducer.send(Message, SendCallback), RocketMQ 5.3. Unlike there, a retry
        at another broker takes a queue which that broker has.
        Example: ``receipts = await asyncio.gather(*map(producer.send_soon, messages))``
        """
        place = _place(queue, order_key, selector)
        return self._begun.begin(message, place, self._time(timeout), gathered=timeout is None)

    async def drain(self, *, timeout: float | None = None) -> bool:
        """Wait until `send_soon` may begin one more send.

        Returns:
            Whether there was room within ``timeout`` seconds; None for the settings' time.
        """
        return await self._begun.drain(self._time(timeout))

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> SendReceipt:
        """Send several messages as one request, into one queue, stored all or none.

        Args:
            messages: of one topic, with the same ``wait_store`` and without delay; together at
                most 4 MiB once encoded. They are not compressed.
            queue, order_key, selector, timeout: as for `send`.

        Returns:
            One receipt: the ids joined by commas, and the offset of the first message; the others
            follow it without a gap.

        Raises:
            InvalidMessageError: a message or the whole breaks a limit or rule; nothing was sent.
            Everything else as `send`, for all the messages together.

        Cancelling stops the waiting; a request already on the wire may still be stored.
        Source: DefaultMQProducer.send(Collection), RocketMQ 5.3.
        Example: ``await producer.send_batch([Message(topic="t", body=b"1")] * 3)``
        """
        place = _place(queue, order_key, selector)
        return await self._sender.send_batch(messages, place, timeout=self._time(timeout))

    async def send_all(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> list[SendReceipt]:
        """Send any number of messages in as few requests as they fit into, one after the other.

        Messages that follow each other travel in one batch as long as they go together: the same
        topic, the same ``wait_store``, no delay, and not too large. The others are sent alone.

        Args:
            messages: in the order in which they are to be sent.
            queue, order_key, selector: as for `send`, for each request.
            timeout: seconds for each request.

        Returns:
            The receipt of each request, in order; a batch has one with all its ids.

        Raises:
            What `send_batch` raises for the first request that fails: those before it are stored,
            those behind it were not sent.

        Source: ours; RocketMQ leaves the splitting to applications.
        Example: ``await producer.send_all(Message(topic="t", body=line) for line in lines)``
        """
        place, seconds = _place(queue, order_key, selector), self._time(timeout)
        receipts = []
        for part in split(messages, self._settings.split_bytes):
            if len(part) == 1:
                receipt = await self._sender.send_message(part[0], place, timeout=seconds)
            else:
                receipt = await self._sender.send_batch(part, place, timeout=seconds)
            receipts.append(receipt)
        return receipts

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> str:
        """Send one message and wait for no answer.

        Args:
            message, queue, order_key, selector: as for `send`.
            timeout: seconds for finding the route.

        Returns:
            The message's unique id. Nobody says whether a broker stored the message.

        Raises:
            InvalidMessageError, InvalidNameError, TopicNotFoundError, QueueNotFoundError,
            NameServerError: nothing was sent.
            ConnectError: the broker cannot be reached; nothing was sent.

        Source: DefaultMQProducer.sendOneway, RocketMQ 5.3.
        Example: ``await producer.send_oneway(Message(topic="logs", body=b"seen"))``
        """
        place = _place(queue, order_key, selector)
        return await self._sender.send_message_oneway(message, place, timeout=self._time(timeout))

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float = REQUEST_S,
    ) -> StoredMessage:
        """Send a message to whoever consumes it, and wait for the reply.

        Args:
            message, queue, order_key, selector: as for `send`.
            timeout: seconds for the way there, the work and the way back.

        Returns:
            The reply; it was never stored, so it has no place in a queue.

        Raises:
            ReplyTimeoutError: the request is stored, or perhaps if no broker confirmed it, and no
                reply came; one that comes now is dropped.
            BackPressureError: too many requests wait already; nothing was sent.
            Everything else as `send`: the request is not, or only perhaps, stored.

        Cancelling stops the waiting; the request may still be worked on.
        Source: DefaultMQProducer.request, RocketMQ 5.3.
        Example: ``reply = await producer.request(Message(topic="quotes", body=b"EUR"))``
        """
        deadline = _now() + timeout
        replies = Replies.of(self._instance)
        await self._sender.destinations.introduce(message.topic, timeout)
        properties, reply = replies.open(timeout)
        place = _place(queue, order_key, selector)
        sending = self._begun.begin(message, place, max(deadline - _now(), 0.001), properties)
        try:
            await _first_of(reply, sending, deadline)
            error = None if reply.done() or not sending.done() else sending.exception()
            if error is not None and not _is_perhaps_stored(error):
                raise error
            await _first_of(reply, reply, deadline)
            if reply.done():
                return reply.result()
            if error is not None and not isinstance(error, SendTimeoutError):
                raise error
            late = f"no reply from {message.topic} within {timeout:g} s"
            raise ReplyTimeoutError(late) from error
        finally:
            replies.forget(properties)
            _let_go(sending)

    async def reply(
        self,
        request: StoredMessage,
        body: bytes,
        *,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float = REQUEST_S,
    ) -> SendReceipt:
        """Reply to a message that was sent with `request`.

        Args:
            request: the message as it was consumed.
            body: of the reply.
            tags: of the reply.
            properties: of the reply.
            timeout: seconds for the whole call.

        Returns:
            Proof that a broker has handed the reply over.

        Raises:
            ReplyError: the message is no request; nothing was sent.
            ResponseError: the client that asked cannot be reached any more.
            Everything else as `send`.

        Source: MessageUtil.createReplyMessage, RocketMQ 5.3.
        Example: ``await producer.reply(request, b"1.09")``
        """
        topic, reserved = reply_to(request)
        message = Message(topic=topic, body=body, tags=tags, properties=dict(properties or {}))
        return await self._sender.send_message(message, timeout=timeout, reserved=reserved)

    async def recall(self, topic: str, handle: str, *, timeout: float = REQUEST_S) -> str:
        """Take back a timer message before it is due.

        Args:
            topic: where the message was sent.
            handle: the receipt's ``recall_handle``.
            timeout: seconds for the whole call.

        Returns:
            The message's id. A message that is being delivered now may be delivered all the same.

        Raises:
            InvalidMessageError: no handle, or one of a topic whose messages cannot be recalled;
                nothing was asked.
            ResponseError: the broker refused, since the message is due already, or it recalls none.
            TopicNotFoundError, RemotingError: no broker was asked, or none answered.

        Source: DefaultMQProducer.recallMessage, RocketMQ 5.3.
        Example: ``await producer.recall("orders", receipt.recall_handle)``
        """
        message_id = await recall(self._instance, self._group, topic, handle, timeout=timeout)
        if self._traces is not None:
            trace_recall(self._traces, self._settings.trace_topic, self._group, topic, message_id)
        return message_id

    async def fetch_queues(self, topic: str, *, timeout: float | None = None) -> list[MessageQueue]:
        """Give the queues of a topic that can be sent to.

        Raises:
            TopicNotFoundError: no broker serves the topic.
            NameServerError: no name server answered.
        """
        return await self._sender.destinations.queues(topic, self._time(timeout))

    async def ready(self, *topics: str) -> None:
        """Find the routes of topics ahead of the first send, so that it need not.

        Raises:
            TopicNotFoundError: no broker serves one of them.
            NameServerError: no name server answered.
        """
        await asyncio.gather(
            *(self._sender.destinations.queues(topic, READY_S) for topic in topics)
        )

    def _time(self, timeout: float | None) -> float:
        return self._settings.timeout_ms / 1000 if timeout is None else timeout


_ANYWHERE = Place()


def _check_group(name: str) -> None:
    check_group_name(name)
    if name == DEFAULT_GROUP:
        raise InvalidNameError(f"the group {name} is everybody's: give the producer one of its own")


def _check_compressor(settings: ProducerSettings) -> None:
    """Find out now, not at the first large message, that a package is missing."""
    try:
        if settings.compress_level:
            compress_body(b"x", settings.compression, settings.compress_level)
    except CompressionError as error:
        raise ConfigError(
            f"compress_type {settings.compress_type}: {error}: pip install 'cometmq[compression]'"
        ) from None


async def _first_of(
    one: asyncio.Future[StoredMessage], other: asyncio.Future[Any], deadline: float
) -> None:
    """Wait until one of two is done, or until time runs out."""
    left_s = deadline - _now()
    if left_s > 0:
        await asyncio.wait({one, other}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)


def _is_perhaps_stored(error: BaseException) -> bool:
    return isinstance(error, SendFailedError) and error.maybe_stored


def _let_go(sending: asyncio.Future[SendReceipt]) -> None:
    """Nobody looks at this send any more."""
    if not sending.done():
        sending.cancel()
    elif not sending.cancelled():
        sending.exception()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _place(
    queue: MessageQueue | None, order_key: str | None, selector: QueueSelector | None
) -> Place:
    if queue is None and order_key is None and selector is None:
        return _ANYWHERE
    if (queue, order_key, selector).count(None) < 2:
        raise TypeError("queue, order_key and selector choose the queue: give one of them")
    return Place(queue, selector if order_key is None else by_key(order_key))
