"""The requests of pop consumption: pop, wait for messages, ack, change the invisible time.

Source: MQClientAPIImpl.popMessageAsync, ackMessageAsync and changeInvisibleTimeAsync, and the
broker's NotificationProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cometmq.client._connection.instance import ClientCore
from cometmq.client._supervision import SupervisedFailureLog
from cometmq.client.errors import BackPressureError, QueueNotFoundError, ReceiptExpiredError
from cometmq.client.filters import Filter
from cometmq.client.offsets import StartFrom
from cometmq.client.settings import SimpleSettings
from cometmq.model import property_names as names
from cometmq.model.errors import ProtocolError, ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.pop import (
    AckMessageRequest,
    ChangeMessageInvisibletimeRequest,
    ChangeMessageInvisibletimeResponse,
    NotificationRequest,
    NotificationResponse,
    PopMessageRequest,
    PopMessageResponse,
)
from cometmq.protocol.lazy_record import check_packages, decode_lazily
from cometmq.remoting.tasks import raise_unless_failure

log = logging.getLogger(__name__)

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
TOGETHER_MAX = 4_096
"""Offsets from the start of a pop within which messages are acknowledged by one request."""
_PARTS_MIN = 7


def not_served(error: ResponseError, refusal: str, consumer: str) -> ResponseError:
    """Return the error of a consumer whose broker does not serve pop.

    Args:
        error: the response of the broker.
        refusal: what it refused.
        consumer: the class of the consumer.
    """
    return ResponseError(
        error.code,
        f"{refusal} ({error.remark.strip()}): {consumer} needs brokers of RocketMQ 5.0 or later "
        "with timerWheelEnable=true",
    )


class HandleError(ProtocolError):
    """A receipt handle, or a part of it, has the wrong format."""


@dataclass(frozen=True, slots=True)
class ReceiptHandle:
    """The receipt of one delivery of one message."""

    text: str
    """The text that requests contain."""
    pop_time_ms: int
    """When the broker delivered the message, by its clock, in ms since 1970."""
    invisible_ms: int
    """The invisible time."""
    kind: str
    broker_name: str
    queue_id: int
    offset: int
    """The offset of the message in the queue from which it was popped."""

    @classmethod
    def parse(cls, text: str, *, offset: int | None = None) -> ReceiptHandle:
        """Read a receipt.

        Args:
            text: the receipt.
            offset: of the message, for a receipt that does not contain it.

        Raises:
            HandleError: it has the wrong format.
        """
        parts = text.split(" ")
        if len(parts) < _PARTS_MIN or (len(parts) == _PARTS_MIN and offset is None):
            raise HandleError(f"receipt {text!r} has {len(parts)} parts, 8 are expected")
        try:
            return cls(
                text=text if len(parts) > _PARTS_MIN else f"{text} {offset}",
                pop_time_ms=int(parts[1]),
                invisible_ms=int(parts[2]),
                kind=parts[4],
                broker_name=parts[5],
                queue_id=int(parts[6]),
                offset=int(parts[7]) if len(parts) > _PARTS_MIN else offset or 0,
            )
        except ValueError:
            raise HandleError(f"receipt {text!r} has a part that is not a number") from None

    def topic(self, topic: str, group: str) -> str:
        """Return the topic that the message lies in.

        Args:
            topic: that it was sent to.
            group: that popped it.

        Raises:
            HandleError: the receipt has an unknown topic kind.
        """
        if self.kind == NORMAL:
            return topic
        if self.kind == RETRY_V1:
            return f"{RETRY_PREFIX}{group}_{topic}"
        if self.kind == RETRY_V2:
            return f"{RETRY_PREFIX}{group}+{topic}"
        raise HandleError(f"receipt {self.text!r} has the unknown topic kind {self.kind!r}")

    def changed(self, response: ChangeMessageInvisibletimeResponse) -> ReceiptHandle:
        """Return the receipt that replaces this one after the invisible time was changed."""
        return replace(
            self,
            text=(
                f"{self.offset} {response.pop_time} {response.invisible_time} {response.revive_qid}"
                f" {self.kind} {self.broker_name} {self.queue_id} {self.offset}"
            ),
            pop_time_ms=response.pop_time,
            invisible_ms=response.invisible_time,
        )

    def may_join(self) -> bool:
        """Whether it can be acknowledged together with others."""
        return 0 <= self.offset - int(self.text.partition(" ")[0]) < TOGETHER_MAX

    def expires_ms(self) -> int:
        """Return the time when others see the message again, by the broker's clock."""
        return self.pop_time_ms + self.invisible_ms


def offsets_by_queue(text: str | None) -> dict[tuple[str, int], list[int]]:
    """Read lists of offsets by kind and queue; nothing from nothing.

    Raises:
        HandleError: the text has the wrong format.
    """
    found: dict[tuple[str, int], list[int]] = {}
    for entry in (text or "").split(";"):
        if not entry:
            continue
        try:
            kind, queue_id, offsets = entry.split(" ")
            found[kind, int(queue_id)] = [int(offset) for offset in offsets.split(",")]
        except ValueError:
            raise HandleError(f"offsets {entry!r}: expected a kind, a queue and numbers") from None
    return found


def handles_of(
    response: PopMessageResponse, messages: Sequence[StoredMessage], broker_name: str
) -> list[ReceiptHandle]:
    """Return the receipt of each message of a response.

    Args:
        response: the header of the broker's response.
        messages: its decoded messages.
        broker_name: of the broker.

    Raises:
        HandleError: the response, or a receipt in a message, has the wrong format.
    """
    starts = offsets_by_queue(response.start_offset_info)
    first = _first_offsets(messages)
    return [_handle(response, message, broker_name, starts, first) for message in messages]


def _handle(
    response: PopMessageResponse,
    message: StoredMessage,
    broker_name: str,
    starts: Mapping[tuple[str, int], list[int]],
    first: Mapping[int, int],
) -> ReceiptHandle:
    given = message.properties.get(names.POP_CK)
    if given:
        return ReceiptHandle.parse(given, offset=message.queue_offset)
    known = starts.get((NORMAL, message.queue_id))
    start = known[0] if known else first[message.queue_id]
    text = (
        f"{start} {response.pop_time} {response.invisible_time} {response.revive_qid} {NORMAL}"
        f" {broker_name} {message.queue_id} {message.queue_offset}"
    )
    return ReceiptHandle.parse(text)


def _first_offsets(messages: Sequence[StoredMessage]) -> dict[int, int]:
    """The lowest offset of each queue, which brokers without start offsets go by."""
    first: dict[int, int] = {}
    for message in messages:
        first[message.queue_id] = min(
            message.queue_offset, first.get(message.queue_id, message.queue_offset)
        )
    return first


@dataclass(slots=True, eq=False)
class Delivery:
    """One received message that is not settled: no ack and no nack."""

    message: StoredMessage
    topic: str
    """The topic that it was sent to, as brokers know it."""
    handle: ReceiptHandle
    """The receipt that is valid now: a change of the invisible time replaces it."""
    expires_at: float
    """When the broker redelivers it, in seconds of the steady clock."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the request that uses the receipt."""
    retry_at: float = 0.0
    """When a renewal is tried again after a failure, in seconds of the steady clock."""


class Deliveries:
    """The received messages of one consumer that are in flight, and their receipts.

    A message carries the receipt of its delivery as a property, which finds the one that is valid
    now. Brokers confirm an acknowledgement even if it has no effect, so this table decides whether
    a receipt is still good.

    Args:
        settings: the limits.
    """

    def __init__(self, settings: SimpleSettings) -> None:
        self._settings = settings
        self._reserved = 0
        self._known: dict[tuple[str, str], Delivery] = {}

    def __len__(self) -> int:
        return len(self._known)

    def reserve(self, count: int) -> int:
        """Keep room for up to this many messages, and return for how many; see `add`.

        Raises:
            BackPressureError: there is no room for any.
        """
        if self._room() < count:
            now = time.monotonic()
            self._known = {k: each for k, each in self._known.items() if each.expires_at > now}
        granted = min(count, self._room())
        if granted <= 0:
            raise BackPressureError(
                f"{self._settings.in_flight_max} received messages are neither settled nor "
                "expired: acknowledge them, or raise in_flight_max"
            )
        self._reserved += granted
        return granted

    def _room(self) -> int:
        return self._settings.in_flight_max - self._reserved - len(self._known)

    def free(self, count: int) -> None:
        """Release room that `reserve` reserved."""
        self._reserved -= count

    def add(self, delivery: Delivery) -> None:
        """Note a message that is given to the application."""
        delivery.message.properties[names.POP_CK] = delivery.handle.text
        self._known[_key(delivery.message)] = delivery

    def of(self, message: StoredMessage) -> Delivery:
        """Return the delivery of a message.

        Raises:
            ReceiptExpiredError: it is not in flight.
        """
        found = self._known.get(_key(message))
        if found is None:
            raise ReceiptExpiredError(
                message.message_id,
                "it is not in flight at this consumer: it was settled before (ack or nack), its "
                "invisible time is over, or another consumer received it",
            )
        if found.expires_at <= time.monotonic():
            self.remove(message)
            raise ReceiptExpiredError(
                message.message_id,
                f"its invisible time of {found.handle.invisible_ms / 1000:g} s is over, and the "
                "broker redelivers it: extend it earlier, or receive with a longer one",
            )
        return found

    def remove(self, message: StoredMessage) -> None:
        """Forget a message."""
        self._known.pop(_key(message), None)

    def of_brokers(self, *, to_renew: bool = False) -> dict[str, list[Delivery]]:
        """Return the deliveries that have not expired, by the names of their brokers.

        Args:
            to_renew: only those of whose invisible time a third is over.
        """
        now, found = time.monotonic(), defaultdict(list)
        for each in self._known.values():
            left_s = each.expires_at - now
            is_due = left_s <= each.handle.invisible_ms / 1500 and each.retry_at <= now
            if left_s > 0 and (is_due or not to_renew):
                found[each.handle.broker_name].append(each)
        return found


def _key(message: StoredMessage) -> tuple[str, str]:
    return message.topic, message.properties.get(names.POP_CK, "")


FROM_MIN, FROM_MAX = 0, 1
ALL_QUEUES = -1
"""The queue id that means all queues of a broker."""
_NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)


class PopRequests:
    """Sends the pop requests of one group to the masters of its queues.

    Args:
        instance: whose connections are used.
        group: as brokers know it.
        start: where a new group starts.
        timeout: seconds for a request, in addition to the time that a broker may hold it.
    """

    def __init__(
        self, instance: ClientCore, group: str, *, start: StartFrom, timeout: float
    ) -> None:
        self._instance = instance
        self.group = group
        self._init_mode = FROM_MIN if start is StartFrom.FIRST else FROM_MAX
        self._timeout = timeout

    async def pop(
        self,
        queue: MessageQueue,
        wanted: Filter,
        *,
        max_messages: int,
        invisible_ms: int,
        hold_ms: int = 0,
        margin_s: float | None = None,
        attempt_id: str | None = None,
    ) -> list[tuple[StoredMessage, ReceiptHandle]]:
        """Pop messages, each with its receipt; none if there are none.

        Args:
            queue: the queue; the id -1 means all queues of its broker.
            wanted: the filter of its topic.
            max_messages: 32 at most; 0 only fixes where a new group starts.
            invisible_ms: for how long other consumers do not see the messages.
            hold_ms: how long the broker may wait for a message; 0 to respond at once.
            margin_s: added to ``hold_ms`` as the timeout; by default the timeout of other requests.
            attempt_id: of an ordered group: a repeated pop with the same id gets what the pop
                before it got; None for a group without order.

        Raises:
            QueueNotFoundError: the broker has no master now.
            ResponseError: the broker refused.
            RemotingError: no response.
            ProtocolError: a receipt has the wrong format.
        """
        header = PopMessageRequest(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            max_msg_nums=max_messages,
            invisible_time=invisible_ms,
            poll_time=hold_ms,
            # A broker refuses what is older than poll time + 0.5 s by its own clock; 0 means now.
            born_time=now_ms() if hold_ms else 0,
            init_mode=self._init_mode,
            exp_type=wanted.kind,
            exp=wanted.expression,
            order=attempt_id is not None,
            attempt_id=attempt_id,
            bname=queue.broker_name,
        )
        response = await self._instance.brokers.call_raw(
            await self._master(queue.topic, queue.broker_name),
            RequestCode.POP_MESSAGE,
            header,
            timeout=hold_ms / 1000 + (self._timeout if margin_s is None else margin_s),
        )
        if response.code in _NOTHING:
            return []
        if response.code != ResponseCode.SUCCESS:
            raise ResponseError(response.code, response.remark or "")
        messages = decode_lazily(response.body, broker_name=queue.broker_name)
        check_packages(messages)
        handles = handles_of(response.header(PopMessageResponse), messages, queue.broker_name)
        return list(zip(messages, handles, strict=True))

    async def wait_for_messages(self, queue: MessageQueue, hold_ms: int) -> bool:
        """Let the broker hold a request until there is something to pop, or the time is over.

        Returns:
            Whether the broker saw messages; they may be of other tags, or taken meanwhile.

        Raises:
            QueueNotFoundError: the broker has no master now.
            ResponseError: the broker refused.
            RemotingError: no response.
        """
        header = NotificationRequest(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            poll_time=hold_ms,
            born_time=0,
            bname=queue.broker_name,
        )
        response = await self._instance.brokers.call(
            await self._master(queue.topic, queue.broker_name),
            RequestCode.NOTIFICATION,
            header,
            timeout=hold_ms / 1000 + self._timeout,
        )
        return response.header(NotificationResponse).has_msg

    async def ack(self, topic: str, handle: ReceiptHandle) -> None:
        """Acknowledge a delivery. Brokers confirm one that is over, too: it has no effect then.

        Args:
            topic: the topic that the message was sent to, as brokers know it.
            handle: the receipt.

        Raises:
            CometError: the broker did not confirm it.
        """
        header = AckMessageRequest(
            consumer_group=self.group,
            topic=handle.topic(topic, self.group),
            queue_id=handle.queue_id,
            extra_info=handle.text,
            offset=handle.offset,
            bname=handle.broker_name,
        )
        address, code = await self._master(topic, handle.broker_name), RequestCode.ACK_MESSAGE
        await self._instance.brokers.call(address, code, header, timeout=self._timeout)

    async def ack_together(self, topic: str, handles: Sequence[ReceiptHandle]) -> None:
        """Acknowledge deliveries of one broker with one request; see `ack`.

        Raises:
            CometError: the broker did not confirm it, or is too old.
        """
        bits: dict[tuple[str, ...], int] = defaultdict(int)
        for handle in handles:
            start, pop_time, invisible, revive, kind, _, queue_id, _ = handle.text.split(" ")
            popped = kind, start, queue_id, revive, pop_time, invisible
            bits[popped] |= 1 << (handle.offset - int(start))
        body = BatchAckMessageRequestBody(
            broker_name=handles[0].broker_name,
            acks=[
                BatchAck(
                    consumer_group=self.group,
                    topic=topic,
                    retry=popped[0],
                    start_offset=int(popped[1]),
                    queue_id=int(popped[2]),
                    revive_queue_id=int(popped[3]),
                    pop_time=int(popped[4]),
                    invisible_time=int(popped[5]),
                    bit_set=set_bits.to_bytes(set_bits.bit_length() // 8 + 1, "little"),
                )
                for popped, set_bits in bits.items()
            ],
        )
        address, code = await self._master(topic, body.broker_name), RequestCode.BATCH_ACK_MESSAGE
        encoded = body.encode()
        await self._instance.brokers.call(address, code, body=encoded, timeout=self._timeout)

    async def change_invisible_time(
        self, topic: str, handle: ReceiptHandle, invisible_ms: int
    ) -> ReceiptHandle:
        """Let a message be redelivered this long from now, unless it is acknowledged before.

        Returns:
            The new receipt. The one before has no effect any more.

        Raises:
            CometError: the broker did not confirm it.
        """
        header = ChangeMessageInvisibletimeRequest(
            consumer_group=self.group,
            topic=handle.topic(topic, self.group),
            queue_id=handle.queue_id,
            extra_info=handle.text,
            offset=handle.offset,
            invisible_time=invisible_ms,
            bname=handle.broker_name,
        )
        address = await self._master(topic, handle.broker_name)
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        response = await self._instance.brokers.call(address, code, header, timeout=self._timeout)
        return handle.changed(response.header(ChangeMessageInvisibletimeResponse))

    async def _master(self, topic: str, broker_name: str) -> str:
        address = (await self._instance.routes.find(topic)).master(broker_name)
        if address is None:
            raise QueueNotFoundError(f"broker {broker_name} of topic {topic} has no master now")
        return address


class Acks:
    """Settles deliveries in the background: a failure is logged, and the message is redelivered.

    Args:
        requests: the requests of the group.
        on_permanent: called when retrying cannot cure a failure.
    """

    def __init__(
        self,
        requests: PopRequests,
        *,
        on_permanent: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._requests = requests
        self._acking = SupervisedFailureLog(
            log,
            fails="cannot acknowledge a message",
            works="messages are acknowledged again",
            name="topic",
            on_permanent=on_permanent,
        )
        self._changing = SupervisedFailureLog(
            log,
            fails="cannot change an invisible time",
            works="invisible times are changed again",
            name="topic",
            on_permanent=on_permanent,
        )

    async def ack(self, topic: str, handle: ReceiptHandle) -> bool:
        """Acknowledge a delivery; return whether the broker confirmed it.

        Args:
            topic: the topic that the message was sent to, as brokers know it.
            handle: the receipt.
        """
        return await self._settle(topic, self._requests.ack(topic, handle), self._acking)

    async def nack(self, topic: str, handle: ReceiptHandle, seconds: float) -> bool:
        """Let a message be redelivered this long from now; return whether the broker confirmed."""
        change = self._requests.change_invisible_time(topic, handle, int(seconds * 1000))
        return await self._settle(topic, change, self._changing)

    async def _settle(
        self, topic: str, request: Awaitable[object], failures: SupervisedFailureLog
    ) -> bool:
        try:
            await request
        except BaseException as error:
            raise_unless_failure(error)
            failures.failed(topic, error)
            return False
        failures.succeeded(topic)
        return True
