"""When a message is redelivered whose handler has failed, and when it becomes a dead letter."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from cometmq.client.errors import ConsumeLater
from cometmq.model.message import StoredMessage

DEAD_LETTER = -1


class Retry(Protocol):
    """Decides over a failed message. Without one, the retries of the group's brokers count."""

    def delay_s(self, attempt: int) -> float | None:
        """Return the seconds until the next attempt, or None to dead-letter the message.

        Args:
            attempt: how often it was delivered so far, at least 1.
        """


class NoRetry:
    """A failed message is a dead letter at once."""

    def delay_s(self, attempt: int) -> float | None:
        """Return None."""
        return None


@dataclass(frozen=True)
class ConstantRetry:
    """The same delay before each redelivery, ``delay`` seconds."""

    delay: float
    attempts_max: int = field(default=16, kw_only=True)
    """Deliveries in all; the last failure makes it a dead letter."""

    def delay_s(self, attempt: int) -> float | None:
        """Return the delay, or None after the last attempt."""
        return None if attempt >= self.attempts_max else self._after(attempt - 1)

    def _after(self, redeliveries: int) -> float:
        return self.delay


@dataclass(frozen=True)
class LinearRetry(ConstantRetry):
    """A delay that grows by ``step`` seconds each time."""

    step: float

    def _after(self, redeliveries: int) -> float:
        return self.delay + self.step * redeliveries


@dataclass(frozen=True)
class ExponentialRetry(ConstantRetry):
    """A delay that is multiplied by ``factor`` each time, up to ``delay_max`` seconds."""

    factor: float = 2.0
    delay_max: float = 7200.0
    jitter: float = 0.0
    """The share of the delay by which it is longer or shorter at random, 0 to 1."""

    def _after(self, redeliveries: int) -> float:
        factor = self.factor ** min(redeliveries, 64)  # more only overflows
        return min(self.delay * factor, self.delay_max) * (1 + self.jitter * random.uniform(-1, 1))


class Retrying:
    """A handler whose failed messages are redelivered as a policy says.

    A `ConsumeLater` of the handler goes before the policy. A `PushConsumer` has delays as levels of
    the broker, see there; a `PopConsumer` keeps to them.

    Args:
        handler: an ``async def`` function that gets one message.
        retry: the policy.

    Example:
        handler = Retrying(bill, ExponentialRetry(1, attempts_max=5))
        consumer = PushConsumer(name_server, group="billing", topic="orders", handler=handler)
    """

    def __init__(self, handler: Callable[[StoredMessage], Awaitable[None]], retry: Retry) -> None:
        self._handler = handler
        self._retry = retry

    async def __call__(self, message: StoredMessage) -> None:
        """Call the handler.

        Raises:
            ConsumeLater: it has failed.
        """
        try:
            await self._handler(message)
        except ConsumeLater:
            raise
        except Exception as error:
            delay_s = self._retry.delay_s(message.reconsume_times + 1)
            if delay_s is None:
                raise ConsumeLater(delay_level=DEAD_LETTER) from error
            raise ConsumeLater(delay=delay_s) from error
