"""When a message is redelivered whose handler has failed, and when it becomes a dead letter."""

from __future__ import annotations

import random
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Protocol


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
class _LimitedRetry:
    """Ends after a number of deliveries."""

    delay: float
    """Seconds before the second delivery."""
    attempts_max: int = field(default=16, kw_only=True)
    """Deliveries in all; the last failure makes it a dead letter."""

    def delay_s(self, attempt: int) -> float | None:
        """Return the delay, or None after the last attempt."""
        return None if attempt >= self.attempts_max else self._after(attempt - 1)

    @abstractmethod
    def _after(self, redeliveries: int) -> float: ...


@dataclass(frozen=True)
class ConstantRetry(_LimitedRetry):
    """The same delay before each redelivery."""

    def _after(self, redeliveries: int) -> float:
        return self.delay


@dataclass(frozen=True)
class LinearRetry(_LimitedRetry):
    """A delay that grows by ``step`` seconds each time."""

    step: float

    def _after(self, redeliveries: int) -> float:
        return self.delay + self.step * redeliveries


@dataclass(frozen=True)
class ExponentialRetry(_LimitedRetry):
    """A delay that is multiplied by ``factor`` each time, up to ``delay_max`` seconds."""

    factor: float = 2.0
    delay_max: float = 7200.0
    jitter: float = 0.0
    """The share of the delay by which it is longer or shorter at random, 0 to 1."""

    def _after(self, redeliveries: int) -> float:
        factor = self.factor ** min(redeliveries, 64)  # more only overflows
        delay = min(self.delay * factor, self.delay_max)
        return delay * (1 + self.jitter * random.uniform(-1, 1))
