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

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cometmq.client._connection.instance import ClientInstance
from cometmq.client.errors import QueueNotFoundError
from cometmq.model import property_names as names
from cometmq.model.errors import CometError, ProtocolError
from cometmq.model.message import StoredMessage
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import (
    AckMessageRequest,
    ChangeMessageInvisibletimeRequest,
    Header,
    PopMessageResponse,
)

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


log = logging.getLogger(__name__)

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


class Acks:
    """Sends acknowledgements for one group.

    Args:
        instance: whose connections are used.
        group: as brokers know it.
        timeout: seconds for each of them.
    """

    def __init__(self, instance: ClientInstance, group: str, *, timeout: float) -> None:
        self._instance = instance
        self._group = group
        self._timeout = timeout

    async def done(self, topic: str, handle: Handle) -> bool:
        """Say that a message is done with.

        Args:
            topic: that it was sent to, as brokers know it.
            handle: of its delivery.

        Returns:
            Whether the broker took it; if not, the message comes again.
        """
        try:
            header = AckMessageRequest(
                consumer_group=self._group,
                topic=handle.topic(topic, self._group),
                queue_id=handle.queue_id,
                extra_info=handle.text,
                offset=handle.offset,
                bname=handle.broker_name,
            )
            await self._tell(topic, handle, RequestCode.ACK_MESSAGE, header)
        except CometError as error:
            log.warning("cannot acknowledge a message topic=%s error=%s", topic, error)
            return False
        return True

    async def later(self, topic: str, handle: Handle, seconds: float) -> bool:
        """Have a message come again so many seconds from now.

        Returns:
            Whether the broker took it; if not, the message comes when its time is over.
        """
        try:
            header = ChangeMessageInvisibletimeRequest(
                consumer_group=self._group,
                topic=handle.topic(topic, self._group),
                queue_id=handle.queue_id,
                extra_info=handle.text,
                offset=handle.offset,
                invisible_time=int(seconds * 1000),
                bname=handle.broker_name,
            )
            await self._tell(topic, handle, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        except CometError as error:
            log.warning("cannot change an invisible time topic=%s error=%s", topic, error)
            return False
        return True

    async def _tell(self, topic: str, handle: Handle, code: int, header: Header) -> None:
        route = await self._instance.routes.find(topic)
        address = route.master(handle.broker_name)
        if address is None:
            raise QueueNotFoundError(f"broker {handle.broker_name} has no master now")
        await self._instance.brokers.call(address, code, header, timeout=self._timeout)
