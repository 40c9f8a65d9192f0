"""Hostile peers on the port from which slaves copy the log.

A stranger never has a ticket. If masters need none, the port is open, as in RocketMQ: then it takes
the id of no slave of an elected master, because nothing keeps it from doing so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cometmq.broker.failover.epochs.wire import REPORT as EPOCH_REPORT
from cometmq.broker.failover.epochs.wire import TRANSFER, Greeting
from cometmq.broker.replication.greeting import GREETING_BYTES, MAGIC, SlaveNames, greeting_of
from cometmq.broker.replication.master import NEWCOMERS_MAX
from cometmq.broker.replication.slave_connection import FIRST_REPORT_S
from cometmq.broker.replication.wire import REPORT
from simulation.machines import HA_PORT, BrokerMachine

if TYPE_CHECKING:
    from simulation.world import World

IP = "10.9.9.9"
"""The address of all strangers."""
OFFSET_MAX = 2**63 - 1
CLOSED_S = FIRST_REPORT_S + 1.5
"""A connection that says nothing is closed after that; the master looks at it every second."""
OUTSIDE_ID = 99
"""No broker has that id."""


class StrangerConnection(asyncio.Protocol):
    """A connection of a stranger.

    Args:
        opening: what it sends first.
        now_s: returns the time.
    """

    def __init__(self, opening: bytes, now_s: Callable[[], float]) -> None:
        self._opening = opening
        self._now_s = now_s
        self.transport: Any = None
        self.said_s = now_s()
        """When it last sent something."""
        self.is_closed = False
        self.was_served = False
        """Whether the master has sent it something."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.say(self._opening)

    def say(self, data: bytes) -> None:
        self.said_s = self._now_s()
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.was_served = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True


class Stranger:
    """A hostile peer of one master.

    Args:
        world: the simulated cluster.
        master: whose port it reaches.
    """

    def __init__(self, world: World, master: BrokerMachine) -> None:
        self._world = world
        self._chance = world.chance
        self._master = master
        self._process = world.process("stranger", IP)
        self._connections: list[StrangerConnection] = []
        self._may_claim = bool(world.layout.needs_tickets) or not master.is_elected
        """Whether it takes the id of a slave, or the place of one."""

    @classmethod
    def kinds(cls) -> dict[str, Callable[[Stranger], bytes]]:
        """Return what strangers send first, by the name of what they do."""
        return {
            "garbage": cls._garbage,
            "another set": cls._another_set,
            "a claimed id": cls._claimed_id,
            "a huge length": cls._huge_length,
            "silence": lambda _: b"",
            "too much acknowledged": lambda stranger: stranger._report(OUTSIDE_ID),
        }

    async def stay(self, kind: str, until_s: float) -> None:
        """Connect, again and again, and acknowledge what it does not have, until a time."""
        count = NEWCOMERS_MAX + 6 if kind == "silence" and self._chance.below(2) else 1
        loop = self._world.loop
        while loop.now_s < until_s:
            living = [one for one in self._connections if not one.is_closed]
            for _ in range(count - len(living)):
                opening = self.kinds()[kind](self)
                self._process.spawn(self._connect(opening))
            if kind in ("a claimed id", "too much acknowledged"):
                for one in living:
                    one.say(self._acknowledgement())
            await asyncio.sleep(0.2)

    async def _connect(self, opening: bytes) -> None:
        loop = self._world.loop
        with suppress(OSError):
            _, connection = await loop.create_connection(
                lambda: StrangerConnection(opening, loop.time), self._master.ip, HA_PORT
            )
            self._connections.append(connection)

    def kept_open(self) -> list[str]:
        """Return which connections a master has kept, though they never said what slaves say."""
        now_s = self._world.loop.now_s
        return [
            f"kept open: a connection of a stranger that was silent for {now_s - one.said_s:.1f} s"
            for one in self._connections
            if not one.is_closed and not one.was_served and now_s - one.said_s > CLOSED_S
        ]

    # --- what it sends --------------------------------------------------------------------------

    def _bytes(self, count: int) -> bytes:
        return self._chance.below(256**count).to_bytes(count, "big")

    def _garbage(self) -> bytes:
        return self._bytes(1 + self._chance.below(200))

    def _another_set(self) -> bytes:
        number = self._chance.below(2**32)
        names = SlaveNames(1 + number, *(self._bytes(16).hex() for _ in range(3)))
        return greeting_of(names, self._bytes(40).hex()) + self._report(OUTSIDE_ID)

    def _claimed_id(self) -> bytes:
        """The names of a slave, with a ticket that nobody gave; or its id alone, as RocketMQ's."""
        slaves = [each.names for each in self._world.slaves_of(self._master)]
        found = [names for names in slaves if names is not None]
        if not found or not self._may_claim:
            found = [SlaveNames(OUTSIDE_ID, "", "", self._bytes(16).hex())]
        names = found[self._chance.below(len(found))]
        report = self._report(names.broker_id)
        if self._chance.below(2):
            return greeting_of(names, self._bytes(40).hex()) + report
        return report

    def _huge_length(self) -> bytes:
        head = MAGIC + b"\0\1\xff\xff" + self._bytes(GREETING_BYTES)
        return (head, REPORT.pack(OFFSET_MAX), EPOCH_REPORT.pack(TRANSFER, OFFSET_MAX))[
            self._chance.below(3)
        ]

    def _report(self, broker_id: int) -> bytes:
        """An elected master sends its epochs before it takes a report."""
        return Greeting(broker_id).encode() if self._master.is_elected else self._acknowledgement()

    def _acknowledgement(self) -> bytes:
        """Report the end of the log of the master, or one behind it."""
        end = self._master.log_end()
        offset = (0 if end is None else end[0]) + self._chance.below(4) // 3 * 1000
        return (
            EPOCH_REPORT.pack(TRANSFER, offset) if self._master.is_elected else REPORT.pack(offset)
        )
