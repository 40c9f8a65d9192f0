"""Decides whether and when a failed send attempt is retried.

      an attempt fails
      │ policy allows no retry ─────────► the send fails
      │ retries are used up ────────────► the send fails
      │ each broker refuses for good ───► the send fails
      │ a broker has not failed since the last pause ──► attempt there, at once
      ▼ each broker has
      pause, each one about twice as long as the one before, and refresh an old route
      └─► attempt, if there is time

An attempt that could not connect has sent nothing, and a broker that responds SERVICE_NOT_AVAILABLE
while it stops has stored nothing, nor has one that responds NOT_LEADER_FOR_QUEUE: the queue of a
static topic has moved. None of them uses up a retry: a send waits for a broker that restarts, until
its deadline, even if the caller chose the queue.

A broker that stops, or is not the master any more, may have stored the message before, and says so.
That uses up a retry, as each attempt does that may store the message once more.

Closing the producer ends the pauses, and nothing is retried then.

Source: DefaultMQProducerImpl.sendDefaultImpl and MQClientAPIImpl.onExceptionImpl, RocketMQ 5.3.
There is no pause there, and all attempts use up a retry.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from cometmq.client.errors import (
    ClientClosedError,
    ClientError,
    SendAttempt,
    SendFailedError,
    SendTimeoutError,
)
from cometmq.client.settings import ProducerSettings
from cometmq.model.errors import CometError, ProtocolError, ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.refusals import is_stored, permanent_refusal
from cometmq.remoting import CallTimeoutError, ConnectError, TooManyCallsError
from cometmq.remoting.tasks import is_call_failure

CALL_S_MIN = 0.001
"""With less time left before the deadline no request is sent."""
SEND_BACK_OFF_S = 0.05
"""The longest first pause of a send; the actual pause is at least half of its longest."""
SEND_BACK_OFF_S_MAX = 0.5
"""The longest pause: how late a send may notice that its broker is back."""

_AWAY = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NOT_LEADER_FOR_QUEUE)
_NOT_SENT = (ConnectError, TooManyCallsError)


def loop_time() -> float:
    """Return the time of the running loop in seconds; deadlines use the same clock."""
    return asyncio.get_running_loop().time()


def seconds_left(deadline: float) -> float:
    """Return the seconds until a deadline, at least `CALL_S_MIN`."""
    return max(deadline - loop_time(), CALL_S_MIN)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a failed attempt is retried, and after which errors."""

    retries: int
    """Retries if the client chooses the queue."""
    fixed_retries: int
    """Retries if the caller chose the queue."""
    codes: frozenset[int]
    """Response codes that are retried."""
    retry_not_stored: bool
    """Whether a status other than ``SEND_OK`` is retried."""
    retry_when_full: bool
    """Whether an attempt is retried that met the limit on requests in flight."""
    refusal_counts_as_slow: bool = True
    """Whether a broker that refused counts as slow, if slow brokers are avoided."""
    waits_for_broker: bool = True
    """Whether a send waits until its deadline, without using up retries, for a broker that is away,
    and for a name server."""

    @classmethod
    def of_awaited(cls, settings: ProducerSettings) -> RetryPolicy:
        """The policy of a send whose caller waits for the receipt."""
        return cls(
            settings.retries, 0, settings.retried, settings.retry_not_stored, retry_when_full=True
        )

    @classmethod
    def of_started(cls, settings: ProducerSettings) -> RetryPolicy:
        """The policy of a send whose caller got a future: only network failures are retried."""
        return cls(
            settings.retries_async,
            settings.retries_async,
            frozenset(),
            retry_not_stored=False,
            retry_when_full=False,
            refusal_counts_as_slow=False,
        )

    def allows_retry(self, error: CometError) -> bool:
        """Whether an attempt that failed with this error may be retried."""
        if isinstance(error, ResponseError):
            return error.code in self.codes or (self.waits_for_broker and error.code in _AWAY)
        if isinstance(error, ProtocolError):  # the broker has stored the message
            return False
        return self.retry_when_full or not isinstance(error, TooManyCallsError)

    def waits_after(self, error: CometError | None) -> bool:
        """Whether a retry after this error waits for the broker, and is not counted."""
        return self.waits_for_broker and _is_away(error)


class Pauses:
    """The pauses of one producer's sends; closing the producer ends them."""

    def __init__(self) -> None:
        self.is_closed = False
        """Whether the producer is being closed, or was."""
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def sleep(self, seconds: float) -> None:
        """Pause for so long, or until the producer is closed."""
        if self.is_closed:
            return
        loop = asyncio.get_running_loop()
        end: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _end, end)
        self._waiting[end] = None
        try:
            await end
        finally:
            timer.cancel()
            self._waiting.pop(end, None)

    def close(self) -> None:
        """End every pause now, and all later ones at once."""
        self.is_closed = True
        for end in self._waiting:
            _end(end)


def _end(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)


class BackOff:
    """The growing pauses of one send.

    Args:
        deadline: of the send, by the loop's clock.
        pauses: the pauses of its producer.
    """

    __slots__ = ("_deadline", "_longest_s", "_pauses")

    def __init__(self, deadline: float, pauses: Pauses) -> None:
        self._deadline = deadline
        self._pauses = pauses
        self._longest_s = SEND_BACK_OFF_S

    async def pause(self) -> None:
        """Pause, at most until the deadline."""
        pause_s = self._longest_s * random.uniform(0.5, 1.0)
        self._longest_s = min(2 * self._longest_s, SEND_BACK_OFF_S_MAX)
        await self._pauses.sleep(min(pause_s, self._deadline - loop_time()))

    def is_time_left(self) -> bool:
        """Whether time is left; a call may time out less than `CALL_S_MIN` before the deadline."""
        return self._deadline - loop_time() >= CALL_S_MIN


class SendAttempts:
    """The failed attempts of one send: decides about the next attempt and makes the final error.

    Args:
        topic: named in the error.
        policy: when to retry.
        back_off: the pauses of the send.
        is_fixed: whether the caller chose the queue.
    """

    __slots__ = (
        "_back_off",
        "_left",
        "_policy",
        "_topic",
        "failed",
        "failed_brokers",
        "has_failed",
        "is_written",
        "refused_brokers",
    )

    def __init__(
        self, topic: str, policy: RetryPolicy, back_off: BackOff, *, is_fixed: bool
    ) -> None:
        self._topic = topic
        self._policy = policy
        self._back_off = back_off
        self._left = policy.fixed_retries if is_fixed else policy.retries
        self.failed: list[SendAttempt] = []
        """Failed attempts in order; only the last one for each broker that was away."""
        self.failed_brokers: set[str] = set()
        """Brokers that failed since the last pause."""
        self.refused_brokers: set[str] = set()
        """Brokers that would refuse every further attempt, too."""
        self.has_failed = False
        """Whether an attempt has failed."""
        self.is_written = False
        """Whether the request of a running attempt may have been written to a connection."""

    def fail(self, broker: str, error: CometError | None) -> bool:
        """Record a failed attempt; return whether it may be retried.

        Args:
            broker: its broker.
            error: why; None if the broker stored the message with a status other than ``SEND_OK``.
        """
        self.failed_brokers.add(broker)
        self.has_failed, self.is_written = True, False
        if error is not None:
            if _is_away(error):
                self.failed = [
                    each
                    for each in self.failed
                    if each.broker_name != broker or not _is_away(each.error)
                ]
            self.failed.append(attempt_of(broker, error))
            if permanent_refusal(error) is not None:
                self.refused_brokers.add(broker)
            if not self._policy.allows_retry(error):
                return False
        if not self._policy.waits_after(error):
            self._left -= 1
        return self._left >= 0

    async def pause(self) -> None:
        """Pause before a retry; after that each broker may be tried again."""
        await self._back_off.pause()
        self.failed_brokers.clear()

    def is_time_left(self) -> bool:
        """Whether there is time for one more attempt."""
        return self._back_off.is_time_left()

    def error(self) -> CometError:
        """Return the one error that describes all failed attempts."""
        last = self.failed[-1].error if self.failed else None
        if isinstance(last, ResponseError) and not is_stored(last):
            for attempt in self.failed[:-1]:
                state = "may be stored" if attempt.maybe_stored else "not stored"
                last.add_note(f"an earlier attempt failed, {state}: {attempt}")
            return last
        if self._back_off.is_time_left() and not isinstance(last, CallTimeoutError):
            return SendFailedError(self._topic, self.failed)
        return SendTimeoutError(self._topic, self.failed)

    def closed_error(self) -> ClientClosedError:
        """Return the error of this send if its producer was closed before it ended."""
        return closed_error(
            maybe_stored=self.is_written or any(attempt.maybe_stored for attempt in self.failed)
        )


def attempt_of(broker: str, error: CometError) -> SendAttempt:
    """Describe a failed attempt, and whether it may have stored the message."""
    maybe_stored = is_stored(error) or not isinstance(error, (ResponseError, *_NOT_SENT))
    return SendAttempt(broker, error, maybe_stored)


def closed_error(*, maybe_stored: bool) -> ClientClosedError:
    """Return the error of a send that had not ended when its producer was closed."""
    if maybe_stored:
        return ClientClosedError("the producer was closed: the message may be stored")
    return ClientClosedError("not sent: the producer was closed")


def cancellation_error(error: asyncio.CancelledError) -> ClientError:
    """Return the error of a send whose selector or hook raised `CancelledError`.

    Raises:
        CancelledError: it is the cancellation of this task.
    """
    if not is_call_failure(error):
        raise error
    failure = ClientError("not sent: a selector or a hook raised CancelledError")
    failure.__cause__ = error
    return failure


def _is_away(error: CometError | None) -> bool:
    """Whether the broker cannot be reached, or stops, or a queue of a static topic has moved.

    The message is not stored.
    """
    if isinstance(error, ResponseError):
        return error.code in _AWAY and not is_stored(error)
    return isinstance(error, ConnectError)
