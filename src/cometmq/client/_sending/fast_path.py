"""The fast path of sends: writes the first attempt to the broker's connection without a task.

It serves a send if the topic's route is known, the broker's connection takes requests, no hook
needs to be called and no selector chooses the queue. It decides nothing else: messages are prepared
by `Sender.prepare`, and `RetryPolicy` decides what follows a failed attempt, which `Sender` makes.
The heads of requests for one queue differ in a few values: the bytes between them are encoded once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from cometmq.client._connection.routes import Route
from cometmq.client._sending.back_pressure import BackPressure, Epoch
from cometmq.client._sending.outgoing import Outgoing
from cometmq.client._sending.queue_picker import QueuePicker
from cometmq.client._sending.retry_policy import RetryPolicy, attempt_of
from cometmq.client._sending.sender import Sender
from cometmq.client._sending.targets import SendTarget
from cometmq.client.errors import SendAttempt
from cometmq.client.receipt import SendReceipt, receipt_from
from cometmq.model.errors import CometError, RemotingError, ResponseError
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from cometmq.protocol.command import Command, encode_head
from cometmq.protocol.frame import JSON_HEADER, PREFIX_BYTES, frame_prefix
from cometmq.protocol.headers.base import encode_fields
from cometmq.remoting import CallTimeoutError, Connection

_SYS_FLAG, _BORN, _FLAG, _OPAQUE = 1_444_444_444, 1_111_111_111_111, 1_222_222_222, 1_333_333_333
"""Stand for the values that differ, until the head is cut where they are."""
_PROPERTIES = "properties"
_encode_text = msgspec.json.Encoder().encode


class QueueTarget:
    """One queue: its broker's addresses, and the bytes between the values of its heads."""

    __slots__ = ("address", "pieces", "queue", "send_address")

    def __init__(self, queue: MessageQueue, address: str, send_address: str, head: bytes) -> None:
        self.queue = queue
        """As applications know it."""
        self.address = address
        self.send_address = send_address
        text = head[PREFIX_BYTES:]
        pieces = []
        for mark in (
            b"%d" % _SYS_FLAG,
            b"%d" % _BORN,
            b"%d" % _FLAG,
            b'"%s"' % _PROPERTIES.encode(),
            b"%d" % _OPAQUE,
        ):
            piece, _, text = text.partition(mark)
            pieces.append(piece)
        self.pieces = (*pieces, text)

    def head(self, outgoing: Outgoing, opaque: int) -> bytes:
        """Encode the request up to its body."""
        one, two, three, four, five, six = self.pieces
        header = b"%b%d%b%d%b%d%b%b%b%d%b" % (
            one,
            outgoing.sys_flag,
            two,
            time.time_ns() // 1_000_000,
            three,
            outgoing.flag,
            four,
            _encode_text(outgoing.properties),
            five,
            opaque,
            six,
        )
        return frame_prefix(JSON_HEADER, len(header), len(outgoing.body)) + header


class TopicTargets:
    """All queues of one topic, by one version of its route."""

    __slots__ = ("_by_queue", "_picker", "_queues", "route")

    def __init__(self, route: Route, queues: list[QueueTarget], picker: QueuePicker) -> None:
        self.route = route
        self._queues = queues
        self._by_queue = {target.queue: target for target in queues}
        self._picker = picker

    def find(self, queue: MessageQueue | None) -> QueueTarget | None:
        """Return the chosen queue, or the next one, which `step` then passes."""
        if queue is None:
            return self._queues[self._picker.peek(len(self._queues))]
        return self._by_queue.get(queue)

    def step(self) -> None:
        """Pass the next queue."""
        self._picker.step(len(self._queues))


class FastSend:
    """A send whose first attempt is in flight; receives the response itself."""

    __slots__ = (
        "began_s",
        "connection",
        "epoch",
        "future",
        "outgoing",
        "path",
        "policy",
        "queue_target",
        "size",
        "target",
        "timeout",
    )

    def __init__(
        self,
        path: FastPath,
        future: asyncio.Future[SendReceipt],
        outgoing: Outgoing,
        target: SendTarget,
        queue_target: QueueTarget,
        connection: Connection,
        policy: RetryPolicy,
        began_s: float,
        timeout: float,
        size: int,
        epoch: Epoch,
    ) -> None:
        self.path = path
        self.future = future
        self.outgoing = outgoing
        self.target = target
        self.queue_target = queue_target
        self.connection = connection
        self.policy = policy
        self.began_s = began_s
        self.timeout = timeout
        self.size = size
        self.epoch = epoch

    def done(self) -> bool:
        """Whether the table of requests in flight may forget it."""
        return False

    def set_result(self, response: Command) -> None:
        """The broker has responded."""
        self.path.respond(self, response)

    def set_exception(self, error: Exception) -> None:
        """No response will arrive."""
        self.path.fail(self, error)


class FastPath:
    """Makes the first attempts of one producer's sends, where it can.

    Args:
        sender: prepares messages, and makes the other attempts.
        pressure: gets the room of each send back when it has ended.
        retry: continues a send after a failed first attempt, and then releases its room.
    """

    def __init__(
        self,
        sender: Sender,
        pressure: BackPressure,
        retry: Callable[[FastSend, Exception], None],
    ) -> None:
        self._sender = sender
        self._instance = sender.instance
        self._pressure = pressure
        self._retry = retry
        self._topics: dict[str, TopicTargets] = {}
        self._avoids_slow = sender.destinations.latency is not None

    def begin(
        self,
        message: Message,
        target: SendTarget,
        timeout: float,
        policy: RetryPolicy,
        size: int,
        epoch: Epoch,
    ) -> asyncio.Future[SendReceipt] | None:
        """Write a message to its broker and return its future; None if the general path must.

        Args:
            message: the message.
            target: the queue, if the caller chose.
            timeout: seconds for the whole send.
            policy: when to retry.
            size, epoch: the room of the send, which is released when it has ended.

        Raises:
            CometError: the message breaks a limit; nothing is sent or released.
        """
        if target.selector is not None or self._avoids_slow or self._sender.is_watched:
            return None
        if timeout <= 0 or policy.retry_not_stored or not isinstance(message.topic, str):
            return None
        topic = self._topic_targets(message.topic)
        queue_target = topic.find(target.queue) if topic is not None else None
        if topic is None or queue_target is None:
            return None
        connection = self._instance.remoting.ready(queue_target.send_address)
        if connection is None:
            return None
        outgoing = self._sender.prepare(message)
        if target.queue is None:
            topic.step()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[SendReceipt] = loop.create_future()
        send = FastSend(
            self,
            future,
            outgoing,
            target,
            queue_target,
            connection,
            policy,
            loop.time(),
            timeout,
            size,
            epoch,
        )
        try:
            opaque = connection.begin(send, min(timeout, self._sender.attempt_s_max))
        except RemotingError as error:
            self._retry(send, error)
            return future
        connection.write(queue_target.head(outgoing, opaque), (outgoing.body,))
        return future

    def respond(self, send: FastSend, response: Command) -> None:
        """End a send with the receipt or the error of a response, or retry it."""
        future = send.future
        if future.done():
            self._pressure.release(send.size, send.epoch)
            return
        leaves = response.code == ResponseCode.GO_AWAY
        if leaves and self._instance.settings.reconnect_for_go_away:
            self._retry(send, GoneAwayError("the broker is shutting down"))
            return
        try:
            receipt = receipt_from(response, send.queue_target.queue, send.outgoing.message_id)
        except Exception as error:
            if isinstance(error, ResponseError) and send.policy.allows_another(error):
                self._retry(send, error)
                return
            self._pressure.release(send.size, send.epoch)
            future.set_exception(error)
            return
        self._pressure.release(send.size, send.epoch)
        future.set_result(receipt)
        self._instance.greet_soon(send.queue_target.address)

    def fail(self, send: FastSend, error: Exception) -> None:
        """Retry a send after an attempt without a response."""
        if isinstance(error, CallTimeoutError):
            self._instance.remoting.note_silence(send.connection, send.began_s)
        if send.future.done():
            self._pressure.release(send.size, send.epoch)
        else:
            self._retry(send, error)

    def retry(self, send: FastSend, error: Exception) -> Coroutine[Any, Any, SendReceipt]:
        """Continue on the general path after a failed first attempt."""
        attempts: list[SendAttempt] = []
        if isinstance(error, CometError) and not isinstance(error, GoneAwayError):
            attempts.append(attempt_of(send.queue_target.queue, error))
        return self._sender.go_on(
            send.outgoing,
            send.target,
            send.began_s + send.timeout,
            attempts,
            policy=send.policy,
        )

    # --- what is known of a topic ----------------------------------------------------------------

    def _topic_targets(self, topic: str) -> TopicTargets | None:
        known = self._topics.get(topic)
        wire_topic = topic if known is None else known.route.topic
        route = self._instance.routes.known(wire_topic)
        if known is None or known.route is not route:
            return self._resolve(topic)
        return known

    def _resolve(self, topic: str) -> TopicTargets | None:
        """Find the brokers of a topic's queues; None if the general path must."""
        namespace = self._sender.namespace
        wire_topic = namespace.wrap_topic(topic) if namespace else topic
        route = self._instance.routes.known(wire_topic)
        self._topics.pop(topic, None)
        if route is None or route.provisional or wire_topic.startswith(RETRY_PREFIX):
            return None
        if not self._instance.running:
            return None
        queues = []
        for queue in route.publish_queues:
            address = route.master(queue)
            if address is None:
                return None
            queues.append(self._queue_target(queue, address, route.physical(queue)))
        if not queues:
            return None
        picker = self._sender.destinations.picker(wire_topic)
        found = self._topics[topic] = TopicTargets(route, queues, picker)
        return found

    def _queue_target(self, queue: MessageQueue, address: str, broker_name: str) -> QueueTarget:
        sample = Outgoing(
            queue.topic, Message(queue.topic, b""), "", b"", _PROPERTIES, _SYS_FLAG, _FLAG
        )
        header = self._sender.header(sample, queue, broker_name, born_time_ms=_BORN)
        head = encode_head(
            RequestCode.SEND_MESSAGE_V2,
            opaque=_OPAQUE,
            fields=encode_fields(header),
            language=LanguageCode[self._instance.settings.language],
        )
        shown = self._sender.destinations.shown(queue)
        return QueueTarget(shown, address, self._instance.send_address(address), head)


class GoneAwayError(RemotingError):
    """The broker closes its connections; not stored."""
