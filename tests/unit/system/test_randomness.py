"""Chance: in its limits, and the same again for the same seed."""

from __future__ import annotations

import pytest

from cometmq.system.randomness import Randomness, SeededRandomness, SystemRandomness


@pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(1)])
def test_choices_stay_in_their_limits(source: Randomness) -> None:
    assert {source.below(3) for _ in range(300)} == {0, 1, 2}
    assert all(0 <= source.fraction() < 1 for _ in range(300))
    assert len(source.take_bytes(17)) == 17
    assert source.take_bytes(0) == b""


def choices(seed: int) -> list[object]:
    source = SeededRandomness(seed)
    return [source.below(1000), source.fraction(), source.take_bytes(8), source.seed]


def test_a_seed_replays_its_choices() -> None:
    assert choices(7) == choices(7)
    assert choices(7) != choices(8)
