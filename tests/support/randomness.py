"""Random choices of tests that a seed repeats."""

from __future__ import annotations

import random


class SeededRandomness:
    """The same choices for the same seed.

    Args:
        seed: printed by the test, so that a failure can be repeated.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._source = random.Random(seed)

    def below(self, limit: int) -> int:
        """Return a whole number from 0 to ``limit - 1``; ``limit`` is at least 1."""
        return self._source.randrange(limit)

    def fraction(self) -> float:
        """Return a number in [0, 1)."""
        return self._source.random()
