"""Messages of the service as brokers store them, and back.

Source: SendMessageActivity and GrpcConverter, RocketMQ 5.3.3. One thing differs: a body that is
stored compressed is decompressed here, because clients read only some of the formats.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from typing import Any

from cometmq.model import property_names as names
from cometmq.model.flags import SysFlag
from cometmq.model.message import StoredMessage
from cometmq.model.times import now_ms
from cometmq.proxy.messages import TYPES

MD5, IDENTITY, GZIP = 2, 1, 2
HIDDEN = names.RESERVED | {
    names.SHARDING_KEY, names.TRACE_CONTEXT, names.INNER_MULTI_DISPATCH,
    names.CHECK_IMMUNITY_TIME_IN_SECONDS, names.TRANSACTION_CHECK_TIMES,
}  # fmt: skip
"""Properties of brokers and of this service, which are none of the user's."""


class MessageType(IntEnum):
    """What kind of message it is, or a topic takes."""

    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4


def type_of(properties: dict[str, str]) -> MessageType:
    """Return the type of a message, by its properties."""
    if properties.get(names.TRAN_MSG, "").lower() == "true":
        return MessageType.TRANSACTION
    if names.DELAY in properties or not names.TIMERS.isdisjoint(properties):
        return MessageType.DELAY
    return MessageType.FIFO if names.SHARDING_KEY in properties else MessageType.NORMAL


def properties_of(message: Any, topic: str, peer: str) -> dict[str, str]:
    """Return the properties that a broker stores for a message that is sent.

    Args:
        message: as the client sent it, checked.
        topic: its topic, which is the producer group as well.
        peer: the address of the client.
    """
    system = message.system_properties
    found = {each.key: each.value for each in message.user_properties}
    found[names.UNIQ_KEY] = system.message_id
    if system.HasField("tag") and system.tag:
        found[names.TAGS] = system.tag
    if system.keys:
        found[names.KEYS] = names.KEY_SEPARATOR.join(system.keys)
    if system.message_type == MessageType.TRANSACTION:
        found[names.TRAN_MSG] = "true"
        recovery = system.orphaned_transaction_recovery_duration
        if recovery.seconds:
            found[names.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(recovery.seconds)
    if system.HasField("delivery_timestamp"):
        found[names.TIMER_DELIVER_MS] = str(milliseconds(system.delivery_timestamp))
    if system.HasField("message_group") and system.message_group:
        found[names.SHARDING_KEY] = system.message_group
    if system.HasField("trace_context") and system.trace_context:
        found[names.TRACE_CONTEXT] = system.trace_context
    found[names.RECONSUME_TIME] = str(system.delivery_attempt)
    found[names.BORN_TIMESTAMP] = str(born_ms(message))
    found[names.BORN_HOST] = system.born_host or peer
    found[names.PGROUP] = topic
    return found


def born_ms(message: Any) -> int:
    """Return when a message that is sent was made; now if it does not say."""
    return milliseconds(message.system_properties.born_timestamp) or now_ms()


def sys_flag_of(message: Any) -> int:
    """Return the flag of a message that is sent."""
    system = message.system_properties
    flag = SysFlag.COMPRESSED if system.body_encoding == GZIP else 0
    if system.message_type == MessageType.TRANSACTION:
        flag |= SysFlag.TRANSACTION_PREPARED
    return flag


def message_of(stored: StoredMessage, handle: str = "") -> Any:
    """Return a stored message for a client.

    Args:
        stored: the message.
        handle: the receipt of its delivery; empty if it was not received.

    Raises:
        CompressionError: its body is damaged.
    """
    properties, body = stored.properties, stored.body
    made = TYPES["Message"](body=body)
    namespace, separator, _ = stored.topic.partition("%")
    made.topic.name = stored.topic
    if separator:
        made.topic.resource_namespace = namespace
    for key, value in properties.items():
        if key not in HIDDEN:
            made.user_properties.add(key=key, value=value)
    system = made.system_properties
    if tag := properties.get(names.TAGS):
        system.tag = tag
    system.keys.extend(filter(None, properties.get(names.KEYS, "").split(names.KEY_SEPARATOR)))
    system.message_id = properties.get(names.UNIQ_KEY) or stored.message_id
    system.body_digest.type = MD5
    system.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = IDENTITY
    system.message_type = type_of(properties)
    set_milliseconds(system.born_timestamp, stored.born_time_ms)
    system.born_host = properties.get(names.BORN_HOST) or stored.born_host
    set_milliseconds(system.store_timestamp, stored.store_time_ms)
    system.store_host = stored.store_host
    if due := properties.get(names.TIMER_DELIVER_MS, ""):
        set_milliseconds(system.delivery_timestamp, int(due) if due.isdecimal() else 0)
    if group := properties.get(names.SHARDING_KEY):
        system.message_group = group
    if context := properties.get(names.TRACE_CONTEXT):
        system.trace_context = context
    if handle:
        system.receipt_handle = handle
    system.queue_id, system.queue_offset = stored.queue_id, stored.queue_offset
    system.delivery_attempt = stored.reconsume_times + 1
    origin, origin_id = (
        properties.get(names.DLQ_ORIGIN_TOPIC), properties.get(names.DLQ_ORIGIN_MESSAGE_ID)
    )  # fmt: skip
    if origin and origin_id:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = origin, origin_id
    return made


def milliseconds(time: Any) -> int:
    """Return a ``Timestamp`` or a ``Duration`` in ms."""
    return int(time.seconds) * 1000 + int(time.nanos) // 1_000_000


def set_milliseconds(time: Any, value_ms: int) -> None:
    """Set a ``Timestamp`` or a ``Duration``."""
    time.seconds, rest = divmod(value_ms, 1000)
    time.nanos = rest * 1_000_000
