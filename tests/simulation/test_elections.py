"""Replicas of one log elect, are cut off and are killed: nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cometmq.broker.failover.epochs.acknowledgements import EpochAcknowledgements
from cometmq.broker.failover.epochs.epoch_file import EpochFile
from cometmq.broker.failover.epochs.in_sync import InSyncSet
from cometmq.broker.failover.epochs.replication import EpochReplication
from cometmq.broker.failover.epochs.slave import EpochMasterConnection
from cometmq.controller import broker_set
from cometmq.controller.broker_log_states import Event as LogEvent
from cometmq.store import CONFIRMS_ALL
from simulation.elections import Elections
from support.runner.tiers import rounds

SEEDS = rounds(test=40, long=4000)
PLANTED_SEEDS = 70
"""These worlds are enough to find each planted bug; the first that finds the rarest is 61."""
LOSES_POWER = "all members, at least two, disks that lose what was not synced"
PUTS_BACK = "all members, at least two, stores that are put back"
KINDS: dict[str, dict[str, Any]] = {
    "all members acknowledge": {},
    "all members, at least two": {"least": 2},
    "all members, disks that lose power": {"syncs": True},
    LOSES_POWER: {"least": 2, "loses_power": True},
    PUTS_BACK: {"least": 2, "puts_back": True},
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
    assert truncated > SEEDS / 8
    assert acknowledged > 20 * SEEDS


def test_logs_that_masters_of_rocketmq_let_diverge_become_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = EpochFile.begin

    def begin_like_rocketmq(self: EpochFile, number: int, start: int) -> None:
        if not self.epochs or self.epochs[-1].start != start:
            begin(self, number, start)

    monkeypatch.setattr(EpochFile, "begin", begin_like_rocketmq)
    for seed in range(SEEDS):
        world = Elections(seed, acks_all=False)
        assert not (failures := world.run()), f"seed {seed}: {failures[:5]}"


def keep_the_end(self: EpochMasterConnection, point: int) -> None:
    """Do not truncate on rejoin."""


def confirm_all(self: EpochReplication) -> None:
    assert self.in_sync is not None
    self.in_sync.written(self._store.written_to)
    self._store.confirm(CONFIRMS_ALL)


def trust_all(_names: object, *, is_known: bool) -> LogEvent:
    """Take every log that returns for the one that was there."""
    return LogEvent.STARTED


def wait_on(self: EpochAcknowledgements) -> None:
    """Do not end the waits of sends when another master is elected."""


PLANTED: dict[str, tuple[Any, str, Callable[..., object]]] = {
    "no truncation on rejoin": (EpochMasterConnection, "_truncate", keep_the_end),
    "confirms what members lack": (EpochReplication, "_confirm", confirm_all),
    "acknowledges as an old master": (EpochAcknowledgements, "end_all", wait_on),
    "forgets requests without a response": (InSyncSet, "unanswered", InSyncSet.refused),
    "elects a log that lost its end": (broker_set, "_start_event", trust_all),
    "elects a store that was put back": (broker_set, "_start_event", trust_all),
}
"""What is replaced, and by what."""
PLANTED_KINDS = {
    "elects a log that lost its end": LOSES_POWER,
    "elects a store that was put back": PUTS_BACK,
}
"""The worlds that show them; others are those in which all members acknowledge."""
FIRST_SEEDS = {"forgets requests without a response": 340}
"""Where the search begins for a bug that few worlds show; for others at 50."""


@pytest.mark.parametrize("bug", PLANTED)
def test_the_simulation_finds_planted_bugs(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[bug])
    kind = KINDS[PLANTED_KINDS.get(bug, "all members acknowledge")]
    first = FIRST_SEEDS.get(bug, 50)
    for seed in range(first, first + PLANTED_SEEDS):
        if failures := Elections(seed, **kind).run():
            print(f"{bug}: found by seed {seed}: {failures[0]}")
            return
    pytest.fail("no seed has found it")
