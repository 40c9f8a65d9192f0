"""The short way of a plain send: from the message to its frame without anything in between.

It is taken when all is known and open: the route, the connection, nothing to compress, nobody who
watches. The head of the frame is made of pieces that are the same for every message of a queue, and
the answer is turned into the receipt as soon as it is read. Whatever is out of the ordinary goes
the long way, which also says what is wrong with a message.

Source: ours.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from cometmq.client._connection.routes import Route
from cometmq.client._sending.outgoing import NOT_FOR_APPLICATIONS, Outgoing, properties_of
from cometmq.client._sending.queue_picker import QueuePicker
from cometmq.client._sending.retry_policy import attempt_of
from cometmq.client._sending.sender import Sender
from cometmq.client._sending.targets import SendTarget
from cometmq.client.errors import SendAttempt
from cometmq.client.receipt import SendReceipt, receipt_from
from cometmq.client.settings import ProducerSettings
from cometmq.model import property_names as names
from cometmq.model.errors import (
    CometError,
    InvalidMessageError,
    InvalidNameError,
    RemotingError,
    ResponseError,
)
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import RETRY_PREFIX, SEND_FORBIDDEN_TOPICS, check_topic_name
from cometmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from cometmq.protocol.command import Command, encode_head
from cometmq.protocol.frame import JSON_HEADER, frame_prefix
from cometmq.protocol.headers.base import encode_fields
from cometmq.protocol.properties import PROPERTIES_BYTES_MAX
from cometmq.remoting import CallTimeoutError, Connection

Promise = asyncio.Future[SendReceipt]

_PREFIX_BYTES = 8
_BORN, _FLAG, _OPAQUE = 1_111_111_111_111, 1_222_222_222, 1_333_333_333
"""Stand for what differs from message to message while the pieces of a head are cut."""
_PROPERTIES = "properties"
_KEYS = (tuple, list, str)
"""Kinds of keys that can be looked at twice."""
_encode_text = msgspec.json.Encoder().encode


class QueueTarget:
    """One queue as the short way needs it: its broker's address and the pieces of its heads."""

    __slots__ = ("address", "pieces", "queue", "send_address")

    def __init__(self, queue: MessageQueue, address: str, send_address: str, head: bytes) -> None:
        self.queue = queue
        self.address = address
        self.send_address = send_address
        text = head[_PREFIX_BYTES:]
        pieces = []
        for mark in (b"%d" % _BORN, b"%d" % _FLAG, b'"%s"' % _PROPERTIES.encode(), b"%d" % _OPAQUE):
            piece, _, text = text.partition(mark)
            pieces.append(piece)
        self.pieces = (*pieces, text)


class TopicTargets:
    """All queues of one topic, by one version of its route."""

    __slots__ = ("by_queue", "every", "peek", "route", "step")

    def __init__(self, route: Route, every: list[QueueTarget], turn: QueuePicker) -> None:
        self.route = route
        self.every = every
        self.by_queue = {lane.queue: lane for lane in every}
        self.peek, self.step = turn.peek, turn.step

    def next(self) -> QueueTarget:
        """Give the lane whose turn it is; once it is taken, `step` goes on."""
        return self.every[self.peek(len(self.every))]


@dataclass(slots=True, eq=False)
class FastSend:
    """One send on the short way, which takes the answer itself."""

    owner: FastPath
    promise: Promise
    message: Message
    body: bytes
    """The message's, which may get another one meanwhile."""
    message_id: str
    properties: str
    lane: QueueTarget
    connection: Connection
    place: SendTarget
    began_s: float
    timeout: float
    awaited: bool

    def done(self) -> bool:
        """Never: the permit is to be given back even if nobody looks at the receipt."""
        return False

    def set_result(self, answer: Command) -> None:
        """QueuePicker the answer into the receipt."""
        self.owner.answered(self, answer)

    def set_exception(self, error: Exception) -> None:
        """No answer comes: perhaps there is another try."""
        self.owner.failed(self, error)


class FastPath:
    """The short way of one producer.

    Args:
        sender: knows the instance, and goes on where a first try has failed.
        settings: limits, as for the long way.
        give_back: returns the permits for a message of this size.
        on_failure: told of a send that got no answer, and why.
    """

    def __init__(
        self,
        sender: Sender,
        settings: ProducerSettings,
        give_back: Callable[[int], None],
        on_failure: Callable[[FastSend, Exception], None],
    ) -> None:
        self._sender = sender
        self._instance = sender.instance
        self._settings = settings
        self._give_back = give_back
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._topics: dict[str, TopicTargets] = {}
        self._body_bytes_max = settings.body_bytes_max
        if settings.compress_level:
            self._body_bytes_max = min(settings.body_bytes_max, settings.compress_from_bytes - 1)
        self._try_s = settings.try_timeout_ms / 1000 if settings.try_timeout_ms > 0 else math.inf
        self._retried = settings.retried
        self._retry_not_stored = settings.retry_not_stored
        self._usable = not sender.namespace and sender.destinations.latency is None
        self._idle = asyncio.Event()
        self._idle.set()
        self.on_way = 0
        """Begun sends that wait for their answers."""

    def begin(
        self, message: Message, place: SendTarget, timeout: float, *, awaited: bool = False
    ) -> Promise | None:
        """Write a message to its broker, or give None if that has to go the long way.

        Args:
            message: what to send.
            place: where to, if that is said.
            timeout: seconds for all of it.
            awaited: whether refusals may be followed by another try; such a send has no permits.
        """
        if not self._usable or place.selector is not None or self._sender.is_watched:
            return None
        if timeout <= 0 or (awaited and self._retry_not_stored):
            return None
        lanes = self._lanes(message.topic)
        if lanes is None:
            return None
        lane = lanes.next() if place.queue is None else lanes.by_queue.get(place.queue)
        if lane is None:
            return None
        connection = self._instance.remoting.ready(lane.send_address)
        body = message.body
        if connection is None or type(body) is not bytes:
            return None
        found = self._properties(message) if 0 < len(body) <= self._body_bytes_max else None
        if found is None:
            return None
        if place.queue is None:
            lanes.step(len(lanes.every))
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        send = FastSend(
            self,
            loop.create_future(),
            message,
            body,
            found[0],
            found[1],
            lane,
            connection,
            place,
            loop.time(),
            timeout,
            awaited,
        )
        return self._write(send, found[2])

    def _write(self, send: FastSend, properties: bytes) -> Promise | None:
        try:
            opaque = send.connection.begin(send, min(send.timeout, self._try_s))
        except RemotingError:
            return None
        one, two, three, four, five = send.lane.pieces
        head = b"%b%d%b%d%b%b%b%d%b" % (
            one,
            time.time_ns() // 1_000_000,
            two,
            send.message.flag,
            three,
            properties,
            four,
            opaque,
            five,
        )
        prefix = frame_prefix(JSON_HEADER, len(head), len(send.body))
        send.connection.write(prefix + head, (send.body,))
        if not send.awaited:
            self.on_way += 1
        return send.promise

    def answered(self, send: FastSend, answer: Command) -> None:
        """QueuePicker an answer into a receipt, or into the error that the broker tells of."""
        self._end_one(send)
        promise = send.promise
        if promise.done():
            return
        if answer.code == ResponseCode.GO_AWAY and self._instance.settings.reconnect_for_go_away:
            self._on_failure(send, GoneAwayError("the broker is shutting down"))
            return
        lane = send.lane
        try:
            receipt = receipt_from(answer, lane.queue, send.message_id)
        except ResponseError as error:
            if send.awaited and error.code in self._retried:
                self._on_failure(send, error)
            else:
                promise.set_exception(error)
            return
        except Exception as error:
            promise.set_exception(error)
            return
        promise.set_result(receipt)
        self._instance.greet_soon(lane.address)

    def failed(self, send: FastSend, error: Exception) -> None:
        """No answer came: try again elsewhere, unless nobody wants to know any more."""
        if isinstance(error, CallTimeoutError):
            self._instance.remoting.note_silence(send.connection, send.began_s)
        self._end_one(send)
        if not send.promise.done():
            self._on_failure(send, error)

    def again(self, send: FastSend, error: Exception) -> Coroutine[Any, Any, SendReceipt]:
        """Go the long way with what was left unanswered."""
        outgoing = Outgoing(
            send.message.topic,
            send.message,
            send.message_id,
            send.body,
            send.properties,
            flag=send.message.flag,
        )
        attempts: list[SendAttempt] = []
        if isinstance(error, CometError) and not isinstance(error, GoneAwayError):
            attempts.append(attempt_of(send.lane.queue, error))
        deadline = send.began_s + send.timeout
        return self._sender.go_on(outgoing, send.place, deadline, attempts, awaited=send.awaited)

    async def drain(self, timeout: float) -> None:
        """Wait until every begun send has its answer, for ``timeout`` seconds at most."""
        if self.on_way:
            self._idle.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._idle.wait()
            except TimeoutError:
                return

    def _end_one(self, send: FastSend) -> None:
        if send.awaited:
            return
        self.on_way -= 1
        if not self.on_way:
            self._idle.set()
        self._give_back(len(send.body))

    # --- what is known of a topic ----------------------------------------------------------------

    def _lanes(self, topic: str) -> TopicTargets | None:
        route = self._instance.routes.known(topic)
        lanes = self._topics.get(topic)
        if lanes is None or lanes.route is not route:
            return self._lanes_of(topic, route)
        return lanes

    def _lanes_of(self, topic: str, route: Route | None) -> TopicTargets | None:
        if route is None or route.provisional or not self._instance.running:
            return None
        if not _is_plain(topic):
            return None
        every = []
        for queue in route.publish_queues:
            address = route.master(queue)
            if address is None:
                return None
            every.append(self._new_lane(topic, queue, address, route.physical(queue)))
        if not every:
            return None
        lanes = self._topics[topic] = TopicTargets(
            route, every, self._sender.destinations.turn(topic)
        )
        return lanes

    def _new_lane(
        self, topic: str, queue: MessageQueue, address: str, broker_name: str
    ) -> QueueTarget:
        outgoing = Outgoing(topic, Message(topic, b""), "", b"", _PROPERTIES, flag=_FLAG)
        header = self._sender.header(outgoing, queue, broker_name, born_time_ms=_BORN)
        head = encode_head(
            RequestCode.SEND_MESSAGE_V2,
            opaque=_OPAQUE,
            fields=encode_fields(header),
            language=LanguageCode[self._instance.settings.language],
        )
        return QueueTarget(queue, address, self._instance.send_address(address), head)

    def _properties(self, message: Message) -> tuple[str, str, bytes] | None:
        """Give the id, the property string and its JSON; None where something is wrong."""
        flag = message.flag
        if not -(2**31) <= flag < 2**31 or message.is_delayed:
            return None
        message_id = self._sender.ids.next()
        if not (message.properties or message.keys or message.tags):
            wait = "true" if message.wait_store else "false"
            text = f"WAIT\x01{wait}\x02UNIQ_KEY\x01{message_id}\x02"
            return message_id, text, _encode_text(text)
        if NOT_FOR_APPLICATIONS & message.properties.keys() or type(message.keys) not in _KEYS:
            return None
        try:
            properties = properties_of(message)
            properties[names.UNIQ_KEY] = message_id
            text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
            written = _encode_text(text)
        except (InvalidMessageError, UnicodeEncodeError):
            return None
        if 3 * len(text) > PROPERTIES_BYTES_MAX:
            return None
        return message_id, text, written


def _is_plain(topic: str) -> bool:
    """Whether any producer may send to a topic of this name, and none does so in a special way."""
    try:
        check_topic_name(topic)
    except InvalidNameError:
        return False
    return topic not in SEND_FORBIDDEN_TOPICS and not topic.startswith(RETRY_PREFIX)


class GoneAwayError(RemotingError):
    """The broker closes its connections; the message is not stored."""
