"""Simulated clusters with a static topic, whose queues an operator moves all the time."""

from __future__ import annotations

import pytest

from simulation.kernel import UNCLOSED
from simulation.layouts import STATIC, STATIC_LOST
from simulation.world import simulate
from support.runner.tiers import rounds

pytestmark = pytest.mark.filterwarnings(UNCLOSED)

SEEDS = (*range(rounds(test=4, long=400)), 52, 108)
"""In 52 a broker names the end of a queue that it has lost in an earlier move. In 108 a broker
comes back with an item of a move that was given up."""


def test_messages_survive_moves_of_queues_and_everything_else() -> None:
    moves = 0
    for seed in SEEDS:
        history = simulate(seed, layout=STATIC)
        assert history.failures == [], seed
        moves += history.faults["moves"]
    assert moves > 2 * len(SEEDS)


def test_the_messages_of_a_lost_master_are_read_from_its_slave() -> None:
    for seed in range(rounds(test=2, long=200)):
        history = simulate(seed, layout=STATIC_LOST)
        assert history.failures == [], seed
