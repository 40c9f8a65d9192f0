"""The client's own errors: what went wrong, and what is true of the message then.

CometError
├── InvalidMessageError        breaks a limit: nothing was sent            (model.errors)
├── InvalidNameError           a name breaks the rules: nothing was sent   (model.errors)
├── ResponseError              the broker refused it: not stored           (model.errors)
├── ClientError
│   ├── ClientClosedError      the client was not started, or was closed already
│   ├── TopicNotFoundError     no broker serves the topic: nothing was sent
│   └── QueueNotFoundError     the topic has no such queue: nothing was sent
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
    """The client cannot do what was asked."""


class ClientClosedError(ClientError):
    """The client is not running: it was never started, or it was closed."""


class TopicNotFoundError(ClientError):
    """No broker serves the topic; nothing was sent.

    Args:
        topic: the topic that was asked for.
        why: what the name server said, or what its route lacks.
    """

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(f"no broker serves topic {topic}: {why}")
        self.topic = topic


class QueueNotFoundError(ClientError):
    """The topic has no such queue, or nobody serves it now; nothing was sent."""


class NameServerError(RemotingError):
    """No name server answered; the message names every address that was tried."""


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """One try of a send: the broker it went to, and how it failed."""

    broker_name: str
    error: CometError
    maybe_stored: bool
    """Whether the request may have reached the broker before the try failed."""

    def __str__(self) -> str:
        return f"{self.broker_name}: {type(self.error).__name__}: {self.error}"


class SendFailedError(RemotingError):
    """Every try of a send failed for want of an answer.

    Args:
        topic: where the message was to go.
        attempts: the tries in order; empty if time ran out before the first.

    ``maybe_stored`` is False when no try reached a broker; otherwise the message is perhaps
    stored and sending it again may duplicate it.
    """

    def __init__(self, topic: str, attempts: Sequence[SendAttempt]) -> None:
        tries = "; ".join(str(attempt) for attempt in attempts) or "no time for a first try"
        super().__init__(f"sending to {topic} failed after {len(attempts)} tries: {tries}")
        self.topic = topic
        self.attempts = tuple(attempts)
        self.maybe_stored = any(attempt.maybe_stored for attempt in attempts)


class SendTimeoutError(SendFailedError):
    """The time for a send ran out; see ``maybe_stored`` for what became of the message."""
