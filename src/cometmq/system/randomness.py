"""The randomness seam: every choice by chance goes through here, so that a seed can replay it.

Source: ours.
"""

from __future__ import annotations

import random
from typing import Protocol


class Randomness(Protocol):
    """Makes choices by chance."""

    def below(self, limit: int) -> int:
        """Return a whole number from 0 to ``limit - 1``; ``limit`` is at least 1."""

    def fraction(self) -> float:
        """Return a number in [0, 1)."""

    def take_bytes(self, count: int) -> bytes:
        """Return ``count`` bytes by chance."""


class SystemRandomness:
    """The operating system's randomness; never the same twice."""

    def __init__(self) -> None:
        self._source: random.Random = random.SystemRandom()

    def below(self, limit: int) -> int:
        """Return a whole number from 0 to ``limit - 1``."""
        return self._source.randrange(limit)

    def fraction(self) -> float:
        """Return a number in [0, 1)."""
        return self._source.random()

    def take_bytes(self, count: int) -> bytes:
        """Return ``count`` bytes by chance."""
        return self._source.randbytes(count)


class SeededRandomness(SystemRandomness):
    """The same choices again for the same seed.

    Args:
        seed: printed by whoever uses it, so that a failure can be replayed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._source = random.Random(seed)
