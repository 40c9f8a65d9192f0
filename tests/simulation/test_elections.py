"""Replicas of one log that elect, cut off and kill masters: nothing acknowledged is lost."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.elections import Elections
from support.tiers import rounds

SEEDS = rounds(test=40, long=4000)
KINDS: dict[str, dict[str, Any]] = {
    "all members acknowledge": {},
    "all members, at least two": {"least": 2},
    "all members, disks that lose power": {"syncs": True},
    "no member acknowledges": {"acks_all": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_replicas_become_equal_and_nothing_acknowledged_is_lost(kind: str) -> None:
    wrong = []
    truncated = acknowledged = 0
    for seed in range(SEEDS):
        world = Elections(seed, **KINDS[kind])
        if failures := world.run():
            wrong.append(f"seed {seed}: {failures[:5]}")
        truncated += world.truncated
        acknowledged += len(world.acknowledged)
    assert not wrong, f"{len(wrong)} of {SEEDS} seeds:\n" + "\n".join(wrong[:20])
    assert truncated > SEEDS / 4
    assert acknowledged > 20 * SEEDS
