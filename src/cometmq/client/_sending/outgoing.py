# cython: annotation_typing=False
"""Prepares messages for the wire: checks them, adds the id, compresses and encodes.

A message is prepared once for each send; each attempt puts the same bytes into another header.
Source: Validators, DefaultMQProducerImpl.sendKernelImpl and MessageBatch, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import structs

from cometmq.client._connection.identity import Namespace
from cometmq.client.hooks import SendKind
from cometmq.client.settings import ProducerSettings
from cometmq.model import property_names as names
from cometmq.model.errors import ConfigError, InvalidMessageError, InvalidNameError
from cometmq.model.flags import SysFlag
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.model.times import epoch_ms, milliseconds
from cometmq.model.topic import (
    RETRY_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    TEMPLATE_TOPIC,
    check_topic_name,
)
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.compression import compress_body
from cometmq.protocol.headers.send import SendMessageV2Request
from cometmq.protocol.message_id import UniqueIds
from cometmq.protocol.properties import PROPERTIES_BYTES_MAX, encode_properties

_fields_by_name = attrgetter(*(field.name for field in structs.fields(Message)))

_SEND = int(RequestCode.SEND_MESSAGE_V2)
_SEND_REPLY = int(RequestCode.SEND_REPLY_MESSAGE_V2)
REPLY_TYPE = "reply"
"""The property MSG_TYPE of a reply."""

NOT_FOR_APPLICATIONS = names.RESERVED - names.TIMERS
"""Names of properties that a message of an application may not have."""


class Outgoing:
    """One message or one batch, ready for the wire.

    Args:
        topic: the name on the wire.
        message: what selectors get: the message, or the first one of a batch.
        message_id: the unique id, for a batch all ids joined by commas.
        body: the body, compressed if that is set.
        properties: the property string.
        sys_flag: bits of `SysFlag`.
        flag: the application's number.
        is_batch: whether the body is a batch.
        code: the request code that sends it.
        reconsume_times: of a message that is delivered again; for others 0.
        max_reconsume_times: how often it may be delivered again; None for others.
    """

    __slots__ = (
        "body",
        "code",
        "flag",
        "is_batch",
        "max_reconsume_times",
        "message",
        "message_id",
        "properties",
        "reconsume_times",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        message: Message,
        message_id: str,
        body: bytes,
        properties: str,
        sys_flag: int = 0,
        flag: int = 0,
        is_batch: bool = False,
        code: int = RequestCode.SEND_MESSAGE_V2,
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
    ) -> None:
        self.topic = topic
        self.message = message
        self.message_id = message_id
        self.body = body
        self.properties = properties
        self.sys_flag = sys_flag
        self.flag = flag
        self.is_batch = is_batch
        self.code = code
        self.reconsume_times = reconsume_times
        self.max_reconsume_times = max_reconsume_times

    def header(
        self,
        group: str,
        queue: MessageQueue,
        *,
        born_time_ms: int,
        new_topic_queues: int,
        unit_mode: bool = False,
        broker_name: str | None = None,
    ) -> SendMessageV2Request:
        """Make the header of an attempt for a queue; ``broker_name`` if another one serves it."""
        return SendMessageV2Request(
            producer_group=group,
            topic=self.topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=new_topic_queues,
            queue_id=queue.queue_id,
            sys_flag=self.sys_flag,
            born_timestamp=born_time_ms,
            flag=self.flag,
            properties=self.properties,
            reconsume_times=self.reconsume_times,
            unit_mode=unit_mode,
            max_reconsume_times=self.max_reconsume_times,
            batch=self.is_batch,
            bname=broker_name or queue.broker_name,
        )


class Item(NamedTuple):
    """One message of a batch, ready for the wire."""

    topic: str
    """As brokers know it."""
    message_id: str
    encoded: BatchItem


def prepare(
    message: Message,
    settings: ProducerSettings,
    ids: UniqueIds,
    namespace: Namespace | None = None,
    *,
    reserved: Mapping[str, str] | None = None,
    trusted: bool = False,
    compressed: int = 0,
) -> Outgoing:
    """Check and encode a message.

    Args:
        message: what the application, or the client itself, wants to send.
        settings: limits and compression.
        ids: makes the id of a message that has none.
        namespace: is added to the topic's name; None for none.
        reserved: properties that the client sets, and applications may not.
        trusted: whether the client itself made the message, which may have such properties.
        compressed: the bits of `SysFlag` that say how the body is compressed already; 0 if it is
            not.

    Raises:
        InvalidMessageError: it breaks a limit.
        InvalidNameError: its topic has no valid name.
    """
    fields = _fields(message)
    shown_topic, body, tags, keys, flag, own, level, wait_store, delay, deliver_at = fields
    _check_types(shown_topic, own)
    is_reply = reserved is not None and reserved.get(names.MSG_TYPE) == REPLY_TYPE
    topic = shown_topic if is_reply or not namespace else namespace.wrap_topic(shown_topic)
    is_retry = _check_topic(topic)
    _check_values(fields, settings.body_bytes_max, trusted)
    if type(tags) is str and not trusted:
        _check_tag(tags)
    times, times_max = 0, None
    sys_flag = 0
    is_plain = not (own or tags or keys or level or delay) and deliver_at is None
    if namespace or reserved or is_retry or not is_plain:
        properties = properties_of(message)
        if namespace:
            properties[names.INSTANCE_ID] = namespace.name
        if reserved:
            properties |= reserved
        message_id = _identified(properties, ids)
        times, times_max = _deliveries(topic, properties)
        if properties.get(names.TRAN_MSG) == "true":
            sys_flag = int(SysFlag.TRANSACTION_PREPARED)
        text = _encoded(properties).decode()
    else:
        message_id = ids.next()
        text = f"WAIT\x01{_text(wait_store)}\x02UNIQ_KEY\x01{message_id}\x02"
    if type(body) is not bytes:
        body = bytes(body)
    if compressed:
        sys_flag |= compressed
    elif settings.compress_level and len(body) >= settings.compress_from_bytes:
        kind = settings.compression
        body = compress_body(body, kind, settings.compress_level)
        sys_flag |= SysFlag.COMPRESSED | kind
    outgoing = Outgoing.__new__(Outgoing)
    outgoing.topic = topic
    outgoing.message = message
    outgoing.message_id = message_id
    outgoing.body = body
    outgoing.properties = text
    outgoing.sys_flag = int(sys_flag)
    outgoing.flag = int(flag)
    outgoing.is_batch = False
    outgoing.code = _SEND_REPLY if is_reply else _SEND
    outgoing.reconsume_times = times
    outgoing.max_reconsume_times = times_max
    return outgoing


def prepare_batch(
    messages: Sequence[Message],
    settings: ProducerSettings,
    ids: UniqueIds,
    *,
    namespace: Namespace | None = None,
) -> Outgoing:
    """Check and encode messages as one batch.

    Raises:
        InvalidMessageError: one of them, or the batch as a whole, breaks a limit or a rule.
        InvalidNameError: their topic has no valid name.
    """
    _check_alike(messages)
    items = [prepare_item(message, settings, ids, namespace=namespace) for message in messages]
    return batch_of(messages[0], items, settings.body_bytes_max)


def prepare_item(
    message: Message,
    settings: ProducerSettings,
    ids: UniqueIds,
    *,
    namespace: Namespace | None = None,
) -> Item:
    """Check and encode one message of a batch.

    Raises:
        InvalidMessageError, InvalidNameError: it breaks a limit.
    """
    check_fields(message)
    topic = namespace.wrap_topic(message.topic) if namespace else message.topic
    _check_topic(topic)
    _check_values(_fields(message), settings.body_bytes_max, False)
    if type(message.tags) is str:
        _check_tag(message.tags)
    properties = properties_of(message)
    if namespace:
        properties[names.INSTANCE_ID] = namespace.name
    message_id = _identified(properties, ids)
    encoded = _encoded(properties)
    return Item(topic, message_id, BatchItem(int(message.flag), bytes(message.body), encoded))


def batch_of(first: Message, items: Sequence[Item], body_bytes_max: int) -> Outgoing:
    """Combine prepared messages into a batch.

    Raises:
        InvalidMessageError: they are too large together.
    """
    body = encode_batch(item.encoded for item in items)
    if len(body) > body_bytes_max:
        raise InvalidMessageError(
            f"a batch of {len(items)} messages is {len(body)} bytes once encoded:"
            f" at most {body_bytes_max} are allowed"
        )
    text = encode_properties({names.WAIT: _text(first.wait_store)}).decode()
    return Outgoing(
        items[0].topic,
        first,
        ",".join(item.message_id for item in items),
        body,
        text,
        is_batch=True,
        code=RequestCode.SEND_BATCH_MESSAGE,
    )


def check_fields(message: Message) -> None:
    """Check the types of the topic and the properties, which all other checks read.

    Raises:
        InvalidMessageError, InvalidNameError: says what was met and what is expected.
    """
    _check_types(message.topic, message.properties)


def _check_types(topic: object, properties: object) -> None:
    if not isinstance(topic, str):
        raise InvalidNameError(f"topic {topic!r}: text is expected")
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise InvalidMessageError(f"the properties are {properties!r:.200}: a dict is expected")


def _fields(message: Message) -> tuple[Any, ...]:
    """Return the fields of a message in their order, all at once: one by one costs six times."""
    if type(message) is Message:
        return structs.astuple(message)
    return _fields_by_name(message)


@lru_cache(maxsize=4_096)
def _check_topic(topic: str) -> bool:
    """Check a topic's name on the wire, once for many messages; return whether it is a retry topic.

    Raises:
        InvalidMessageError: clients cannot send to it.
        InvalidNameError: it has no valid name.
    """
    check_topic_name(topic)
    if topic in SEND_FORBIDDEN_TOPICS:
        raise InvalidMessageError(f"topic {topic} is a system topic: clients cannot send to it")
    return topic.startswith(RETRY_PREFIX)


@lru_cache(maxsize=4_096)
def _check_tag(tag: str) -> None:
    """Check that consumers can subscribe to a tag, once for many messages.

    Raises:
        InvalidMessageError: they cannot.
    """
    if tag != tag.strip() or tag == "*" or "||" in tag:
        raise InvalidMessageError(
            f"tags={tag!r}: expected one tag, without blanks around it: no consumer can subscribe "
            "to this one, since * stands for all tags and || separates them"
        )


def _check_values(fields: tuple[Any, ...], body_bytes_max: int, trusted: bool) -> None:
    """Check body, flag and property names of a message.

    Args:
        fields: the fields of the message.
        body_bytes_max: the largest body.
        trusted: whether properties with reserved names are allowed.

    Raises:
        InvalidMessageError: the message breaks a limit.
    """
    topic, body, _, _, flag, properties, _, _, _, _ = fields
    if type(body) is not bytes and not isinstance(body, bytes | bytearray | memoryview):
        kind = type(body).__name__
        raise InvalidMessageError(f"a body of type {kind}: bytes are expected")
    if not isinstance(flag, int) or (flag and not -(2**31) <= flag < 2**31):
        raise InvalidMessageError(f"flag {flag}: a number of 32 bits is expected")
    size = len(body) if type(body) is bytes else _size_of_body(body)
    if not size:
        raise InvalidMessageError(f"a message for {topic} has an empty body")
    if size > body_bytes_max:
        raise InvalidMessageError(f"a body of {size} bytes: at most {body_bytes_max} are allowed")
    if trusted or not properties:
        return
    if reserved := NOT_FOR_APPLICATIONS & properties.keys():
        raise InvalidMessageError(f"properties with reserved names: {', '.join(sorted(reserved))}")


def properties_of(message: Message) -> dict[str, str]:
    """Return every property of the record, including tags and keys.

    Raises:
        InvalidMessageError: a key or property cannot be encoded.
    """
    properties = dict(message.properties)
    for name, value in properties.items():
        if not (_has_text(name) and _has_text(value)):
            raise InvalidMessageError(
                f"property {name!r} is {value!r}: a name and a value of text are expected"
            )
        _check_separators(name, name + value)
    properties[names.WAIT] = _text(message.wait_store)
    if message.tags:
        properties[names.TAGS] = _check_separators(names.TAGS, message.tags)
    if keys := joined_keys(message.keys):
        properties[names.KEYS] = _check_separators(names.KEYS, keys)
    if message.is_delayed:
        _add_delay(message, properties)
    return properties


def _add_delay(message: Message, properties: dict[str, str]) -> None:
    """Add the delay or the delivery time, of which only one is allowed."""
    level = message.delay_level
    if level:
        if type(level) is not int or level < 0:
            raise InvalidMessageError(
                f"delay_level={level!r}: expected the number of a delay level of the broker; "
                "give a duration as delay=, which needs a broker of RocketMQ 5"
            )
        properties[names.DELAY] = str(level)
    try:
        if delay_ms := milliseconds(message.delay, "delay"):
            properties[names.TIMER_DELAY_MS] = str(delay_ms)
        if message.deliver_at is not None:
            properties[names.TIMER_DELIVER_MS] = str(epoch_ms(message.deliver_at, "deliver_at"))
    except ConfigError as error:
        raise InvalidMessageError(str(error)) from None
    given = sorted((names.TIMERS | {names.DELAY}) & properties.keys())
    if len(given) != 1 or delay_ms < 0:
        values = ", ".join(f"{name}={properties[name]}" for name in given)
        raise InvalidMessageError(
            f"only one delay or delivery time is allowed, and not in the past: {values}"
        )


def joined_keys(given: Iterable[str]) -> str:
    """Return the keys as one text; a blank within a key would make two of it."""
    if isinstance(given, str):
        if given.isspace():
            raise InvalidMessageError(f"the keys are {given!r}: text is expected")
        return given
    try:
        keys = list(given)
    except TypeError:
        raise InvalidMessageError(f"the keys are {given!r}: a list of texts is expected") from None
    for each in keys:
        if not isinstance(each, str) or each.split() != [each]:
            raise InvalidMessageError(
                f"a key is {each!r}: text without blanks is expected, because blanks separate the"
                " keys of a message"
            )
    return names.KEY_SEPARATOR.join(keys)


def _has_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _check_separators(name: str, text: str) -> str:
    """Refuse the two characters that separate properties in a record."""
    if not isinstance(text, str):
        raise InvalidMessageError(f"{name} is {text!r}: text is expected")
    if "\x01" in text or "\x02" in text:
        raise InvalidMessageError(f"property {name!r} contains one of the characters 0x01 and 0x02")
    return text


def copy_message(message: Message) -> Message:
    """Return a copy for a send that is prepared later, or twice: the caller may change its message.

    Keys may be a generator, which can be read once. Fields of a wrong type stay as they are, and
    are refused when the message is prepared.
    """
    body, keys, properties = message.body, message.keys, message.properties
    if isinstance(body, bytearray | memoryview):
        body = bytes(body)
    if not isinstance(keys, str) and isinstance(keys, Iterable):
        keys = list(keys)
    if isinstance(properties, Mapping):
        properties = dict(properties)
    return structs.replace(message, body=body, keys=keys, properties=properties)


def size_of(message: Message) -> int:
    """Return the size that counts for the limit; a body of a wrong type is refused later."""
    try:
        return _size_of_body(message.body)
    except TypeError:
        return 0


def _size_of_body(body: bytes | bytearray | memoryview) -> int:
    """Return the bytes of a body; the length of a view counts items, which may be longer."""
    return body.nbytes if isinstance(body, memoryview) else len(body)


def kind_of(message: Message, reserved: Mapping[str, str]) -> SendKind:
    """Return the kind of a message."""
    if names.TRAN_MSG in reserved:
        return SendKind.TRANSACTION_HALF
    return SendKind.DELAYED if message.is_delayed else SendKind.NORMAL


def _check_alike(messages: Sequence[Message]) -> None:
    if not messages:
        raise InvalidMessageError("a batch without messages")
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise InvalidMessageError(f"a batch for {first.topic}: retries are not sent in batches")
    for message in messages:
        if message.topic != first.topic:
            raise InvalidMessageError(f"a batch for both {first.topic} and {message.topic}")
        if message.wait_store != first.wait_store:
            raise InvalidMessageError("a batch whose messages differ in wait_store")
        if message.is_delayed:
            raise InvalidMessageError("a batch with a delayed message: send it by itself")


def _identified(properties: dict[str, str], ids: UniqueIds) -> str:
    """Return the message's id; a message without one gets a new one."""
    message_id = properties.get(names.UNIQ_KEY)
    if message_id is None:
        message_id = properties[names.UNIQ_KEY] = ids.next()
    return message_id


def _deliveries(topic: str, properties: dict[str, str]) -> tuple[int, int | None]:
    """Remove the delivery counts from the properties: the header has fields for them."""
    if not topic.startswith(RETRY_PREFIX):
        return 0, None
    times = properties.pop(names.RECONSUME_TIME, None)
    times_max = properties.pop(names.MAX_RECONSUME_TIMES, None)
    return int(times or 0), int(times_max) if times_max is not None else None


def _encoded(properties: dict[str, str]) -> bytes:
    """Encode the property string; a record limits its size."""
    try:
        encoded = encode_properties(properties)
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"properties that cannot be encoded as UTF-8: {error}") from None
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise InvalidMessageError(
            f"properties of {len(encoded)} bytes: at most {PROPERTIES_BYTES_MAX} are allowed"
        )
    return encoded


def _text(flag: bool) -> str:
    return "true" if flag else "false"
