"""What a failed attempt of a send means: whether another one follows, and what the caller gets.

Source: DefaultMQProducerImpl.sendDefaultImpl and MQClientAPIImpl.onExceptionImpl, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.client.errors import SendAttempt, SendFailedError, SendTimeoutError
from cometmq.client.settings import ProducerSettings
from cometmq.model.errors import CometError, RemotingError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.remoting import CallTimeoutError, ConnectError, TooManyCallsError

_NOT_SENT = (ConnectError, TooManyCallsError)


class NoMasterError(ConnectError):
    """The broker has no master now; not sent."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a failed attempt is repeated, and after which errors."""

    retries: int
    """Further attempts if any queue will do."""
    fixed_retries: int
    """Further attempts if the caller has chosen the queue."""
    codes: frozenset[int]
    """Response codes after which there is another attempt."""
    retry_not_stored: bool
    """Whether another attempt follows a status other than ``SEND_OK``."""
    retry_too_many: bool
    """Whether another attempt follows if too many requests are in flight already."""
    avoid_refusing: bool = True
    """Whether a broker that refused counts as slow, if slow brokers are avoided."""

    @classmethod
    def of_awaited(cls, settings: ProducerSettings) -> RetryPolicy:
        """The policy of a send whose caller waits for the receipt."""
        return cls(
            settings.retries, 0, settings.retried, settings.retry_not_stored, retry_too_many=True
        )

    @classmethod
    def of_started(cls, settings: ProducerSettings) -> RetryPolicy:
        """The policy of a send whose caller got a future: only network failures are retried."""
        return cls(
            settings.retries_async,
            settings.retries_async,
            frozenset(),
            retry_not_stored=False,
            retry_too_many=False,
            avoid_refusing=False,
        )

    def allows_another(self, error: CometError) -> bool:
        """Whether another attempt may follow one with this error."""
        if isinstance(error, ResponseError):
            return error.code in self.codes
        return self.retry_too_many or not isinstance(error, TooManyCallsError)


def attempt_of(target: MessageQueue, error: CometError) -> SendAttempt:
    """Describe a failed attempt, and whether it may have stored the message."""
    maybe_stored = isinstance(error, RemotingError) and not isinstance(error, _NOT_SENT)
    return SendAttempt(target.broker_name, error, maybe_stored)


def final_error(topic: str, attempts: list[SendAttempt], *, in_time: bool) -> CometError:
    """Return the one error that describes all failed attempts."""
    last = attempts[-1].error if attempts else None
    if isinstance(last, ResponseError):
        for attempt in attempts[:-1]:
            state = "may be stored" if attempt.maybe_stored else "not stored"
            last.add_note(f"an earlier attempt failed, {state}: {attempt}")
        return last
    if in_time and not isinstance(last, CallTimeoutError):
        return SendFailedError(topic, attempts)
    return SendTimeoutError(topic, attempts)
