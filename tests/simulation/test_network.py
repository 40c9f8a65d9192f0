"""The simulated network: what a world does not leave to the next one."""

from __future__ import annotations

from contextlib import closing

from simulation.kernel import Process, SimulatedLoop
from simulation.network import Listener, Network
from support.checks.randomness import SeededRandomness


def test_sockets_of_earlier_worlds_are_not_open_in_the_next() -> None:
    """Else a server counts them, and refuses connections after some hundreds of worlds."""
    descriptors = []
    for seed in range(2):
        with closing(SimulatedLoop(SeededRandomness(seed))) as loop:
            listener = Listener(Network(loop), Process(loop, "server", "10.0.0.1"), 80)
            descriptors.append(listener.fileno())

    assert descriptors[0] == descriptors[1]
