"""When a message is redelivered whose handler has failed, and when it becomes a dead letter."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol


class Retry(Protocol):
    """Decides over a failed message. Without one, the retries of the group's brokers count."""

    def delay_s(self, attempt: int) -> float | None:
        """Return the seconds until the next attempt, or None to dead-letter the message.

        Args:
            attempt: how often it was delivered so far, at least 1.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoRetry:
    """A failed message is a dead letter at once."""

    def delay_s(self, attempt: int) -> float | None:
        """Return None."""
        return None


@dataclass(frozen=True, slots=True)
class ConstantRetry:
    """The same delay before each attempt."""

    delay: float
    """Seconds."""
    attempts_max: int = 16
    """Deliveries in all; the last failure makes it a dead letter."""

    def delay_s(self, attempt: int) -> float | None:
        """Return the delay, or None after the last attempt."""
        return None if attempt >= self.attempts_max else self.delay


@dataclass(frozen=True, slots=True)
class LinearRetry:
    """A delay that grows by the same step."""

    delay: float
    """Seconds before the second attempt."""
    step: float
    """Seconds more before each further one."""
    attempts_max: int = 16
    """Deliveries in all; the last failure makes it a dead letter."""

    def delay_s(self, attempt: int) -> float | None:
        """Return the delay, or None after the last attempt."""
        if attempt >= self.attempts_max:
            return None
        return self.delay + self.step * (attempt - 1)


@dataclass(frozen=True, slots=True)
class ExponentialRetry:
    """A delay that is multiplied each time."""

    delay: float
    """Seconds before the second attempt."""
    factor: float = 2.0
    delay_max: float = 7200.0
    """Seconds at most."""
    attempts_max: int = 16
    """Deliveries in all; the last failure makes it a dead letter."""
    jitter: float = 0.0
    """The share of the delay by which it is longer or shorter at random, 0 to 1."""

    def delay_s(self, attempt: int) -> float | None:
        """Return the delay, or None after the last attempt."""
        if attempt >= self.attempts_max:
            return None
        exponent = min(attempt - 1, 64)  # more only overflows
        delay = min(self.delay * self.factor**exponent, self.delay_max)
        return delay * (1 + self.jitter * random.uniform(-1, 1))
