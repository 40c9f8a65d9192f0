"""Random choices: within their limits, and the same again for the same seed."""

from __future__ import annotations

from support.checks.randomness import SeededRandomness


def test_choices_stay_in_their_limits() -> None:
    source = SeededRandomness(1)
    assert {source.below(3) for _ in range(300)} == {0, 1, 2}
    assert all(0 <= source.fraction() < 1 for _ in range(300))


def choices(seed: int) -> list[object]:
    source = SeededRandomness(seed)
    return [source.below(1000), source.fraction(), source.seed]


def test_a_seed_repeats_its_choices() -> None:
    assert choices(7) == choices(7)
    assert choices(7) != choices(8)
