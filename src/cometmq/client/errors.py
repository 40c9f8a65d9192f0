"""The client's own errors: what went wrong, and what is true of the message then.

CometError
├── InvalidMessageError        breaks a limit: nothing was sent            (model.errors)
├── InvalidNameError           a name breaks the rules: nothing was sent   (model.errors)
├── ResponseError              the broker refused it: not stored           (model.errors)
├── ClientError
│   ├── ClientClosedError      the client was not started, or was closed already
│   ├── TopicNotFoundError     no broker serves the topic: nothing was sent
│   ├── QueueNotFoundError     the topic has no such queue: nothing was sent
│   ├── BackPressureError      too much is being sent already: nothing was sent
│   ├── ReplyError             the request was delivered, or may have been, and no reply came
│   │   └── ReplyTimeoutError  no reply came in time
│   ├── WrongModeError         subscribed and assigned queues do not mix
│   ├── NotAssignedError       the queue is not this consumer's
│   ├── OffsetRangeError       the queue does not reach to this offset
│   ├── ReceiptExpiredError    the message is not in flight any more: nothing changed
│   └── KeyMissingError        the message has no key to tell it from others: nothing was written
├── ConsumeLater               raised by handlers: deliver this message again
└── RemotingError
    ├── NameServerError        no name server answered
    └── SendFailedError        no broker answered; ``maybe_stored`` tells the rest
        └── SendTimeoutError   the time ran out before an answer came

Source: ours; RocketMQ folds these into MQClientException and its codes 10001 to 10005.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cometmq.model.errors import CometError, RemotingError


class ClientError(CometError):
    """The base of the client's own errors."""


class ClientClosedError(ClientError):
    """The client is not running: it was not started, or it was closed.

    Nothing was sent, but for sends that had begun when a producer was closed: their text says that
    the message may be stored.
    """


class TopicNotFoundError(ClientError):
    """No broker has the topic; not sent.

    Args:
        topic: the topic that was asked for.
        why: what the name server said, or what its route lacks.
    """

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(f"no broker serves topic {topic}: {why}")
        self.topic = topic


class QueueNotFoundError(ClientError):
    """The topic has no such queue, or no broker serves it now; not sent."""


class BackPressureError(ClientError):
    """A limit on messages or requests in flight is reached; not sent."""


class ReplyError(ClientError):
    """A request got no reply; a consumer may have processed it."""


class ReplyTimeoutError(ReplyError):
    """No reply in time; a later reply is dropped."""


class WrongModeError(ClientError):
    """The consumer uses `assign`, and this call needs `subscribe`, or the reverse."""


class NotAssignedError(ClientError):
    """The queue is not assigned to this consumer."""


class OffsetRangeError(ClientError):
    """The offset is outside the queue; nothing moved."""


class ReceiptExpiredError(ClientError):
    """The message is not in flight at this `SimpleConsumer`: nothing was acknowledged or changed.

    It was acknowledged or put off before, its invisible time is over, or another consumer received
    it.

    Args:
        message_id: of the message.
        why: why its receipt is of no use.
    """

    def __init__(self, message_id: str, why: str) -> None:
        super().__init__(f"message {message_id} cannot be settled: {why}")
        self.message_id = message_id


class KeyMissingError(ClientError):
    """A message for `Idempotent` has no key; nothing was written, and it is redelivered.

    Args:
        message_id: of the message.
    """

    def __init__(self, message_id: str) -> None:
        super().__init__(
            f"message {message_id} has no key: its producer must give it one, or set "
            "Idempotent(key=...)"
        )
        self.message_id = message_id


class ConsumeLater(CometError):  # noqa: N818 - an order, not a failure
    """Raised by a handler: redeliver the message later, without logging an error.

    Args:
        delay_level: a level of the broker; 0 to let it choose, -1 for a dead letter at once.
        suspend_ms: when consuming in order, the pause of the queue; None for the settings' one.
    """

    def __init__(self, *, delay_level: int = 0, suspend_ms: int | None = None) -> None:
        super().__init__(f"consume later: delay level {delay_level}")
        self.delay_level = delay_level
        self.suspend_ms = suspend_ms


class NameServerError(RemotingError):
    """No name server responded; the message lists every address that was tried."""


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """One failed attempt of a send: its broker and its error."""

    broker_name: str
    """The broker of the attempt."""
    error: CometError
    """The error that ended it."""
    maybe_stored: bool
    """Whether the request may have reached the broker before the attempt failed."""

    def __str__(self) -> str:
        return f"{self.broker_name}: {type(self.error).__name__}: {self.error}"


class SendFailedError(RemotingError):
    """Every attempt of a send failed without a response.

    Args:
        topic: where the message was to go.
        attempts: the tries in order; empty if time ran out before the first.

    ``maybe_stored`` is False when no try reached a broker; otherwise the message is perhaps
    stored and sending it again may duplicate it.
    """

    def __init__(self, topic: str, attempts: Sequence[SendAttempt]) -> None:
        tries = "; ".join(str(attempt) for attempt in attempts) or "no time for a first attempt"
        super().__init__(f"sending to {topic} failed after {len(attempts)} attempts: {tries}")
        self.topic = topic
        self.attempts = tuple(attempts)
        self.maybe_stored = any(attempt.maybe_stored for attempt in attempts)


class SendTimeoutError(SendFailedError):
    """The send timed out; ``maybe_stored`` says whether the message may be stored."""
