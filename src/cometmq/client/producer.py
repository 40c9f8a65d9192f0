"""Sends messages and waits for brokers to store them.

Source: DefaultMQProducer and DefaultMQProducerImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Unpack, overload

from cometmq.client._connection.instance import (
    ClientCore,
    ClientInstance,
    Membership,
    acquire_instance,
)
from cometmq.client._connection.name_servers import HasNameServers
from cometmq.client._hints import MessageFields, MessageOptions, new_message, new_messages
from cometmq.client._lifecycle import Lifecycle
from cometmq.client._sending.batches import split
from cometmq.client._sending.broker_latency import Detector
from cometmq.client._sending.outgoing import check_fields
from cometmq.client._sending.pending_sends import PendingSends
from cometmq.client._sending.queue_picker import KeySelector
from cometmq.client._sending.replies import Replies, recall, reply_to
from cometmq.client._sending.retry_policy import loop_time, seconds_left
from cometmq.client._sending.sender import Sender
from cometmq.client._sending.targets import ANY_QUEUE, SendTarget
from cometmq.client._supervision import raise_permanent_refusal
from cometmq.client.errors import ReplyTimeoutError, SendFailedError, SendTimeoutError
from cometmq.client.handlers import QueueSelector
from cometmq.client.hooks import ForbiddenHook, SendHook
from cometmq.client.options import ProducerOptions
from cometmq.client.receipt import SendReceipt
from cometmq.client.settings import (
    ClientSettings,
    ProducerSettings,
    read_tables,
    resolve_settings,
    split_options,
)
from cometmq.client.trace import SendTrace, TraceDispatcher, trace_recall
from cometmq.model.arguments import check_several, checks_arguments
from cometmq.model.errors import CometError, ConfigError, InvalidMessageError, InvalidNameError
from cometmq.model.message import Message, StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.model.times import timeout_s
from cometmq.model.topic import check_group_name
from cometmq.protocol.bodies.heartbeat import ProducerData
from cometmq.protocol.compression import CompressionError, compress_body

log = logging.getLogger(__name__)

ROCKETMQ_DEFAULT_GROUP = "DEFAULT_PRODUCER"
"""RocketMQ's group of producers without a group name; a producer must not use it."""
DEFAULT_GROUP = "COMETMQ_PRODUCER"
"""The group of producers without a group name. Only plain producers are in it, so that a broker
never sends the check of a transaction to one that has no listener."""

REQUEST_S = 3.0
"""Time for a request and its reply, and for a recall."""
READY_S = 3.0
"""Time for fetching the route of a topic before the first send."""


@checks_arguments(
    unchecked=(
        "send",
        "send_soon",
        "send_nowait",
        "send_batch",
        "send_all",
        "send_oneway",
        "request",
    )
)
class Producer(Lifecycle):
    """Sends messages to the brokers of a cluster.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses. If empty, the setting
            ``name_servers`` is used.
        group: the producer group, under which brokers and administrators see the producer. Only a
            `TransactionProducer` needs one.
        settings: the settings of the producer.
        client: the settings of its connections.
        instance: a shared instance to use instead of new connections. The caller starts and
            closes it.
        hooks: run around every send, or forbid it.
        config: a TOML file with settings. None uses the file that COMETMQ_CONFIG names.
        options: single settings of the producer or of its connections, such as ``retries=0``.

    Raises:
        ConfigError: a setting is unknown or out of range.
        InvalidNameError: the group name is invalid.

    Many sends may be in flight: await them with ``asyncio.gather``, or start them with `send_soon`.
    Above the limits of the settings ``back_pressure_messages`` and ``back_pressure_bytes`` they
    wait for room, in order.

    Example:
        async with Producer(name_server, retries=3) as producer:
            receipt = await producer.send("orders", b"42", keys=["order-42"])
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | HasNameServers = "",
        *,
        group: str | None = None,
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        hooks: Sequence[SendHook | ForbiddenHook] = (),
        config: Path | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        if group is not None:
            _check_group(group)
        check_several(f"producer {group or DEFAULT_GROUP}", "hooks", hooks, SendHook, ForbiddenHook)
        own, connection = split_options(options, ProducerSettings, ClientSettings)
        self._tables = tables = read_tables(config) if config is not None else None
        self._settings = resolve_settings(
            ProducerSettings, keywords=own, given=settings, tables=tables
        )
        _check_compressor(self._settings)
        used = resolve_settings(ClientSettings, keywords=connection, given=client, tables=tables)
        self._lease = acquire_instance(name_servers, settings=used, instance=instance)
        self._instance = self._lease.instance
        self._group = group = group or _unused_group(self._instance)
        super().__init__(f"producer {group}")
        self._sender = Sender(self._instance, group, self._settings, hooks=hooks)
        self._pending = PendingSends(
            self._sender,
            self._settings,
            check_running=self._check_running,
            check_loop=self._check_loop,
        )
        self._timeout_s = self._settings.timeout_ms / 1000
        latency = self._sender.targets.latency
        self._detector = (
            Detector(latency, self._instance, self._settings)
            if self._settings.detector and latency is not None
            else None
        )
        self._traces: TraceDispatcher | None = None

    @property
    def group(self) -> str:
        """The producer group."""
        return self._group

    @property
    def settings(self) -> ProducerSettings:
        """The settings that are in effect."""
        return self._settings

    @property
    def failure(self) -> BaseException | None:
        """The refusal of a broker because of which sends of a topic fail for good, or None.

        It is set after half a minute in which all sends of a topic were refused, five at least,
        because of the account, a right or a setting. A send of that topic that succeeds ends it.
        """
        return self._sender.refusals.failure

    @property
    def healthy(self) -> bool:
        """Whether the producer is running, and brokers do not refuse its sends for good."""
        return self.running and self.failure is None

    def membership(self) -> Membership:
        """Return this producer's entry in the heartbeat."""
        group = self._instance.namespace.wrap_group(self._group)
        return Membership(producers=[ProducerData(group_name=group)])

    async def start(self) -> None:
        """Connect, and make the producer ready to send.

        If a topic of the setting ``topics`` has no route, a warning is logged. The first send to
        that topic looks for its route again.

        Raises:
            ClientError: the client already has a producer of this group.
            ClientClosedError: the producer was closed before, or during the start.
            ResponseError: a server of a topic of the setting ``topics`` refuses the account.
        """
        await super().start()

    async def _start(self) -> None:
        await self._lease.open(self)
        if self._detector is not None:
            self._detector.start()
        if self._settings.trace:
            self._traces = TraceDispatcher.of(self._instance, self._tables)
            self._traces.retain()
            self._sender.add_hook(SendTrace(self._traces, self._settings.trace_topic))
        self._pending.open()
        await asyncio.gather(*map(self._look_ahead, self._settings.topics))
        self._instance.check_heartbeats()

    async def _look_ahead(self, topic: str) -> None:
        try:
            await self._sender.targets.ensure_known(topic, READY_S)
        except CometError as error:
            raise_permanent_refusal(error)
            log.warning(
                "cannot get the route before the first send topic=%s error=%s", topic, error
            )

    async def close(self) -> None:
        """Wait for the sends in flight, unregister from the brokers and close the connections.

        Leaving ``async with`` without an error first waits until all sends that were started have
        ended, at most as long as the setting ``timeout_ms``, as `flush` does. After an error, and
        in a call of `close`, it is as follows. Attempts in flight get as much time as the setting
        ``timeout_ms``; none is retried. Sends that wait for room, or for a retry, fail at once with
        `ClientClosedError`, whose text says whether the message may be stored. Cancelling stops
        the waiting, not the closing.
        """
        await super().close()

    async def _close(self) -> None:
        timeout = self._settings.timeout_ms / 1000
        try:
            if self._detector is not None:
                await self._detector.close()
            await self._end_sends(timeout)
            traces, self._traces = self._traces, None
            if traces is not None:
                await traces.release()
        finally:
            await self._lease.close(self)

    async def _finish_work(self) -> None:
        timeout = self._settings.timeout_ms / 1000
        left = await self._pending.flush(timeout)
        if left:
            log.warning(
                "sends have not ended before the producer is closed group=%s sends=%d seconds=%.1f",
                self._group,
                left,
                timeout,
            )

    async def _end_sends(self, timeout: float) -> None:
        """Accept no more sends, and wait for the sends in flight."""
        await self._pending.close(timeout)

    @overload
    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
    ) -> SendReceipt: ...

    @overload
    async def send(
        self,
        message: str,
        body: bytes,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
        **options: Unpack[MessageFields],
    ) -> SendReceipt: ...

    @overload
    async def send(
        self,
        *,
        topic: str,
        body: bytes,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
        **options: Unpack[MessageFields],
    ) -> SendReceipt: ...

    async def send(
        self,
        message: Any = "",
        body: Any = None,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
        **options: Any,
    ) -> SendReceipt:
        """Send one message and wait until a broker has stored it.

        If the limits on sends in flight are reached, it waits for room first.

        Args:
            message: topic, properties and a body of 1 byte to 4 MiB; or only the topic, and then
                ``body`` and the fields of `Message` by name, such as ``tags``.
            body: the body, if ``message`` is a topic.
            queue: the target queue. A message that was written to a connection is not sent again.
            order_key: messages with the same key go to the same queue, and are not sent again, as
                with ``queue``. Await each send before the next one to keep their order.
            selector: picks the target queue from the queues of the topic; as with ``queue``.
            timeout: seconds for the whole call, with the wait for room and the retries. The first
                retry goes to another broker at once; if the topic has none left, retries follow
                after pauses that grow from 50 to 500 ms. A broker that cannot be reached, or
                is stopping, is waited for until the timeout, with a chosen queue as well.
                None uses the setting ``timeout_ms``, from the moment when there is room; the wait
                for room has the limit ``back_pressure_wait_ms``. With the setting ``auto_batch``,
                only sends with ``timeout=None`` are batched.
            options: fields of `Message`, if ``message`` is a topic.

        Returns:
            Message id, queue, queue offset and ``status``. A status other than ``SEND_OK`` means
            that the message is stored, but not yet flushed or replicated as the broker requires.

        Raises:
            InvalidMessageError: the message breaks a limit; not sent.
            InvalidNameError: the topic name is invalid; not sent.
            TopicNotFoundError: no broker has the topic; not sent.
            QueueNotFoundError: the topic has no such queue; not sent.
            NameServerError: the route is unknown and no name server responded in time; not sent.
            ConnectError: the brokers of the topic had no master in time; not sent.
            ResponseError: the broker refused the message. It is not stored, unless an earlier
                attempt got no response and stored it. The error's notes list such attempts.
            SendTimeoutError: no response in time, or no room. ``maybe_stored`` says whether the
                message may be stored; then a second send may duplicate it.
            SendFailedError: the connection broke, the broker stopped, or another master was
                elected, and the retries are used up; or the response cannot be read.
                ``maybe_stored`` says whether the message may be stored.

        Cancelling stops the waiting. A request that is already sent may still be stored.
        Source: DefaultMQProducer.send, RocketMQ 5.3.
        Example: ``receipt = await producer.send("orders", b"42", tags="paid", delay_level=3)``
        """
        if type(message) is not Message or body is not None or options:
            message = new_message("send", message, body, options)
        target, untimed = ANY_QUEUE, timeout is None
        if queue is not None or order_key is not None or selector is not None:
            target = _target(queue, order_key, selector)
        time_s = self._timeout_s if timeout is None else timeout_s(timeout)
        future = self._pending.start_awaited(message, target, time_s, untimed)
        if future is not None:
            return await future
        return await self._pending.send(message, target, time_s, untimed=untimed)

    async def send_soon(
        self,
        message: Message | str = "",
        body: bytes | None = None,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
        **options: Unpack[MessageOptions],
    ) -> asyncio.Future[SendReceipt]:
        """Start to send one message, and return without waiting for the receipt.

        If the limits on sends in flight are reached, it waits for room first.

        Args:
            message, body, timeout, options: as for `send`. The message may be changed once the
                call has returned.
            queue, order_key, selector: as for `send`, but the message is sent again to the same
                queue after a network failure, and may then be stored twice.

        Returns:
            A future with the receipt, or with an error that `send` raises. Network failures are
            retried up to ``retries_async`` times, after the same pauses as in `send`. A refusal by
            the broker is not retried.

        Raises:
            SendTimeoutError: there was no room in time; not sent.
            ClientClosedError: the producer is not running; not sent.

        Two messages may be stored in another order than they were started, even in one queue.
        Await each `send` where the order matters.

        Cancelling the call stops the wait for room. Cancelling the future stops the waiting for the
        receipt: the message may still be stored, and counts for the limits until its last attempt
        has ended.
        Source: DefaultMQProducer.send(Message, SendCallback), RocketMQ 5.3. Unlike RocketMQ, a
        retry on another broker uses a queue that this broker has.
        Example: ``futures = [await producer.send_soon(message) for message in messages]``
        """
        if type(message) is not Message or body is not None or options:
            message = new_message("send_soon", message, body, options)
        return await self._pending.start(
            message,
            _target(queue, order_key, selector),
            self._time(timeout),
            untimed=timeout is None,
        )

    def send_nowait(
        self,
        message: Message | str = "",
        body: bytes | None = None,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
        **options: Unpack[MessageOptions],
    ) -> asyncio.Future[SendReceipt]:
        """Start to send one message at once; raise if there is no room for it.

        Args:
            message, body, queue, order_key, selector, timeout, options: as for `send_soon`.

        Returns:
            A future, as for `send_soon`.

        Raises:
            BackPressureError: the limits on sends in flight are reached, or others wait for room;
                not sent. `send_soon` waits instead.
            ClientClosedError: the producer is not running; not sent.

        Example: ``future = producer.send_nowait("logs", b"seen")``
        """
        if type(message) is not Message or body is not None or options:
            message = new_message("send_nowait", message, body, options)
        return self._pending.start_nowait(
            message,
            _target(queue, order_key, selector),
            self._time(timeout),
            untimed=timeout is None,
        )

    async def flush(self) -> None:
        """Wait until all sends that were started before have ended, with a receipt or an error.

        Messages that wait for a batch (setting ``auto_batch``) are sent at once. Sends that wait
        for room have not started; sends that start meanwhile are not waited for.
        Example: ``await producer.flush()``
        """
        self._check_loop()
        await self._pending.flush()

    @overload
    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
    ) -> SendReceipt: ...

    @overload
    async def send_batch(
        self,
        messages: str,
        bodies: Sequence[bytes],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
        **options: Unpack[MessageFields],
    ) -> SendReceipt: ...

    async def send_batch(
        self,
        messages: Any,
        bodies: Any = None,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
        **options: Any,
    ) -> SendReceipt:
        """Send several messages in one request to one queue. All are stored, or none.

        Args:
            messages: of one topic, with the same ``wait_store`` and without a delay; or only the
                topic, and then ``bodies``. The encoded batch is at most 4 MiB. Batches are not
                compressed.
            bodies: the body of each message, if ``messages`` is a topic.
            queue, order_key, selector, timeout: as for `send`.
            options: fields of each `Message`, such as ``tags``, if ``messages`` is a topic.

        Returns:
            One receipt: ``message_ids`` has the id of each message, and ``queue_offset`` is the
            offset of the first one. The other messages have the offsets that follow.

        Raises:
            InvalidMessageError: a message or the batch breaks a limit or rule; not sent.
            Other errors as for `send`, for the whole batch.

        Cancelling stops the waiting. A request that is already sent may still be stored.
        Source: DefaultMQProducer.send(Collection), RocketMQ 5.3.
        Example: ``await producer.send_batch("orders", [b"42", b"43"], tags="paid")``
        """
        if isinstance(messages, str) or bodies is not None or options:
            messages = list(new_messages("send_batch", messages, bodies, options))
        if not isinstance(messages, Sequence):
            raise InvalidMessageError(
                f"messages of type {type(messages).__name__}: a list of messages is expected; send "
                "takes one message, and send_all any iterable"
            )
        for message in messages:
            check_message_type(message)
            check_fields(message)
        target = _target(queue, order_key, selector)
        time_s = self._time(timeout)
        return await self._pending.send_batch(messages, target, time_s, untimed=timeout is None)

    @overload
    async def send_all(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
    ) -> list[SendReceipt]: ...

    @overload
    async def send_all(
        self,
        messages: str,
        bodies: Iterable[bytes],
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
        **options: Unpack[MessageFields],
    ) -> list[SendReceipt]: ...

    async def send_all(
        self,
        messages: Any,
        bodies: Any = None,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
        **options: Any,
    ) -> list[SendReceipt]:
        """Send any number of messages in as few requests as possible, in sequence.

        Consecutive messages share a batch if they have the same topic, the same ``wait_store``, no
        delay, and fit into one request. Other messages are sent alone. Each request takes the next
        queue, unless the call chooses one.

        Args:
            messages: in the order in which to send them; or only their topic, and then ``bodies``.
            bodies, options: as for `send_batch`.
            queue, order_key, selector: as for `send`, for each request.
            timeout: seconds for each request.

        Returns:
            One receipt per request, in order; ``message_ids`` has the ids of its messages.

        Raises:
            The error of `send_batch` for the first request that fails. Earlier requests are
            stored, later ones are not sent.

        Example: ``await producer.send_all(Message(topic="t", body=line) for line in lines)``
        """
        if isinstance(messages, str) or bodies is not None or options:
            messages = new_messages("send_all", messages, bodies, options)
        target, time_s = _target(queue, order_key, selector), self._time(timeout)
        receipts = []
        for part in split(_of_messages(messages), self._settings.split_bytes):
            if len(part) == 1:
                receipt = await self._pending.send(part[0], target, time_s)
            else:
                receipt = await self._pending.send_batch(
                    part, target, time_s, untimed=timeout is None
                )
            receipts.append(receipt)
        return receipts

    async def send_oneway(
        self,
        message: Message | str = "",
        body: bytes | None = None,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
        **options: Unpack[MessageOptions],
    ) -> str:
        """Send one message without waiting for a response.

        Args:
            message, body, queue, order_key, selector, options: as for `send`.
            timeout: seconds for finding the route.

        Returns:
            The message's unique id. The client does not learn whether the message was stored.

        Raises:
            InvalidMessageError, InvalidNameError, TopicNotFoundError, QueueNotFoundError,
            NameServerError: not sent.
            ConnectError: the broker cannot be reached; not sent.

        Source: DefaultMQProducer.sendOneway, RocketMQ 5.3.
        Example: ``await producer.send_oneway("logs", b"seen")``
        """
        if type(message) is not Message or body is not None or options:
            message = new_message("send_oneway", message, body, options)
        self._check_running()
        target = _target(queue, order_key, selector)
        return await self._sender.send_message_oneway(message, target, timeout=self._time(timeout))

    async def request(
        self,
        message: Message | str = "",
        body: bytes | None = None,
        *,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta = REQUEST_S,
        **options: Unpack[MessageOptions],
    ) -> StoredMessage:
        """Send a request message, and wait for the reply of its consumer.

        Args:
            message, body, queue, order_key, selector, options: as for `send`.
            timeout: seconds for the send, the consumer's work and the reply.

        Returns:
            The reply. A reply is not stored, so it has no queue offset.

        Raises:
            ReplyTimeoutError: no reply in time. The request is stored, or may be stored if no
                broker confirmed it. A later reply is dropped.
            BackPressureError: the limit on waiting requests is reached; not sent.
            Other errors as for `send`.

        Cancelling stops the waiting. The consumer may still process the request.
        Source: DefaultMQProducer.request, RocketMQ 5.3.
        Example: ``reply = await producer.request("quotes", b"EUR")``
        """
        if type(message) is not Message or body is not None or options:
            message = new_message("request", message, body, options)
        check_fields(message)
        self._check_running()
        target, timeout = _target(queue, order_key, selector), timeout_s(timeout)
        deadline = loop_time() + timeout
        replies = Replies.of(self._instance)
        await self._sender.targets.ensure_known(message.topic, timeout)
        properties, reply = replies.open(timeout)
        sending: asyncio.Future[SendReceipt] | None = None
        try:
            left_s = seconds_left(deadline)
            sending = await self._pending.start(message, target, left_s, properties)
            await _first_of(reply, sending, deadline)
            error = None if reply.done() or not sending.done() else sending.exception()
            if error is not None and not _is_maybe_stored(error):
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
            if sending is not None:
                _ignore(sending)

    async def reply(
        self,
        request: StoredMessage,
        body: bytes,
        *,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float | timedelta = REQUEST_S,
    ) -> SendReceipt:
        """Reply to a message that was sent with `request`.

        Args:
            request: the message that was consumed.
            body: the body of the reply.
            tags: the tag of the reply.
            properties: the properties of the reply.
            timeout: seconds for the whole call.

        Returns:
            The receipt of the broker that has delivered the reply.

        Raises:
            ReplyError: the message is not a request; not sent.
            InvalidMessageError: the properties have a delivery time; not sent.
            ResponseError: the requesting client is not connected any more.
            Other errors as for `send`.

        Source: MessageUtil.createReplyMessage, RocketMQ 5.3.
        Example: ``await producer.reply(request, b"1.09")``
        """
        topic, reserved = reply_to(request)
        message = Message(topic=topic, body=body, tags=tags, properties=dict(properties or {}))
        if message.is_delayed:
            raise InvalidMessageError("a reply with a delay: the broker forwards replies at once")
        return await self._pending.send(message, ANY_QUEUE, timeout_s(timeout), reserved)

    async def recall(
        self, topic: str, handle: str, *, timeout: float | timedelta = REQUEST_S
    ) -> str:
        """Recall a timer message before it is due. Needs a broker of RocketMQ 5.

        Args:
            topic: the topic of the message.
            handle: the receipt's ``recall_handle``.
            timeout: seconds for the whole call.

        Returns:
            The message's id. A message that is due at this moment may still be delivered.

        Raises:
            InvalidMessageError: the handle is empty, or its topic does not allow a recall; no
                request was sent.
            ResponseError: the broker refused: the message was due already, or the broker does not
                serve recalls.
            TopicNotFoundError, RemotingError: no broker received the request, or none responded.

        Source: DefaultMQProducer.recallMessage, RocketMQ 5.3.
        Example: ``await producer.recall("orders", receipt.recall_handle)``
        """
        self._check_running()
        message_id = await recall(
            self._instance, self._group, topic, handle, timeout=timeout_s(timeout)
        )
        if self._traces is not None:
            trace_recall(self._traces, self._settings.trace_topic, self._group, topic, message_id)
        return message_id

    async def fetch_queues(
        self, topic: str, *, timeout: float | timedelta | None = None
    ) -> list[MessageQueue]:
        """Return the writable queues of a topic.

        A topic that does not exist, and that the first send would create, has the queues that it
        would get.

        Raises:
            ClientClosedError: the producer is not running.
            TopicNotFoundError: no broker has the topic, and none creates topics.
            ConnectError: the brokers of the topic have no master now.
            NameServerError: no name server responded.
        """
        self._check_running()
        return await self._sender.targets.queues(topic, self._time(timeout))

    async def ready(self, *topics: str) -> None:
        """Fetch the routes of topics, and connect to their brokers, before the first send.

        Raises:
            ClientClosedError: the producer is not running.
            ResponseError: a server refuses the account.
            TopicNotFoundError: no broker has one of them, and none creates topics.
            ConnectError: the brokers of one of them have no master now.
            NameServerError: no name server responded.
        """
        self._check_running()
        await asyncio.gather(
            *(self._sender.targets.ensure_known(topic, READY_S) for topic in topics)
        )
        self._instance.check_heartbeats()

    def _time(self, timeout: float | timedelta | None) -> float:
        return self._timeout_s if timeout is None else timeout_s(timeout)


def check_message_type(message: object) -> None:
    """Check that a message was made for sending.

    Raises:
        InvalidMessageError: it is something else, such as text, or a message that was received.
    """
    if not isinstance(message, Message):
        raise InvalidMessageError(
            f"a message of type {type(message).__name__}: Message(topic=..., body=...) is expected"
        )


def _of_messages(messages: Iterable[Message]) -> Iterator[Message]:
    if not isinstance(messages, Iterable):
        raise InvalidMessageError(
            f"messages of type {type(messages).__name__}: an iterable of messages is expected; "
            "send takes one message"
        )
    for message in messages:
        check_message_type(message)
        check_fields(message)
        yield message


def _check_group(name: str) -> None:
    check_group_name(name)
    if name == ROCKETMQ_DEFAULT_GROUP:
        raise InvalidNameError(f"the group {name} is reserved: give the producer another group")
    if name.partition("-")[0] == DEFAULT_GROUP:
        raise InvalidNameError(
            f"the group {name} is one of producers without a group, and a client has one producer "
            "of a group: leave the group out, or give another one"
        )


def _unused_group(instance: ClientCore) -> str:
    """Return the default group, with a number if the client has such a producer already.

    Brokers know one producer of a group per client.
    """
    number = next(instance.unnamed_producers)
    return DEFAULT_GROUP if number == 1 else f"{DEFAULT_GROUP}-{number}"


def _check_compressor(settings: ProducerSettings) -> None:
    """Find out now, not at the first large message, that a package is missing."""
    try:
        if settings.compress_level:
            compress_body(b"x", settings.compression, settings.compress_level)
    except CompressionError as error:
        raise ConfigError(
            f"compress_type {settings.compress_type}: {error}: install the extra 'compression'"
        ) from None


async def _first_of(
    one: asyncio.Future[StoredMessage], other: asyncio.Future[Any], deadline: float
) -> None:
    """Wait until one of two is done, or until time runs out."""
    left_s = deadline - loop_time()
    if left_s > 0:
        await asyncio.wait({one, other}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)


def _is_maybe_stored(error: BaseException) -> bool:
    return isinstance(error, SendFailedError) and error.maybe_stored


def _ignore(sending: asyncio.Future[SendReceipt]) -> None:
    """Stop waiting for a send whose result does not matter any more."""
    if not sending.done():
        sending.cancel()
    elif not sending.cancelled():
        sending.exception()


def _target(
    queue: MessageQueue | None, order_key: str | None, selector: QueueSelector | None
) -> SendTarget:
    if queue is None and order_key is None and selector is None:
        return ANY_QUEUE
    if (queue, order_key, selector).count(None) < 2:
        raise TypeError("queue, order_key and selector choose the queue: give one of them")
    if not isinstance(order_key, str | None):
        raise TypeError(f"order_key={order_key!r}: expected text, such as str(...)")
    if not isinstance(queue, MessageQueue | None):
        raise TypeError(f"queue={queue!r}: expected a MessageQueue; fetch_queues returns them")
    if selector is not None and not callable(selector):
        raise TypeError(f"selector={selector!r}: expected a function of the queues and the message")
    return SendTarget(queue, selector if order_key is None else KeySelector(order_key))
