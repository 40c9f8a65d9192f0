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
        source = random.Random(seed)
        self._bits = source.getrandbits
        self.fraction = source.random
        """Returns a number in [0, 1)."""

    def below(self, limit: int) -> int:
        """Return a whole number from 0 to ``limit - 1``; ``limit`` is at least 1."""
        bits = limit.bit_length()
        drawn = self._bits(bits)
        while drawn >= limit:
            drawn = self._bits(bits)
        return drawn
