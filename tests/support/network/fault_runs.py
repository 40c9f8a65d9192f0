"""Runs in which clients send and receive while a fault comes and goes, and what must hold then.

- What was acknowledged with ``SEND_OK`` is where the response said, on all brokers.
- All brokers have the same messages at the same offsets, without a gap, and none that was not sent.
- A message that was sent after another one was acknowledged is behind it in the log. So there never
  are two masters that acknowledge.
- While a killed master is away, its slave has all that had been acknowledged.
- Sends are acknowledged with ``SEND_OK`` again by themselves.
- The group received every stored message at its place, and none that is not stored there.

What was stored or received a second time is counted.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import kit
import pytest
from programs import JAVA_53

from support.network.machines import Fault, Machines, Place, Server, Stored
from support.network.namespaces import Network, NoNetworkError
from support.network.network_clients import (
    LIMIT_S,
    Application,
    Clients,
    Delivery,
    DirectSender,
    Load,
    Sent,
    java,
    received,
)
from support.processes.root import as_root
from support.runner.tiers import new_seed

RESULTS = Path(__file__).resolve().parents[3] / "build" / "test-results"
ENOUGH = 300
"""So many acknowledgements show that all is well."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    clients: str
    fault: str
    acknowledged: int
    acknowledged_meanwhile: int
    other_status: int
    failed: int
    stored_twice: int
    sends_paused_s: float
    recovered_after_s: float
    received_twice: int
    receipts_paused_s: float
    elections: int
    in_sync_after_s: float


def write_table(rows: Sequence[Row], name: str, *leaves_out: str) -> None:
    """Write the rows of a test run as a table, without some columns."""
    if not rows:
        return
    columns = [each.name for each in fields(Row) if each.name not in leaves_out]
    cells = [[str(getattr(row, column)) for column in columns] for row in rows]
    heads = [column.replace("_", " ") for column in columns]
    lines = ["| " + " | ".join(line) + " |" for line in (heads, *cells)]
    lines.insert(1, "|---|---" + "|--:" * (len(columns) - 2) + "|")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / name).write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def run(
    layout: type[Machines],
    clients: Clients,
    fault: Fault,
    folder: Path,
    request: pytest.FixtureRequest,
) -> Row | None:
    """Run machines with a fault; None if the run was in a process of its own, as root.

    Args:
        layout: places servers on machines.
        folder: for all files.
        request: names the test.
    """
    if os.geteuid():  # the machines belong to this process, which needs to be root
        again = [*as_root(), sys.executable, "-m", "pytest", "-q", "-s", request.node.nodeid]
        subprocess.run(again, check=True, cwd=request.config.rootpath)
        return None
    if clients is java:
        JAVA_53.command()  # what it downloads, it cannot get from inside the network
    seed = new_seed()
    print(f"seed={seed}")
    try:
        network = Network(layout.hosts, seed=seed)
    except NoNetworkError as error:
        pytest.skip(f"needs network namespaces: {error}")
    with network, closing(layout(network, folder)) as machines:
        machines.start()
        row = machines.clients.run(
            lambda: asyncio.run(_suffer(machines, clients, fault)), 2 * LIMIT_S
        )
    request.node.user_properties += asdict(row).items()
    return row


async def _suffer(machines: Machines, clients: Clients, fault: Fault) -> Row:
    """Send and receive while a fault comes and goes, and judge what was stored and received."""
    await asyncio.to_thread(machines.settle)
    await asyncio.to_thread(machines.create_topic)
    async with clients(machines) as application:
        through = _Through(machines, application, fault)
        await through.run()
        stored = await asyncio.to_thread(machines.read_all)
        deliveries = await received(application, set(stored))
    stored = await asyncio.to_thread(machines.read_all)  # a late send may have come meanwhile
    load, direct = through.load, through.direct
    acknowledged = load.acknowledged | direct.acknowledged
    assert len(acknowledged) == len(load.acknowledged) + len(direct.acknowledged)
    check_places(acknowledged, stored)
    check_order(acknowledged, stored)
    check_deliveries(deliveries, stored)
    bodies = [message.body for message in stored.values()]
    assert set(bodies) <= load.sent | direct.sent
    acknowledged_at = [sent.ended_s for sent in load.acknowledged.values()]
    return Row(
        clients.__name__,
        fault.name,
        len(load.acknowledged),
        sum(through.began_s < at_s <= through.ended_s for at_s in acknowledged_at),
        load.other_status,
        load.failed,
        len(bodies) - len(set(bodies)),
        longest_pause(acknowledged_at, through.began_s),
        first_after(acknowledged_at, through.ended_s),
        len(deliveries) - len({one.place for one in deliveries}),
        longest_pause([one.at_s for one in deliveries], through.began_s),
        await asyncio.to_thread(machines.epoch) - through.epoch,
        round(through.settled_s - through.ended_s, 2),
    )


class _Through:
    """A load that goes on through a fault."""

    def __init__(self, machines: Machines, application: Application, fault: Fault) -> None:
        self._machines = machines
        self._application = application
        self._fault = fault
        self.load, self.direct = Load(), Load()
        """Sends of the application, and sends to each broker, whatever its role."""
        self.epoch = 0
        self.began_s = self.ended_s = self.settled_s = 0.0
        """Begin and end of the fault, and when all was well again."""

    async def run(self) -> None:
        direct = [DirectSender(one) for one in self._machines.brokers if self._machines.is_elected]
        try:
            async with asyncio.TaskGroup() as tasks:
                for number, send in enumerate(self._application.sends):
                    tasks.create_task(self.load.produce(send, f"{number}"))
                for number, sender in enumerate(direct):
                    tasks.create_task(self.direct.produce(sender.send, f"direct-{number}"))
                await self._suffer()
                self.load.is_over = self.direct.is_over = True
        finally:
            for sender in direct:
                sender.close()

    async def _suffer(self) -> None:
        machines, fault = self._machines, self._fault
        await self.load.more(ENOUGH)
        await asyncio.to_thread(machines.settle)
        self.epoch = await asyncio.to_thread(machines.epoch)

        known = dict(self.load.acknowledged)
        slave = machines.slave
        self.began_s = time.monotonic()
        await asyncio.to_thread(fault.begin, machines)
        await asyncio.sleep(fault.lasts_s)
        if fault.kills_master:
            await asyncio.to_thread(wait_for_copy, machines, slave, known)
        await asyncio.to_thread(fault.end, machines)
        self.ended_s = time.monotonic()
        await asyncio.gather(self.load.more(ENOUGH), self._settle())

    async def _settle(self) -> None:
        await asyncio.to_thread(self._machines.settle)
        self.settled_s = time.monotonic()


def wait_for_copy(machines: Machines, slave: Server, known: Mapping[Place, Sent]) -> None:
    """Wait until the slave shows what had been acknowledged; it may still build its queues."""
    with suppress(AssertionError):
        kit.eventually(lambda: known.keys() <= machines.read(slave).keys())
    check_places(known, machines.read(slave))


def check_places(acknowledged: Mapping[Place, Sent], stored: Mapping[Place, Stored]) -> None:
    """Check that each acknowledged message is where the response said."""
    lost = {
        place: sent.body
        for place, sent in acknowledged.items()
        if place not in stored or stored[place].body != sent.body
    }
    assert not lost, (
        f"{len(lost)} acknowledged messages are lost, such as {sorted(lost.items())[:5]}"
    )


def check_order(acknowledged: Mapping[Place, Sent], stored: Mapping[Place, Stored]) -> None:
    """Check that no message is in the log ahead of one that was acknowledged before it was sent."""
    last: Sent | None = None
    """That which was sent last, of those so far in the order of the log."""
    for place in sorted(acknowledged, key=lambda place: stored[place].log_offset):
        sent = acknowledged[place]
        assert last is None or last.began_s <= sent.ended_s, (
            f"{last.body!r} was sent after {sent.body!r} was acknowledged, and is ahead of it"
        )
        last = sent if last is None or sent.began_s > last.began_s else last


def check_deliveries(deliveries: Iterable[Delivery], stored: Mapping[Place, Stored]) -> None:
    """Check that what the group received is stored."""
    wrong = [
        one for one in deliveries if one.place not in stored or stored[one.place].body != one.body
    ]
    assert not wrong, f"{len(wrong)} messages were received and are not stored, such as {wrong[:5]}"


def longest_pause(times_s: Iterable[float], began_s: float) -> float:
    """The longest time without an event after a begin."""
    later = [began_s, *sorted(at_s for at_s in times_s if at_s > began_s)]
    return round(max(after - before for before, after in itertools.pairwise(later)), 2)


def first_after(times_s: Iterable[float], at_s: float) -> float:
    """The time until the next event."""
    return round(min(one for one in times_s if one > at_s) - at_s, 2)
