"""Random numbers: every random choice is made here, so that a seed can repeat it."""

from __future__ import annotations

import random
from typing import Protocol


class Randomness(Protocol):
    """Makes random choices."""

    def below(self, limit: int) -> int:
        """Return a whole number from 0 to ``limit - 1``; ``limit`` is at least 1."""

    def fraction(self) -> float:
        """Return a number in [0, 1)."""

    def take_bytes(self, count: int) -> bytes:
        """Return ``count`` random bytes."""


class SystemRandomness:
    """Random numbers of the operating system."""

    def __init__(self) -> None:
        self._source: random.Random = random.SystemRandom()

    def below(self, limit: int) -> int:
        """Return a whole number from 0 to ``limit - 1``."""
        return self._source.randrange(limit)

    def fraction(self) -> float:
        """Return a number in [0, 1)."""
        return self._source.random()

    def take_bytes(self, count: int) -> bytes:
        """Return ``count`` random bytes."""
        return self._source.randbytes(count)


class SeededRandomness(SystemRandomness):
    """The same choices for the same seed.

    Args:
        seed: printed by the test, so that a failure can be repeated.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._source = random.Random(seed)
