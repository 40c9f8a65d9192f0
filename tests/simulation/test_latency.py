"""A send that waits for the disk and for a slave takes as long as the slower one, not as both."""

from __future__ import annotations

import asyncio
from statistics import median

import pytest

from cometmq.broker.durability.group_commit import GroupCommit
from cometmq.client import Message, Producer, SendStatus
from simulation.kernel import PROCESS, UNCLOSED
from simulation.layouts import LAYOUTS
from simulation.machines import TOPIC, SimulatedCommit
from simulation.replacements import replaced
from simulation.world import World

pytestmark = pytest.mark.filterwarnings(UNCLOSED)

LAYOUT = next(layout for layout in LAYOUTS if layout.name == "synchronous slave")
SENDS = 20
NETWORK_S = 0.1
"""More than the simulated network takes for a send and its copy, mostly."""


class Sends(World):
    """One send after another to a synchronous master with a slave, without faults.

    Args:
        sync_s: how long each sync takes, by the name of the process.
    """

    def __init__(self, sync_s: dict[str, float]) -> None:
        super().__init__(1, layout=LAYOUT)
        self.sync_s = sync_s
        self.took_s: list[float] = []

    async def _direct(self) -> None:
        for machine in self.machines:
            machine.start()
        process = self.process("producer", self.new_ip())
        await asyncio.wait([process.spawn(self._send_all(process.ip))])

    async def _send_all(self, ip: str) -> None:
        producer = Producer(self.name_servers, group="shop", client_ip=ip, instance_name="one")
        await producer.start()
        message = Message(topic=TOPIC, body=b"order")
        while (await producer.send(message)).status is not SendStatus.SEND_OK:
            await asyncio.sleep(1.0)  # the slave is not connected yet
        for _ in range(SENDS):
            began_s = self.loop.now_s
            assert (await producer.send(message)).status is SendStatus.SEND_OK
            self.took_s.append(self.loop.now_s - began_s)


@pytest.mark.parametrize(
    ("master_s", "slave_s"), [(1.0, 0.2), (0.2, 1.0), (1.0, 1.0)], ids=["master", "slave", "equal"]
)
def test_a_send_waits_for_the_slower_of_disk_and_slave(
    master_s: float, slave_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Sends({"broker-a": master_s, "broker-a-1": slave_s})

    def begin(commit: SimulatedCommit) -> None:
        GroupCommit._begin(commit)
        if commit._running:
            process = PROCESS.get()
            assert process is not None
            world.loop.call_later(world.sync_s[process.name], commit._sync)

    monkeypatch.setattr(SimulatedCommit, "_begin", begin)
    with replaced(world.loop):
        world.run()

    slower_s = max(master_s, slave_s)
    assert len(world.took_s) == SENDS
    assert min(world.took_s) >= slower_s
    assert median(world.took_s) < slower_s + NETWORK_S
