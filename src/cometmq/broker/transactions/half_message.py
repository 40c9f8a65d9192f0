"""The half message: how it waits in the half topic, and what it becomes.

A half message waits in queue 0 of ``RMQ_SYS_TRANS_HALF_TOPIC``, with its target queue in the
properties REAL_TOPIC and REAL_QID and without the transaction bits of its flags. A decision is an
op message: the decimal queue offset of the half message, in ``RMQ_SYS_TRANS_OP_HALF_TOPIC``.
Brokers of RocketMQ 5 write several offsets into one op message, each followed by a comma.

Source: TransactionalMessageBridge, TransactionalMessageServiceImpl and EndTransactionProcessor,
RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cometmq.broker.checks import check_subscribed_topic
from cometmq.broker.targets import (
    check_target,
    queue_id_of,
    stored_again,
    target_properties,
)
from cometmq.broker.timers.routing import TimerRouting
from cometmq.broker.timers.senders import without_sender
from cometmq.model import property_names as names
from cometmq.model.errors import InvalidMessageError, ResponseError
from cometmq.model.flags import SysFlag
from cometmq.model.topic import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_DISCARD_TOPIC
from cometmq.protocol.properties import decode_properties, encode_properties
from cometmq.protocol.record import RecordParts, split_record
from cometmq.store import NewRecord

COPY_BYTES = 48
"""Bytes that a copy that is put back may have in its properties beyond the half message's."""
HALF_QUEUE = 0
"""The queue of half messages, and of their op messages."""
_OP_PROPERTIES = encode_properties({names.TAGS: "d", names.WAIT: "true"})
_OF_BROKERS = (names.TRANSACTION_CHECK_TIMES, names.TRAN_PREPARED_QUEUE_OFFSET)
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")
_OFFSET = re.compile(rb"[0-9]{1,18}")


def is_half(properties: Mapping[str, str]) -> bool:
    """Return whether a message that is sent is a half message."""
    return properties.get(names.TRAN_MSG, "").lower() == "true"


def half_properties(topic: str, queue_id: int, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with which a message waits for its decision.

    Args:
        topic, queue_id: its target queue.
        properties: the properties of the message, with a unique id. Properties that only a broker
            may set are dropped.
    """
    changed = {name: value for name, value in properties.items() if name not in _OF_BROKERS}
    changed[names.TRANSACTION_ID] = properties[names.UNIQ_KEY]
    return changed | target_properties(topic, queue_id)


class HalfMessage:
    """A half message, read from the log.

    Args:
        record: its record.
        properties: the properties of the record, decoded; None to decode them here.
    """

    __slots__ = ("properties", "record")

    def __init__(self, record: RecordParts, properties: dict[str, str] | None = None) -> None:
        self.record = record
        self.properties = decode_properties(record.properties) if properties is None else properties

    @property
    def queue_offset(self) -> int:
        """Its offset in the half queue."""
        return self.record.queue_offset

    @property
    def group(self) -> str:
        """The producer group that may decide."""
        return self.properties.get(names.PGROUP, "")

    @property
    def unique_key(self) -> str:
        """The id that its producer gave it."""
        return self.properties.get(names.UNIQ_KEY, "")

    @property
    def times_checked(self) -> int:
        """How often it was checked; -1 if it was never put back."""
        return _number(self.properties.get(names.TRANSACTION_CHECK_TIMES), -1)

    @property
    def first_offset(self) -> int:
        """The first queue offset of a copy that RocketMQ put back unchecked; -1 for others."""
        return _number(self.properties.get(names.TRAN_PREPARED_QUEUE_OFFSET), -1)

    @property
    def is_copy(self) -> bool:
        """Whether it was put back."""
        return self.times_checked >= 0 or self.first_offset >= 0

    @property
    def identity(self) -> tuple[str, int, bytes, str]:
        """The values that all copies of a half message share, and no other half message has.

        A producer that sends again uses the same unique id, but at another time.
        """
        record = self.record
        return self.unique_key, record.born_time_ms, record.born_host, self.group

    def immunity_ms(self, default_ms: int) -> int | None:
        """Return for how long it is not checked if its producer says so; None if it does not.

        Args:
            default_ms: the shortest time, also for a text that is no number of seconds.
        """
        text = self.properties.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS)
        return None if text is None else max(_number(text, 0) * 1000, default_ms)

    def is_copy_of(self, other: HalfMessage) -> bool:
        """Return whether both are one message, perhaps put back, discarded or committed."""
        return self.identity == other.identity

    # --- what it becomes ------------------------------------------------------------------------

    def op(self, now_ms: int) -> NewRecord:
        """Return the op message which says that this one is decided, or stored again elsewhere."""
        host = self.record.store_host
        body = b"%d" % self.queue_offset
        return NewRecord(
            OP_HALF_TOPIC,
            HALF_QUEUE,
            body,
            _OP_PROPERTIES,
            born_time_ms=now_ms,
            born_host=host,
            store_host=host,
        )

    def committed(self, timers: TimerRouting, topic: str, queue_id: int) -> NewRecord:
        """Return the message for consumers; a delay begins now.

        Args:
            timers: decide how long it waits.
            topic, queue_id: the target queue.
        """
        text = without_sender(self.record.properties)
        scheduled = timers.committed(topic, queue_id, self.properties)
        if scheduled is not None:
            topic, queue_id, text = *scheduled[:2], encode_properties(scheduled.properties)
        record = self.record
        sys_flag = record.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT
        return stored_again(
            record,
            topic,
            queue_id,
            prepared_offset=record.log_offset,
            properties=text,
            sys_flag=sys_flag,
        )

    def target(self) -> tuple[str, int]:
        """Return the topic and the queue for which its producer sent it.

        Raises:
            InvalidMessageError: there are none.
        """
        topic = self.properties.get(names.REAL_TOPIC, "")
        try:
            check_subscribed_topic(topic)
        except ResponseError as problem:
            raise InvalidMessageError(problem.remark) from None
        return topic, check_target(topic, self.properties.get(names.REAL_QID, ""))

    def named_target(self) -> tuple[str, int]:
        """Return topic and queue without a check; the queue is -1 for a text that is no number."""
        queue_id = queue_id_of(self.properties.get(names.REAL_QID, ""))
        return self.properties.get(names.REAL_TOPIC, ""), queue_id

    def put_back(self, times_checked: int) -> HalfMessage:
        """Return the copy that is put back into the half queue; its offsets are not known yet."""
        properties = self.properties | {
            names.TRANSACTION_CHECK_TIMES: str(times_checked),
            names.WAIT: "false",
        }
        # The copy is found under its own offset, not under the one RocketMQ put it back from.
        properties.pop(names.TRAN_PREPARED_QUEUE_OFFSET, None)
        record = self.record._replace(properties=encode_properties(properties))
        return HalfMessage(record, properties)

    def stored_at(self, queue_offset: int, log_offset: int) -> HalfMessage:
        """Return a copy with its offsets, once it is in the half queue."""
        record = self.record._replace(
            topic=HALF_TOPIC, queue_offset=queue_offset, log_offset=log_offset
        )
        return HalfMessage(record, self.properties)

    def waiting(self) -> NewRecord:
        """Return what is appended to the half queue for a copy."""
        return stored_again(self.record, HALF_TOPIC, HALF_QUEUE)

    def discarded(self) -> NewRecord:
        """Return the message for the topic of half messages that were checked in vain."""
        return stored_again(self.record, TRANSACTION_DISCARD_TOPIC, 0)


def read_half(data: bytes | memoryview) -> HalfMessage:
    """Read a half message.

    Raises:
        RecordError: the bytes are not a record.
    """
    return HalfMessage(split_record(data))


def op_offsets(body: bytes) -> list[int]:
    """Return the half messages that an op message names; RocketMQ 5 writes several into one."""
    if _OFFSET.fullmatch(body):
        return [int(body)]
    return [int(text) for text in body.split(b",") if _OFFSET.fullmatch(text)]


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and _WHOLE_NUMBER.fullmatch(text) else default
