"""One dead letter: what it records, its form as JSON, and the message that sends it again."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from cometmq.model import property_names as names
from cometmq.model.dead_letter import (
    CONSUME_ERROR,
    CONSUME_ERROR_TIME_MS,
    CONSUME_RETRIES,
    OF_DEATH,
    OF_DELIVERY,
    ORIGINAL_ID,
    ORIGINAL_TOPIC,
    RESENT_FROM,
    RESENT_TIME_MS,
    SENT_AGAIN,
    first_of,
)
from cometmq.model.errors import InvalidMessageError
from cometmq.model.flags import SysFlag
from cometmq.model.message import Message, StoredMessage
from cometmq.model.offsets import LogOffset, QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX, retry_topic
from cometmq.protocol.compression import decompress_body
from cometmq.protocol.lazy_record import body_or_stored
from cometmq.protocol.message_id import decode_offset_id, unique_id_for
from cometmq.protocol.record import body_crc

_NOT_RESENT = OF_DELIVERY | OF_DEATH | {names.UNIQ_KEY, names.WAIT, names.KEYS, names.TAGS}
RETRIES_MAX = 16
"""The limit in the request that sends to a retry topic; it is not stored."""
_FIELDS = {
    "dlq_topic": str, "broker": str, "queue": int, "offset": int,
    "offset_message_id": str, "born_time_ms": int, "born_host": str, "dead_time_ms": int,
    "store_host": str, "reconsume_times": int, "flag": int, "properties": dict,
    "body_base64": str,
}  # fmt: skip
"""The fields that `DeadLetter.decode` reads, with their types; it derives the other fields."""


class ResendTo(Enum):
    """The topic to which dead letters are sent again.

    Example:
        await admin.resend_dead_letters(page.letters, to=ResendTo.TOPIC)
    """

    GROUP = "group"
    """The retry topic of the group: no other group receives them."""
    TOPIC = "topic"
    """The original topic: every group that subscribes to it receives them."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that became a dead letter of a group.

    Example:
        letters: list[DeadLetter] = (await admin.dead_letters("ledger-desk")).letters
        for letter in letters:
            print(letter.message_id, letter.original_topic, letter.error or "not recorded")
    """

    message: StoredMessage
    """The message, as the topic ``%DLQ%group`` has it."""

    @property
    def group(self) -> str:
        """The group that did not consume it."""
        return self.message.topic.removeprefix(DLQ_PREFIX)

    @property
    def queue(self) -> MessageQueue:
        """The queue that it is in."""
        return self.message.queue

    @property
    def message_id(self) -> str:
        """The unique id, which the message got at its first send."""
        return self.message.message_id

    @property
    def original_topic(self) -> str | None:
        """The topic of the first send; None if it is not recorded."""
        found = first_of(self.message.properties, ORIGINAL_TOPIC)
        return None if found is None or found.startswith(RETRY_PREFIX) else found

    @property
    def original_message_id(self) -> str | None:
        """An id of the message that was first delivered, from its sender or its broker; or None."""
        return first_of(self.message.properties, ORIGINAL_ID)

    @property
    def retries(self) -> int:
        """The number of retries before it became a dead letter."""
        recorded = self.message.properties.get(CONSUME_RETRIES)
        if recorded is None:
            return max(self.message.reconsume_times - 1, 0)
        return _number(recorded)

    @property
    def error(self) -> str | None:
        """The error that a handler raised last; None if none is recorded."""
        return self.message.properties.get(CONSUME_ERROR)

    @property
    def error_time_ms(self) -> int | None:
        """When that error was raised, in ms since 1970; None if it is not recorded."""
        return _number(self.message.properties.get(CONSUME_ERROR_TIME_MS, "")) or None

    @property
    def born_time_ms(self) -> int:
        """When a client sent it. A client that sends a copy to retry it sets this time anew."""
        return self.message.born_time_ms

    @property
    def dead_time_ms(self) -> int:
        """When it became a dead letter, in ms since 1970."""
        return self.message.store_time_ms

    @property
    def position(self) -> str:
        """Topic, broker, queue and queue offset, as `RESENT_FROM` has them."""
        message = self.message
        return "/".join(
            (message.topic, message.broker_name, str(message.queue_id), str(message.queue_offset))
        )

    def summary(self) -> dict[str, Any]:
        """Return what a list shows, for JSON; None stands for what is not recorded."""
        message = self.message
        return {
            "group": self.group,
            "message_id": self.message_id,
            "original_topic": self.original_topic,
            "original_message_id": self.original_message_id,
            "born_time_ms": self.born_time_ms,
            "dead_time_ms": self.dead_time_ms,
            "retries": self.retries,
            "tag": message.tags,
            "keys": message.keys,
            "error": self.error,
            "error_time_ms": self.error_time_ms,
            "resent_from": message.properties.get(RESENT_FROM),
            "broker": message.broker_name,
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "offset_message_id": message.offset_message_id,
            "body_bytes": len(body_or_stored(message)),
        }

    def encode(self) -> dict[str, Any]:
        """Return all of the dead letter for JSON: the summary, properties, the body as Base64."""
        message = self.message
        added = {names.MIN_OFFSET, names.MAX_OFFSET}  # by the pull
        return {
            **self.summary(),
            "dlq_topic": message.topic,
            "born_host": message.born_host,
            "store_host": message.store_host,
            "reconsume_times": message.reconsume_times,
            "flag": message.flag,
            "properties": {
                name: value for name, value in message.properties.items() if name not in added
            },
            "body_base64": base64.b64encode(body_or_stored(message)).decode(),
            **({"sys_flag": message.sys_flag} if message.sys_flag & SysFlag.COMPRESSED else {}),
        }

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> DeadLetter:
        """Make a dead letter of what `encode` returned.

        Raises:
            InvalidMessageError, InvalidMessageIdError: a field is missing, or has no valid value;
                the text says which.
        """
        _check(fields)
        offset_id, body = fields["offset_message_id"], _body(fields["body_base64"])
        sys_flag = fields.get("sys_flag", 0)  # only of a body that could not be decompressed
        if type(sys_flag) is not int:
            raise InvalidMessageError(f"the field 'sys_flag' is {sys_flag!r:.100}: expected int")
        return cls(
            StoredMessage(
                topic=fields["dlq_topic"],
                body=body,
                properties=dict(fields["properties"]),
                queue_id=fields["queue"],
                queue_offset=QueueOffset(fields["offset"]),
                log_offset=LogOffset(decode_offset_id(offset_id).log_offset),
                flag=fields["flag"],
                sys_flag=sys_flag,
                born_time_ms=fields["born_time_ms"],
                born_host=fields["born_host"],
                store_time_ms=fields["dead_time_ms"],
                store_host=fields["store_host"],
                reconsume_times=fields["reconsume_times"],
                prepared_offset=0,
                body_crc=body_crc(body),
                size_bytes=len(body),
                offset_message_id=offset_id,
                broker_name=fields["broker"],
            )
        )

    def target(self, to: ResendTo) -> str:
        """Return the topic to send it to; empty if it is the original one and not recorded."""
        return retry_topic(self.group) if to is ResendTo.GROUP else self.original_topic or ""

    def resend_id(self, topic: str) -> str:
        """Return the unique id with which the dead letter is sent to a topic, always the same."""
        message = self.message
        parts = (message.topic, message.offset_message_id, self.message_id, message.queue_offset)
        return unique_id_for("\0".join(map(str, (*parts, topic))))

    def copy_for(self, topic: str, *, unique_id: str | None) -> Message:
        """Return the message that sends the dead letter again.

        Args:
            topic: the original topic, or the retry topic of the group.
            unique_id: the unique id of the copy; None for a new one.

        Raises:
            CompressionError: the body cannot be decompressed.
        """
        message = self.message
        body = decompress_body(message.body, message.sys_flag)
        properties = {
            name: value
            for name, value in message.properties.items()
            if name not in _NOT_RESENT and value.strip()
        }
        properties[SENT_AGAIN] = self.message_id
        properties[RESENT_FROM] = self.position
        properties[RESENT_TIME_MS] = str(now_ms())
        if unique_id is not None:
            properties[names.UNIQ_KEY] = unique_id
        if topic == retry_topic(self.group):
            properties[names.RETRY_TOPIC] = self.original_topic or ""
            properties[names.ORIGIN_MESSAGE_ID] = self.original_message_id or self.message_id
            properties[names.RECONSUME_TIME] = "0"
            properties[names.MAX_RECONSUME_TIMES] = str(RETRIES_MAX)
        return Message(
            topic=topic,
            body=body,
            tags=message.tags,
            keys=message.keys,
            flag=message.flag,
            properties=properties,
        )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else 0


def _check(fields: Mapping[str, Any]) -> None:
    for name, kind in _FIELDS.items():
        value = fields.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InvalidMessageError(
                f"the field {name!r} of a dead letter is {value!r:.100}: expected {kind.__name__}"
            )
    if not fields["dlq_topic"].startswith(DLQ_PREFIX):
        raise InvalidMessageError(
            f"dlq_topic={fields['dlq_topic']!r:.200}: expected {DLQ_PREFIX} and a group"
        )
    for name, value in fields["properties"].items():
        if not isinstance(value, str):
            raise InvalidMessageError(f"property {name!r:.100} is {value!r:.100}: expected text")


def _body(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidMessageError(f"the body of a dead letter is no Base64: {error}") from None
