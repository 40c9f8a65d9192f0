"""What one failed try of a send means: whether there is another, and what is true of the message.

Source: DefaultMQProducerImpl.sendDefaultImpl and MQClientAPIImpl.onExceptionImpl, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.client.errors import SendAttempt, SendFailedError, SendTimeoutError
from cometmq.model.errors import CometError, RemotingError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.remoting import CallTimeoutError, ConnectError, TooManyCallsError

_NOT_SENT = (ConnectError, TooManyCallsError)


class NoMasterError(ConnectError):
    """The broker has no master now; not sent."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What is done when a try fails."""

    retries: int
    """Further tries where the queue is free to choose."""
    fixed_retries: int
    """Further tries where the caller has chosen the queue."""
    codes: frozenset[int]
    """Refusals after which there is another try."""
    retry_not_stored: bool
    """Whether there is another try when a message is not stored as safely as wanted."""
    retry_too_many: bool
    """Whether there is another try when too many calls wait already."""
    avoid_refusing: bool = True
    """Whether a broker that refused is left alone, where brokers are avoided at all."""

    def allows_another(self, error: CometError) -> bool:
        """Whether a try that ended like this may be followed by another."""
        if isinstance(error, ResponseError):
            return error.code in self.codes
        return self.retry_too_many or not isinstance(error, TooManyCallsError)


def attempt_of(target: MessageQueue, error: CometError) -> SendAttempt:
    """Note how a try failed, and whether it may have stored the message all the same."""
    maybe_stored = isinstance(error, RemotingError) and not isinstance(error, _NOT_SENT)
    return SendAttempt(target.broker_name, error, maybe_stored)


def final_error(topic: str, attempts: list[SendAttempt], *, in_time: bool) -> CometError:
    """QueuePicker the failed tries into the one error that tells of all of them."""
    last = attempts[-1].error if attempts else None
    if isinstance(last, ResponseError):
        for attempt in attempts[:-1]:
            state = "may be stored" if attempt.maybe_stored else "not stored"
            last.add_note(f"an earlier attempt failed, {state}: {attempt}")
        return last
    if in_time and not isinstance(last, CallTimeoutError):
        return SendFailedError(topic, attempts)
    return SendTimeoutError(topic, attempts)
