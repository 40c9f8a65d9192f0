"""The receipts of popped messages: by them a broker knows which delivery is acknowledged.

    handle := start " " pop_time " " invisible " " revive_queue " " kind " " broker " " queue
              [" " offset]

``start`` is the offset at which the broker's note of the delivery begins; times are milliseconds;
``kind`` says where the message lies: 0 in the topic itself, 1 and 2 in the group's retry topic of
it, whose name has an underscore or a plus sign. A broker puts the handle into a message that it
took from a retry topic; for all others the receiver makes it from the answer:

    offsets := kind " " queue " " offset {"," offset} {";" offsets}

Pure: nothing here waits or sends. Source: ExtraInfoUtil and KeyBuilder, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cometmq.client.errors import ReceiptExpiredError
from cometmq.model import property_names as names
from cometmq.model.errors import ProtocolError
from cometmq.model.message import StoredMessage
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.headers import ChangeMessageInvisibletimeResponse, PopMessageResponse

NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
_PARTS_MIN = 7


class HandleError(ProtocolError):
    """A receipt handle, or a part of it, has the wrong format."""


@dataclass(frozen=True, slots=True)
class Handle:
    """The receipt of one delivery of one message."""

    text: str
    """As it travels."""
    pop_time_ms: int
    """When the broker handed the message out, by its clock, in ms since 1970."""
    invisible_ms: int
    """For how long others don't see the message."""
    kind: str
    broker_name: str
    queue_id: int
    offset: int
    """Of the message in the queue it was taken from."""

    @classmethod
    def parse(cls, text: str, *, offset: int | None = None) -> Handle:
        """Read a receipt.

        Args:
            text: the receipt.
            offset: of the message, for a receipt that does not say it.

        Raises:
            HandleError: it has another form.
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
        """Give the topic that the message lies in.

        Args:
            topic: that it was sent to.
            group: that popped it.

        Raises:
            HandleError: the receipt names no place that is known.
        """
        if self.kind == NORMAL:
            return topic
        if self.kind == RETRY_V1:
            return f"{RETRY_PREFIX}{group}_{topic}"
        if self.kind == RETRY_V2:
            return f"{RETRY_PREFIX}{group}+{topic}"
        raise HandleError(f"receipt {self.text!r} has the unknown topic kind {self.kind!r}")

    def changed(self, answer: ChangeMessageInvisibletimeResponse) -> Handle:
        """Give the receipt that replaces this one after the invisible time was changed."""
        return replace(
            self,
            text=(
                f"{self.offset} {answer.pop_time} {answer.invisible_time} {answer.revive_qid}"
                f" {self.kind} {self.broker_name} {self.queue_id} {self.offset}"
            ),
            pop_time_ms=answer.pop_time,
            invisible_ms=answer.invisible_time,
        )

    def expires_ms(self) -> int:
        """Give the time when others see the message again, by the broker's clock."""
        return self.pop_time_ms + self.invisible_ms


def offsets_by_queue(text: str | None) -> dict[tuple[str, int], list[int]]:
    """Read lists of offsets by kind and queue; nothing from nothing.

    Raises:
        HandleError: the text has another form.
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
    answer: PopMessageResponse, messages: Sequence[StoredMessage], broker_name: str
) -> list[Handle]:
    """Give the receipt of each message of an answer.

    Args:
        answer: what the broker says of all of them.
        messages: as they were decoded.
        broker_name: of the broker.

    Raises:
        HandleError: the answer, or a receipt in a message, has not the form it should have.
    """
    starts = offsets_by_queue(answer.start_offset_info)
    first = _first_offsets(messages)
    return [_handle(answer, message, broker_name, starts, first) for message in messages]


def _handle(
    answer: PopMessageResponse,
    message: StoredMessage,
    broker_name: str,
    starts: Mapping[tuple[str, int], list[int]],
    first: Mapping[int, int],
) -> Handle:
    given = message.properties.get(names.POP_CK)
    if given:
        return Handle.parse(given, offset=message.queue_offset)
    known = starts.get((NORMAL, message.queue_id))
    start = known[0] if known else first[message.queue_id]
    text = (
        f"{start} {answer.pop_time} {answer.invisible_time} {answer.revive_qid} {NORMAL}"
        f" {broker_name} {message.queue_id} {message.queue_offset}"
    )
    return Handle.parse(text)


def _first_offsets(messages: Sequence[StoredMessage]) -> dict[int, int]:
    """The lowest offset of each queue, which brokers without start offsets go by."""
    first: dict[int, int] = {}
    for message in messages:
        first[message.queue_id] = min(
            message.queue_offset, first.get(message.queue_id, message.queue_offset)
        )
    return first


DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Until a message that failed comes again, by how often it did before."""


def delay_s(reconsume_times: int, delay_level: int = 0) -> int:
    """Give the seconds until a message comes again.

    Args:
        reconsume_times: how often it came again before.
        delay_level: what the handler ordered; 0 for nothing. As in RocketMQ it counts from 0, so
            that 1 is the second of the delays.
    """
    level = delay_level if delay_level > 0 else max(reconsume_times, 0)
    return DELAYS_S[min(level, len(DELAYS_S) - 1)]


@dataclass(slots=True, eq=False)
class Delivery:
    """One received message that is neither acknowledged nor put off."""

    topic: str
    """The topic that it was sent to, as brokers know it."""
    handle: Handle
    """The receipt that is valid now: a change of the invisible time replaces it."""
    expires_at: float
    """When the broker redelivers it, in seconds of the steady clock."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the request that uses the receipt."""


class Deliveries:
    """The received messages of one consumer that are in flight, and their receipts.

    A message carries the receipt of its delivery as a property, which finds the one that is valid
    now. Brokers confirm an acknowledgement even if it has no effect, so this table decides whether
    a receipt is still good.

    Args:
        limit: messages that may be in flight.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reserved = 0
        self._known: dict[tuple[str, str], Delivery] = {}

    def __len__(self) -> int:
        return len(self._known)

    def reserve(self, count: int) -> int:
        """Keep room for up to this many messages, and return for how many; see `add`."""
        if self._room() < count:
            now = time.monotonic()
            self._known = {k: each for k, each in self._known.items() if each.expires_at > now}
        granted = min(count, max(self._room(), 0))
        self._reserved += granted
        return granted

    def _room(self) -> int:
        return self._limit - self._reserved - len(self._known)

    def free(self, count: int) -> None:
        """Give back room that `reserve` kept."""
        self._reserved -= count

    def add(self, message: StoredMessage, delivery: Delivery) -> None:
        """Note a message that is given to the application."""
        message.properties[names.POP_CK] = delivery.handle.text
        self._known[message.topic, delivery.handle.text] = delivery

    def of(self, message: StoredMessage) -> Delivery:
        """Return the delivery of a message.

        Raises:
            ReceiptExpiredError: it is not in flight.
        """
        found = self._known.get(_key(message))
        if found is None:
            raise ReceiptExpiredError(
                message.message_id,
                "it is not in flight at this consumer: it was acknowledged or put off before, its "
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


def _key(message: StoredMessage) -> tuple[str, str]:
    return message.topic, message.properties.get(names.POP_CK, "")
