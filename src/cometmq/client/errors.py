"""The client's own errors, and what each says about the message.

CometError
├── InvalidMessageError        the message breaks a limit; not sent          (model.errors)
├── InvalidNameError           a topic or group name is invalid; not sent    (model.errors)
├── InvalidMessageIdError      a text is not the id of a message             (model.errors)
├── ProtocolError              a response cannot be read                     (model.errors)
├── CompressionError           a body cannot be decompressed    (protocol.compression)
├── ResponseError              the broker refused it; not stored             (model.errors)
├── ClientError
│   ├── ClientClosedError      the client is not running
│   ├── TopicNotFoundError     no broker has the topic; not sent
│   ├── QueueNotFoundError     the topic has no such queue; not sent
│   ├── BackPressureError      a limit on what is in flight is reached; not sent
│   ├── ReplyError             a request got no reply; a consumer may have processed it
│   │   └── ReplyTimeoutError  no reply in time (a TimeoutError, too)
│   ├── WrongModeError         `assign` and `subscribe` are mixed
│   ├── NotAssignedError       the queue is not assigned to this consumer
│   ├── OffsetRangeError       the offset is outside the queue
│   ├── ReceiptExpiredError    the message is not in flight any more; nothing changed
│   └── KeyMissingError        a message for `Idempotent` has no key; nothing was written
├── ConsumeLater               raised by handlers: redeliver the message later
└── RemotingError
    ├── CallTimeoutError       no response in time (a TimeoutError, too)     (remoting.errors)
    ├── ConnectError           the peer cannot be reached; not sent          (remoting.errors)
    │   └── NoMasterError      the brokers of the topic have no master now
    ├── NameServerError        no name server responded
    └── SendFailedError        no broker responded; ``maybe_stored`` says what that means
        └── SendTimeoutError   no response in time (a TimeoutError, too)

Source: MQClientException and its codes 10001 to 10005, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from cometmq.model.delay import DelayLevels
from cometmq.model.errors import (
    CometError,
    ConfigError,
    InvalidMessageError,
    InvalidMessageIdError,
    InvalidNameError,
    ProtocolError,
    RemotingError,
    ResponseError,
    StoreError,
)
from cometmq.model.times import seconds
from cometmq.protocol.compression import CompressionError
from cometmq.remoting import CallTimeoutError, ConnectError, ConnectionLostError, TooManyCallsError

__all__ = [
    "CometError",
    "ConfigError",
    "InvalidMessageError",
    "InvalidNameError",
    "InvalidMessageIdError",
    "ProtocolError",
    "CompressionError",
    "ResponseError",
    "StoreError",
    "ClientError",
    "ClientClosedError",
    "TopicNotFoundError",
    "QueueNotFoundError",
    "BackPressureError",
    "ReplyError",
    "ReplyTimeoutError",
    "WrongModeError",
    "NotAssignedError",
    "OffsetRangeError",
    "ReceiptExpiredError",
    "KeyMissingError",
    "ConsumeLater",
    "RemotingError",
    "ConnectError",
    "NoMasterError",
    "ConnectionLostError",
    "CallTimeoutError",
    "TooManyCallsError",
    "NameServerError",
    "SendFailedError",
    "SendTimeoutError",
    "SendAttempt",
]

_LEVELS = DelayLevels.parse()


class ClientError(CometError):
    """The base of the client's own errors.

    Example:
        try:
            await consumer.assign([queue])
            await consumer.subscribe("orders")
        except ClientError as error:
            print(error)
    """


class ClientClosedError(ClientError):
    """The client is not running: it was not started, or it was closed.

    Nothing was sent, except sends in flight when a producer was closed: their text says that
    the message may be stored.

    Example:
        await producer.close()
        try:
            await producer.send(Message(topic="orders", body=b"42"))
        except ClientClosedError as error:
            print(error)
    """


class TopicNotFoundError(ClientError):
    """No broker has the topic; not sent.

    Args:
        topic: the topic that was looked up.
        why: what the route lacks.

    Example:
        try:
            await consumer.fetch_queues("no-such-topic")
        except TopicNotFoundError as error:
            print(error.topic)
    """

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(f"no broker serves topic {topic}: {why}")
        self.topic = topic


class QueueNotFoundError(ClientError):
    """The topic has no such queue, or no broker serves it now; not sent.

    Example:
        try:
            await consumer.bounds(MessageQueue("orders", "no-such-broker", 0))
        except QueueNotFoundError as error:
            print(error)
    """


class BackPressureError(ClientError):
    """A limit on messages or requests in flight is reached; not sent.

    Example:
        async with Producer(name_server, group="shop", back_pressure_messages=10) as producer:
            sends = [producer.send_nowait(Message(topic="orders", body=b"42")) for _ in range(10)]
            try:
                producer.send_nowait(Message(topic="orders", body=b"43"))
            except BackPressureError as error:
                print(error)
            await asyncio.gather(*sends)
    """


class ReplyError(ClientError):
    """A request got no reply; a consumer may have processed it.

    Example:
        try:
            await producer.request(Message(topic="orders", body=b"42?"), timeout=0.2)
        except ReplyError as error:
            print(error)
    """


class ReplyTimeoutError(ReplyError, TimeoutError):
    """No reply in time; a later reply is dropped.

    Example:
        try:
            await producer.request(Message(topic="orders", body=b"42?"), timeout=0.2)
        except ReplyTimeoutError as error:
            print(error)
    """


class WrongModeError(ClientError):
    """The consumer uses `assign`, and this call needs `subscribe`, or the reverse.

    Example:
        await consumer.assign([queue])
        try:
            await consumer.subscribe("orders")
        except WrongModeError as error:
            print(error)
    """


class NotAssignedError(ClientError):
    """The queue is not assigned to this consumer.

    Example:
        try:
            await consumer.seek(queue, 0)
        except NotAssignedError as error:
            print(error)
    """


class OffsetRangeError(ClientError):
    """The offset is outside the queue; nothing moved or was committed.

    Example:
        await consumer.assign([queue])
        try:
            await consumer.seek(queue, 1_000_000)
        except OffsetRangeError as error:
            print(error)
    """


class ReceiptExpiredError(ClientError):
    """The message is not in flight at this `SimpleConsumer`: nothing was acknowledged or changed.

    It was settled before (ack or nack), its invisible time is over, or another consumer received
    it.

    Args:
        message_id: of the message.
        why: why its receipt is of no use.

    Example:
        async with SimpleConsumer(name_server, group="billing") as consumer:
            await consumer.subscribe("orders")
            try:
                await consumer.ack(message)
            except ReceiptExpiredError as error:
                print(error)
    """

    def __init__(self, message_id: str, why: str) -> None:
        super().__init__(f"message {message_id} cannot be acknowledged or extended: {why}")
        self.message_id = message_id


class KeyMissingError(ClientError):
    """A message for `Idempotent` has no key; nothing was written, and it is dead-lettered at once.

    Args:
        message_id: of the message.

    Example:
        try:
            raise KeyMissingError(message.message_id)
        except KeyMissingError as error:
            print(error.message_id)
    """

    def __init__(self, message_id: str) -> None:
        super().__init__(
            f"message {message_id} has no key: its producer must give it one, or set "
            "Idempotent(key=...)"
        )
        self.message_id = message_id


class ConsumeLater(CometError):  # noqa: N818 - an order, not a failure
    """Raised by a handler: redeliver the message later, without the traceback of an error.

    With ``raise ConsumeLater(...) from error`` a dead letter has that error in ``CONSUME_ERROR``.

    Args:
        delay: until then, in seconds or as a `timedelta`. A `PopConsumer` keeps to it exactly. A
            concurrent `PushConsumer` takes the shortest of RocketMQ's default delay levels that is
            not shorter; the longest is 2 hours. When consuming in order it is the pause of the
            queue, 10 ms to 30 s; None for that of the context, or else of the settings.
        delay_level: instead of ``delay``, a level of the broker; 0 to let it choose, -1 for a dead
            letter at once.

    Raises:
        ConfigError: both ``delay`` and ``delay_level`` are given, ``delay`` is negative or no
            duration, or ``delay_level`` is no number.

    Example:
        async def bill(message: StoredMessage) -> None:
            if not message.tags:
                raise ConsumeLater(delay=timedelta(minutes=5))

        async with PushConsumer(name_server, group="billing", handler=bill) as consumer:
            await consumer.subscribe("orders")
    """

    def __init__(
        self,
        *,
        delay: float | timedelta | None = None,
        delay_level: int = 0,
    ) -> None:
        if type(delay_level) is not int:
            raise ConfigError(f"delay_level={delay_level!r}: expected the number of a delay level")
        delay_s = None if delay is None else seconds(delay, "delay")
        if delay_s is not None and (delay_level or delay_s < 0):
            raise ConfigError(
                f"delay={delay!r}, delay_level={delay_level}: expected one of the two, and no "
                "negative delay"
            )
        if delay_s is not None:
            delay_level = _LEVELS.level_for(delay_s * 1000)
        super().__init__(f"consume later: delay level {delay_level}")
        self.delay_s = delay_s
        self.delay_level = delay_level


class NoMasterError(ConnectError):
    """The broker has no master now; not sent.

    Example:
        try:
            await producer.send(Message(topic="orders", body=b"42"))
        except NoMasterError:
            print("the master stopped, and no slave is elected yet: send it again later")
    """


class NameServerError(RemotingError):
    """No name server responded; the message lists every address that was tried.

    Example:
        try:
            async with Producer("127.0.0.1:1", group="shop") as producer:
                await producer.send(Message(topic="orders", body=b"42"))
        except NameServerError as error:
            print(error)
    """


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """One failed attempt of a send: its broker and its error.

    Example:
        try:
            await producer.send(Message(topic="orders", body=b"42"), timeout=0.0)
        except SendFailedError as error:
            attempts: tuple[SendAttempt, ...] = error.attempts
            print([attempt.broker_name for attempt in attempts])
    """

    broker_name: str
    """The broker of the attempt."""
    error: CometError
    """The error that ended it."""
    maybe_stored: bool
    """Whether the request may have reached the broker before the attempt failed."""

    def __str__(self) -> str:
        return f"{self.broker_name}: {type(self.error).__name__}: {self.error}"


class SendFailedError(RemotingError):
    """Every attempt of a send failed, and the last one was no refusal.

    There was no response that can be read, or the broker has stored the message and cannot
    acknowledge it: it stopped, or another master was elected.

    Args:
        topic: the topic of the message.
        attempts: the attempts in order; empty if time ran out before the first. Of the attempts
            that could not connect, or met a stopping broker, only the last one of each broker.
        reason: why there was no attempt.

    ``maybe_stored`` is False when no attempt reached a broker; otherwise the message may be stored,
    and a second send may duplicate it.

    Example:
        try:
            await producer.send(Message(topic="orders", body=b"42"), timeout=0.0)
        except SendFailedError as error:
            print(error.maybe_stored)
    """

    def __init__(
        self,
        topic: str,
        attempts: Sequence[SendAttempt],
        reason: str = "no time for a first attempt",
    ) -> None:
        failures = "; ".join(dict.fromkeys(map(str, attempts))) or reason
        super().__init__(f"sending to {topic} failed: {failures}")
        self.topic = topic
        self.attempts = tuple(attempts)
        self.maybe_stored = any(attempt.maybe_stored for attempt in attempts)


class SendTimeoutError(SendFailedError, TimeoutError):
    """The send timed out; ``maybe_stored`` says whether the message may be stored.

    Example:
        try:
            await producer.send(Message(topic="orders", body=b"42"), timeout=0.0)
        except SendTimeoutError as error:
            print(error.maybe_stored)
    """
