# cython: annotation_typing=False
"""The fast path of sends: writes the first attempt to the broker's connection without a task.

It serves a send if the topic's route is known, the broker's connection takes requests, no hook
needs to be called and no selector of the application chooses the queue. It decides nothing else:
`prepare` checks and encodes messages, `RetryPolicy` decides what follows a failed attempt, and
`Sender` makes the next.
The heads of requests for one queue differ in a few values: the bytes between them are encoded once.

Compiled, the response is read in the receive buffer if every reader understands it in the same way;
`receipt_from` reads all others.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from time import time_ns
from typing import Any

import msgspec

from cometmq.client._connection.routes import Route
from cometmq.client._sending.back_pressure import BackPressure, Generation
from cometmq.client._sending.outgoing import Outgoing, prepare
from cometmq.client._sending.queue_picker import KeySelector, QueuePicker
from cometmq.client._sending.retry_policy import RetryPolicy
from cometmq.client._sending.sender import Sender
from cometmq.client._sending.targets import ANY_QUEUE, SendTarget
from cometmq.client.receipt import DEFAULT_REGION, SendReceipt, SendStatus, receipt_from
from cometmq.model.errors import CometError, ProtocolError, RemotingError, ResponseError
from cometmq.model.message import Message
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol import header_scanner, octets
from cometmq.protocol.codes import LanguageCode, RequestCode
from cometmq.protocol.command import Command, cut_head, encode_head
from cometmq.protocol.frame import JSON_HEADER, PREFIX_BYTES, frame_prefix
from cometmq.protocol.header_scanner import HeaderScanner
from cometmq.protocol.headers.base import encode_fields
from cometmq.protocol.headers.send import SendMessageResponse
from cometmq.protocol.octets import Memory, copy_of, put_bytes, put_decimal, put_u32
from cometmq.remoting import CallTimeoutError, Connection
from cometmq.remoting.inflight import Call, Inflight
from cometmq.system.platforms import SYSTEM

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.pystate import PyThreadState_GetDict  # type: ignore

_SYS_FLAG, _BORN, _FLAG, _OPAQUE = 1_444_444_444, 1_111_111_111_111, 1_222_222_222, 1_333_333_333
"""Stand for the values that differ, until the head is cut where they are."""
_PROPERTIES = "properties"
_MARKS = (
    b"%d" % _SYS_FLAG,
    b"%d" % _BORN,
    b"%d" % _FLAG,
    b'"%s"' % _PROPERTIES.encode(),
    b"%d" % _OPAQUE,
)
_NUMBERS_BYTES_MAX = 80
"""Four numbers in decimal digits."""
_JOINED_BYTES_MAX = 4_096
"""Smaller bodies are copied behind their heads: one piece to write instead of two."""
_encode_text = msgspec.json.Encoder().encode
_running_loop = asyncio._get_running_loop
_RUNNING_LOOP_IS_CHEAP = sys.version_info >= (3, 12)
"""Before, asyncio asks the kernel for the process each time, which takes a twentieth of a send."""
_RUN = "__asyncio_running_event_loop__"
"""Under this key a thread's state has that object, from CPython 3.7 to 3.11."""
_OK = SendStatus.SEND_OK
_REGION = DEFAULT_REGION
_REGION_BYTES = DEFAULT_REGION.encode()
_PREFIX_BYTES, _NOT_PLAIN = PREFIX_BYTES, header_scanner.NOT_PLAIN
_TEXT = header_scanner.TEXT

# The fields of a response that are read in the receive buffer.
_OFFSET_ID, _QUEUE_ID, _QUEUE_OFFSET, _REGION_NAME, _TRACE_ON = range(5)
_NAMES = (b"msgId", b"queueId", b"queueOffset", b"MSG_REGION", b"TRACE_ON")
_OTHERS = tuple(
    name.encode()
    for name in SendMessageResponse.__struct_encode_fields__
    if name.encode() not in _NAMES
)
"""Fields that only the general path reads."""
_REQUIRED = 0b111


_process = 0
"""Differs in each child process of a fork."""


def _count_fork() -> None:
    global _process
    _process += 1


SYSTEM.after_fork(_count_fork)


class QueueTarget:
    """One queue: its broker's addresses, and the bytes between the values of its heads."""

    __slots__ = (
        "address",
        "connection",
        "heartbeat_epoch",
        "inflight",
        "known_bytes",
        "pieces",
        "queue",
        "send_address",
    )

    def __init__(
        self, queue: MessageQueue, address: str, send_address: str, pieces: tuple[bytes, ...]
    ) -> None:
        self.queue = queue
        """As applications know it."""
        self.address = address
        self.send_address = send_address
        self.connection: Connection | None = None
        """The connection that the last send used."""
        self.inflight: Inflight
        """The requests of this connection."""
        self.heartbeat_epoch = -1
        """When its broker was last seen to know all members; see `ClientCore`."""
        self.pieces = pieces
        self.known_bytes = sum(map(len, pieces))

    def head(self, outgoing: Outgoing, opaque: int) -> bytes:
        """Encode the request up to its body; interpreted."""
        one, two, three, four, five, six = self.pieces
        header = b"%b%d%b%d%b%d%b%b%b%d%b" % (
            one,
            outgoing.sys_flag,
            two,
            time_ns() // 1_000_000,
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

    __slots__ = ("by_queue", "queues", "round", "route", "routes_version")

    def __init__(self, route: Route, queues: list[QueueTarget], picker: QueuePicker) -> None:
        self.route = route
        self.queues = queues
        self.by_queue = {target.queue: target for target in queues}
        self.round = picker.round
        self.routes_version = -1
        """When ``route`` was last seen to be current; see `Routes`."""


class ResponseScanner(HeaderScanner):
    """Reads the header of a response to a send if it is a common one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.queue_id = 0
        self.queue_offset = QueueOffset(0)
        self.traced = True
        self.offset_id_at = self.offset_id_end = 0
        self.region_at = self.region_end = 0

    def read(self, memory: Memory, at: int, end: int) -> bool:
        """Read the header from ``at`` to ``end``; False if the general path must."""
        self.seen = 0
        self.traced = True
        self.region_at = self.region_end = 0
        if not self.scan_json(memory, at, end):
            return False
        return self.code == 0 and self.flag == 1 and self.seen & _REQUIRED == _REQUIRED

    def note(self, memory: Memory, name: int, name_end: int, at: int, end: int, kind: int) -> bool:
        """Take one field; False if it is not common."""
        field = header_scanner.find_name(memory, name, name_end, _NAMES)
        if field < 0:
            return header_scanner.find_name(memory, name, name_end, _OTHERS) < 0
        if kind != _TEXT or at == end or self.seen & 1 << field:
            return False
        self.seen |= 1 << field
        if field == _OFFSET_ID:
            self.offset_id_at, self.offset_id_end = at, end
            return True
        if field == _REGION_NAME:
            self.region_at, self.region_end = at, end
            return True
        if field == _TRACE_ON:
            self.traced = octets.equals(memory, at, end - at, b"true")
            return self.traced or octets.equals(memory, at, end - at, b"false")
        value = header_scanner.plain_number(memory, at, end)
        if field == _QUEUE_OFFSET:
            self.queue_offset = value  # type: ignore[assignment]  # NewType costs a call
            return bool(value != _NOT_PLAIN)
        self.queue_id = value
        return bool(0 <= value <= 0x7FFFFFFF)


class FastSend(Call):
    """A send whose first attempt is in flight; receives the response itself."""

    __slots__ = (
        "connection",
        "future",
        "generation",
        "is_awaited",
        "outgoing",
        "path",
        "queue_target",
        "send_timeout",
        "size",
        "started_s",
        "target",
    )

    path: SendFastPath
    future: asyncio.Future[SendReceipt]
    outgoing: Outgoing
    target: SendTarget
    queue_target: QueueTarget
    connection: Connection
    is_awaited: bool
    started_s: float
    send_timeout: float
    size: int
    generation: Generation

    @property
    def policy(self) -> RetryPolicy:
        """When to retry."""
        return self.path.awaited if self.is_awaited else self.path.started

    def done(self) -> bool:
        """Whether the table of requests in flight may forget it."""
        return False

    def set_result(self, response: Command) -> None:
        """The broker has responded."""
        self.path.respond(self, response)

    def set_exception(self, error: Exception) -> None:
        """No response will arrive."""
        self.path.fail(self, error)

    def read_response(
        self, data: bytearray, header_at: int, body_at: int, end: int, opaque: int
    ) -> bool:
        """Complete the send from the receive buffer; False if the response is not common."""
        scanner = self.path.scanner
        memory = octets.start_of(data)
        if not scanner.read(memory, header_at, body_at) or scanner.opaque != opaque:
            return False
        if self.future.done():
            self.path.pressure.release(self.size, self.generation)
            return True
        queue, queue_id = self.queue_target.queue, scanner.queue_id
        if queue.queue_id != queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        region = _REGION
        at, region_end = scanner.region_at, scanner.region_end
        if region_end and not octets.equals(memory, at, region_end - at, _REGION_BYTES):
            region = copy_of(data, at, region_end).decode("ascii")
        offset_id = copy_of(data, scanner.offset_id_at, scanner.offset_id_end).decode("ascii")
        receipt = SendReceipt(
            _OK,
            self.outgoing.message_id,
            offset_id,
            queue,
            scanner.queue_offset,
            None,
            region,
            scanner.traced,
        )
        self.path.complete(self, receipt)
        return True


class SendFastPath:
    """Makes the first attempts of one producer's sends, where it can.

    Args:
        sender: prepares messages, and makes the other attempts.
        pressure: the limits on sends in flight.
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
        self._routes = sender.instance.routes
        self._settings = sender.settings
        self._namespace = sender.namespace or None
        self._ids = sender.ids
        self.pressure = pressure
        self.awaited, self.started = sender.awaited, sender.started
        self._retry = retry
        self._refusals = sender.refusals
        self._refusals.on_refused = self._note_refusal
        self._has_refusals = False
        """Whether successes have to be noted, because sends of a topic were refused."""
        self._topics: dict[str, TopicTargets] = {}
        self._attempt_s_max = sender.attempt_s_max
        self.is_usable = False
        """Whether no hook sees the sends, and no slow broker is avoided."""
        self._waits_for_flush = sender.awaited.retry_not_stored
        self._loop: Any = None
        """The event loop of the producer; the general path refuses calls from another one."""
        self._run: Any = None
        """The run of the loop in which a send was last seen, as the interpreter marks it."""
        self._process = -1
        """Its process, a number of `_process`: a child process has the same marks."""
        self.scanner = ResponseScanner()
        self._space = bytearray(1_024)

    def begin(self) -> None:
        """Serve sends from the running event loop."""
        self._loop = asyncio.get_running_loop()

    def start(
        self,
        message: Message,
        target: SendTarget,
        timeout: float,
        is_awaited: bool,
        generation: Generation | None,
    ) -> asyncio.Future[SendReceipt] | None:
        """Write a message to its broker and return its future; None if the general path must.

        Args:
            message: the message.
            target: the queue or the selector, if the caller chose.
            timeout: seconds for the whole send.
            is_awaited: whether its caller waits for the receipt.
            generation: the room of the send; None to take it, and to return None if there is none.

        Raises:
            CometError: the message breaks a limit. Nothing is sent, and its room is released.
        """
        if not self.is_usable or timeout <= 0 or (is_awaited and self._waits_for_flush):
            return None
        loop = self._loop
        if not self._runs_here():
            return None  # another loop, or none, runs in this thread
        chosen = None
        key: KeySelector | None = None
        if target is not ANY_QUEUE:
            chosen, selector = target.queue, target.selector
            if selector is not None:
                if type(selector) is not KeySelector:
                    return None
                key = selector
        topic_name, body = message.topic, message.body
        if not isinstance(topic_name, str) or type(body) is not bytes:
            return None
        topic = self._topics.get(topic_name)
        if topic is None or topic.routes_version != self._routes.version:
            topic = self._resolve(topic_name, topic)
            if topic is None:
                return None
        queue_target: QueueTarget | None
        if key is not None:
            queue_target = topic.queues[key.index(len(topic.queues))]
        elif chosen is None:
            queue_target = topic.queues[topic.round.peek(len(topic.queues))]
        else:
            try:
                queue_target = topic.by_queue.get(chosen)
            except TypeError:  # a field that has no hash
                return None
            if queue_target is None:
                return None
        connection = queue_target.connection
        if connection is None or not connection.takes_requests():
            connection = self._instance.remoting.ready(queue_target.send_address)
            if connection is None:
                return None
            queue_target.connection = connection
            queue_target.inflight = connection.inflight
            queue_target.inflight.has_readers = True
        size = len(body)
        if generation is None:
            generation = self.pressure.try_acquire(size)
            if generation is None:
                return None
        try:
            outgoing = prepare(message, self._settings, self._ids, self._namespace)
        except BaseException:
            self.pressure.release(size, generation)
            raise
        if chosen is None and key is None:
            topic.round.step(len(topic.queues))
        future: asyncio.Future[SendReceipt] = loop.create_future()
        now_s = loop.time()
        send = FastSend.__new__(FastSend)
        send.path = self
        send.future = future
        send.outgoing = outgoing
        send.target = target
        send.queue_target = queue_target
        send.connection = connection
        send.is_awaited = is_awaited
        send.started_s = now_s
        send.send_timeout = timeout
        send.size = size
        send.generation = generation
        try:
            opaque = queue_target.inflight.add_call(send, min(timeout, self._attempt_s_max), now_s)
        except RemotingError as error:
            self._retry(send, error)
            return future
        self._write(send, opaque)
        return future

    def _runs_here(self) -> bool:
        """Return whether the producer's loop is the one that runs in this thread.

        Each run of a loop has an object of its own in the state of its thread: it identifies the
        loop without the system call of `_running_loop`.
        """
        run: Any = None
        if cython.compiled and not _RUNNING_LOOP_IS_CHEAP:
            state = PyThreadState_GetDict()
            if state != cython.NULL:
                run = cython.cast(dict, state).get(_RUN)
            if run is not None and run is self._run and self._process == _process:
                return True
        if _running_loop() is not self._loop:
            return False
        self._run, self._process = run, _process
        return True

    def _write(self, send: FastSend, opaque: int) -> None:
        outgoing, target = send.outgoing, send.queue_target
        body = outgoing.body
        if not cython.compiled:
            send.connection.write(target.head(outgoing, opaque), (body,))
            return
        properties = _encode_text(outgoing.properties)
        body_bytes = len(body)
        joined_bytes = body_bytes if body_bytes <= _JOINED_BYTES_MAX else 0
        size_max = target.known_bytes + len(properties) + _NUMBERS_BYTES_MAX + joined_bytes
        if size_max > len(self._space):
            self._space = bytearray(2 * size_max)
        space, pieces, now_ns = self._space, target.pieces, time_ns()
        end = put_bytes(space, _PREFIX_BYTES, pieces[0])
        end = put_decimal(space, end, outgoing.sys_flag)
        end = put_bytes(space, end, pieces[1])
        end = put_decimal(space, end, now_ns // 1_000_000)
        end = put_bytes(space, end, pieces[2])
        end = put_decimal(space, end, outgoing.flag)
        end = put_bytes(space, end, pieces[3])
        end = put_bytes(space, end, properties)
        end = put_bytes(space, end, pieces[4])
        end = put_decimal(space, end, opaque)
        end = put_bytes(space, end, pieces[5])
        put_u32(space, 0, end - 4 + body_bytes)
        put_u32(space, 4, end - _PREFIX_BYTES)
        if joined_bytes:
            end = put_bytes(space, end, body)
            send.connection.write(copy_of(space, 0, end))
        else:
            send.connection.write(copy_of(space, 0, end), (body,))

    def complete(self, send: FastSend, receipt: SendReceipt) -> None:
        """End a send with its receipt."""
        if self._has_refusals:
            self._refusals.accepted(send.outgoing.topic)
            self._has_refusals = self._refusals.is_failing
        self.pressure.release(send.size, send.generation)
        send.future.set_result(receipt)
        target = send.queue_target
        if target.heartbeat_epoch != self._instance.heartbeat_epoch:
            if self._instance.knows_members(target.address):
                target.heartbeat_epoch = self._instance.heartbeat_epoch
            else:
                self._instance.heartbeat_soon(target.address)

    def respond(self, send: FastSend, response: Command) -> None:
        """End a send with the receipt or the error of a response, or retry it."""
        future = send.future
        if future.done():
            self.pressure.release(send.size, send.generation)
            return
        address = send.queue_target.send_address
        if self._instance.remoting.retire_leaving(address, send.connection, response):
            self._retry(send, GoneAwayError("the broker is shutting down"))
            return
        try:
            receipt = receipt_from(response, send.queue_target.queue, send.outgoing.message_id)
        except Exception as error:
            if isinstance(error, ResponseError):
                error.address = address
            if isinstance(error, ProtocolError) or (
                isinstance(error, ResponseError) and send.policy.allows_retry(error)
            ):
                self._retry(send, error)
                return
            self._refusals.failed(send.outgoing.topic, error)
            self.pressure.release(send.size, send.generation)
            future.set_exception(error)
            return
        self.complete(send, receipt)

    def _note_refusal(self) -> None:
        self._has_refusals = True

    def fail(self, send: FastSend, error: Exception) -> None:
        """Retry a send after an attempt without a response."""
        if isinstance(error, CallTimeoutError):
            self._instance.remoting.note_silence(send.connection, send.started_s)
        if send.future.done():
            self.pressure.release(send.size, send.generation)
        else:
            self._retry(send, error)

    def retry(self, send: FastSend, error: Exception) -> Coroutine[Any, Any, SendReceipt]:
        """Continue on the general path after a failed first attempt."""
        failed, queue = None, send.queue_target.queue
        if isinstance(error, CometError) and not isinstance(error, GoneAwayError):
            failed = queue.broker_name, error
        return self._sender.retry_after_failure(
            send.outgoing,
            SendTarget(queue) if send.target.is_fixed else ANY_QUEUE,
            send.started_s + send.send_timeout,
            failed,
            policy=send.policy,
        )

    # --- what is known of a topic ----------------------------------------------------------------

    def _resolve(self, topic: str, known: TopicTargets | None) -> TopicTargets | None:
        """Find the brokers of a topic's queues; None if the general path must."""
        namespace = self._namespace
        wire_topic = namespace.wrap_topic(topic) if namespace else topic
        route = self._routes.known(wire_topic)
        if known is not None:
            if route is known.route:
                known.routes_version = self._routes.version
                return known
            del self._topics[topic]
        if route is None or route.provisional or wire_topic.startswith(RETRY_PREFIX):
            return None
        if not self._instance.running:
            return None
        queues = []
        for queue in route.publish_queues:
            address = route.master(queue)
            if address is None:
                return None
            target = self._queue_target(queue, address, route.physical(queue))
            if target is None:
                return None
            queues.append(target)
        if not queues:
            return None
        picker = self._sender.targets.picker(wire_topic)
        found = self._topics[topic] = TopicTargets(route, queues, picker)
        found.routes_version = self._routes.version
        return found

    def _queue_target(
        self, queue: MessageQueue, address: str, broker_name: str
    ) -> QueueTarget | None:
        """Return the target of a queue; None if a name in its heads looks like another value."""
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
        pieces = cut_head(head, _MARKS)
        if pieces is None:
            return None
        shown = self._sender.namespace.unwrap_queue(queue)
        return QueueTarget(shown, address, self._instance.send_address(address), pieces)


class GoneAwayError(RemotingError):
    """The broker closes its connections; not stored."""
