"""The message as an application sends it, and as a consumer gets it.

Source: Message and MessageExt, RocketMQ 5.3.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import uuid4

import msgspec

from cometmq.model import property_names as names
from cometmq.model.missing_attributes import Missing
from cometmq.model.offsets import LogOffset, QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.model.topic import retry_topic


class Message(msgspec.Struct):
    """A message to send.

    Example:
        await producer.send(Message(topic="orders", body=b"42", tags="paid", keys=["order-42"]))
    """

    topic: str
    """The topic to send to."""
    body: bytes
    """The application's bytes; at least one."""
    tags: str | None = None
    """The tag, which consumers can filter by; None for no tag."""
    keys: Iterable[str] = ()
    """Keys, by which queries find the message; a key contains no blank. One text has its keys
    separated by blanks, as in RocketMQ."""
    flag: int = 0
    """A 32-bit number for the application, stored with the message."""
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    """Further properties for the application."""
    delay_level: int = 0
    """The number of a delay level of the broker; 0 delivers at once."""
    wait_store: bool = True
    """Whether the broker responds only after flush and replication, as its settings require."""
    delay: float | timedelta = 0
    """Deliver this many seconds, or a `timedelta`, after the broker has stored it; 0 delivers at
    once. Needs a broker of RocketMQ 5 with its timer enabled, which rounds up to whole seconds."""
    deliver_at: datetime | int | None = None
    """Deliver at this time: a `datetime` with a time zone, or ms since 1970; None delivers at once.
    Needs the same broker."""

    @property
    def is_timed(self) -> bool:
        """Whether a broker's timer delivers it, instead of a delay level."""
        given = bool(self.delay) or self.deliver_at is not None
        return given or not names.TIMERS.isdisjoint(self.properties)

    @property
    def is_delayed(self) -> bool:
        """Whether it is delivered later than at once."""
        return bool(self.delay_level) or self.is_timed


@dataclass(slots=True)
class StoredMessage:
    """A message as a broker stores it.

    Example:
        await consumer.subscribe("orders")
        found: list[StoredMessage] = await consumer.poll(timeout=0.5)
        for message in found:
            print(message.topic, message.body, message.tags, message.keys, message.queue_offset)
    """

    topic: str
    """The topic; see `real_topic` for redelivered messages."""
    body: bytes
    """The application's bytes, decompressed if the sender compressed them. Reading it raises
    `CompressionError` if it is damaged, or if a package is missing."""
    properties: dict[str, str]
    """All properties, including tags and keys."""
    queue_id: int
    """The number of the queue at its broker."""
    queue_offset: QueueOffset
    """The offset in the queue."""
    log_offset: LogOffset
    """The physical offset of the record."""
    flag: int
    """The sender's number, `Message.flag`."""
    sys_flag: int
    """Bits of `cometmq.model.flags.SysFlag`; without COMPRESSED if the body was decompressed."""
    born_time_ms: int
    """When the client sent the message, in ms since 1970, by the client's clock."""
    born_host: str
    """``ip:port`` of the sender."""
    store_time_ms: int
    """When the broker stored the message, in ms since 1970."""
    store_host: str
    """``ip:port`` of the broker."""
    reconsume_times: int
    """The number of retries so far."""
    prepared_offset: int
    """For a message of a transaction, the physical offset of its half message; otherwise 0."""
    body_crc: int
    """CRC-32 of the body as stored, without its top bit."""
    size_bytes: int
    """Bytes of the whole record."""
    offset_message_id: str
    """The broker's id: its address and the record's physical offset."""
    broker_name: str = ""
    """The broker that the consumer pulled from."""

    @classmethod
    def of(cls, message: Message) -> "StoredMessage":
        """Return a message as a broker stores it, for a test that calls a handler itself.

        Example: ``await bill(StoredMessage.of(Message("orders", b"42", tags="paid")))``
        """
        properties, time_ms = dict(message.properties), now_ms()
        if message.tags:
            properties[names.TAGS] = message.tags
        given = [message.keys] if isinstance(message.keys, str) else message.keys
        if keys := names.KEY_SEPARATOR.join(given):
            properties[names.KEYS] = keys
        return cls(
            topic=message.topic,
            body=message.body,
            properties=properties,
            queue_id=0,
            queue_offset=QueueOffset(0),
            log_offset=LogOffset(0),
            flag=message.flag,
            sys_flag=0,
            born_time_ms=time_ms,
            born_host="127.0.0.1:0",
            store_time_ms=time_ms,
            store_host="127.0.0.1:0",
            reconsume_times=0,
            prepared_offset=0,
            body_crc=0,
            size_bytes=len(message.body),
            offset_message_id=uuid4().hex.upper(),
        )

    @property
    def tags(self) -> str | None:
        """The tag of the message, or None."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys of the message."""
        return self.properties.get(names.KEYS, "").split()

    @property
    def unique_id(self) -> str | None:
        """The unique id, made by the sender."""
        return self.properties.get(names.UNIQ_KEY)

    @property
    def message_id(self) -> str:
        """The unique id, or the broker's id if there is none."""
        return self.unique_id or self.offset_message_id

    @property
    def delay_level(self) -> int:
        """The delay level of the send; 0 if there is none or it cannot be read."""
        level = self.properties.get(names.DELAY, "")
        return int(level) if level.isdecimal() and len(level) < 10 else 0

    @property
    def queue(self) -> MessageQueue:
        """The queue that the message was read from."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    def real_topic(self, group: str) -> str:
        """Return the topic of the first send, also for a redelivered message."""
        if self.topic == retry_topic(group):
            return self.properties.get(names.RETRY_TOPIC, self.topic)
        return self.topic


_READ = {
    "data": "message.body",
    "value": "message.body",
    "payload": "message.body",
    "text": "message.body.decode()",
    "json": "json.loads(message.body)",
    "key": "message.keys",
    "tag": "message.tags",
    "headers": "message.properties",
    "subject": "message.topic",
    "channel": "message.topic",
    "offset": "message.queue_offset",
    "partition": "message.queue_id",
    "timestamp": "message.born_time_ms",
    "ack": "return, since a handler that returns acknowledges the message",
    "commit": "return, since a handler that returns acknowledges the message",
    "nack": "raise an exception, and the message is redelivered later",
    "reject": "raise an exception, and the message is redelivered later",
}
"""The expressions to write here, by attributes and methods of other libraries' messages."""
for _name, _line in _READ.items():
    setattr(StoredMessage, _name, Missing(_name, _line))
