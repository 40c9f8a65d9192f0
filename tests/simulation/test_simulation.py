"""Simulated clusters: no seed loses, repeats beyond the promise, reorders or invents a message."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.client.offsets import RemoteOffsetStore
from cometmq.store.recovery import Recovery, Redispatched
from simulation.world import SimulatedCommit, simulate
from support.tiers import rounds

REPLAY = Path(__file__).with_name("replay.py")
SEEDS = rounds(test=500, long=10_000)
PARTS = rounds(test=10, long=200)
PLANTED_SEEDS = 40
"""So many worlds are enough to find each planted bug."""


@pytest.mark.parametrize("part", range(PARTS))
def test_messages_survive_everything_that_happens_to_a_cluster(part: int) -> None:
    wrong = []
    for seed in range(part, SEEDS, PARTS):
        if failures := simulate(seed).failures:
            wrong.append(f"python tests/simulation/{REPLAY.name} {seed}: {failures[:5]}")
    assert not wrong, f"{len(wrong)} of {SEEDS // PARTS} seeds:\n" + "\n".join(wrong[:20])


def test_a_seed_gives_the_same_history_in_every_process() -> None:
    for seed in (0, 17):
        digests = {simulate(seed).digest(), simulate(seed).digest()}
        for hash_seed in ("1", "2"):
            command = [sys.executable, str(REPLAY), str(seed), "--digest"]
            variables = os.environ | {"PYTHONHASHSEED": hash_seed}
            done = subprocess.run(command, env=variables, capture_output=True, check=True)
            digests.add(done.stdout.decode().strip())
        assert len(digests) == 1, f"seed {seed}: {digests}"


def acknowledge_before_the_sync(wait: Any) -> Any:
    def early(self: SimulatedCommit, log_offset_end: int, on_outcome: Any) -> None:
        wait(self, log_offset_end, lambda is_synced, error: None)
        on_outcome(True, None)

    return early


def commit_before_handled(update: Any) -> Any:
    def early(self: RemoteOffsetStore, queue: Any, offset: int, **options: Any) -> None:
        update(self, queue, offset + 2, **options)

    return early


def leave_the_end_out_of_the_queues(redispatch: Any) -> Any:
    def short(self: Recovery, start: int, end: int) -> Redispatched:
        done: Redispatched = redispatch(self, start, max(start, end - 400))
        return done

    return short


PLANTED: dict[str, tuple[type, str, Callable[[Any], Any]]] = {
    "acknowledges before the sync": (SimulatedCommit, "wait", acknowledge_before_the_sync),
    "commits two messages ahead": (RemoteOffsetStore, "update", commit_before_handled),
    "leaves queues short": (Recovery, "_redispatch", leave_the_end_out_of_the_queues),
}
"""What is replaced, and by what, given the original."""


@pytest.mark.parametrize("bug", PLANTED)
def test_the_simulation_finds_planted_bugs(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, replacement = PLANTED[bug]
    monkeypatch.setattr(owner, name, replacement(getattr(owner, name)))
    for seed in range(PLANTED_SEEDS):
        if failures := simulate(seed).failures:
            print(f"{bug}: found by seed {seed}: {failures[0]}")
            return
    pytest.fail(f"{PLANTED_SEEDS} seeds have not found it")
