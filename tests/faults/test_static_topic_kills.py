"""Brokers are killed in each step of a move of queues: the move goes on, and nothing is lost.

Two queues move from two brokers to a third one, with six requests. With each request its broker is
killed: before it, while it is handled, or when its response is there. The command then fails or
not. The broker is started again, the command is repeated, and the mapping has to be whole. Two
producers send all the time, one to each queue, the next message when the one before is
acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cometmq.cli.doctor.cluster import Cluster
from cometmq.cli.doctor.static_topics import static_findings
from cometmq.client import AdminClient, Message, Producer, PullConsumer
from cometmq.client.admin.static_plans import StaticPlan, leaders_of
from cometmq.model.errors import CometError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.topic import detail_of
from cometmq.remoting.ports import free_broker_port
from cometmq.testing.cluster import SMALL_FILES
from cometmq.testing.process import ServerProcess
from support.checks.waiting import Changes, until
from support.runner.tiers import new_seed, rounds

NAMES = ("a", "b", "c")
QUEUES = 2
REQUESTS = 6
"""Of a move of two queues from two brokers to a third one."""
MOMENTS = ("before", "during", "after")
CASES = rounds(test=REQUESTS, long=REQUESTS * len(MOMENTS))
LIMIT_S = 600.0
"""It ends what hangs."""


class Brokers:
    """A name server and three brokers, each a process."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._ports = {name: free_broker_port() for name in NAMES}
        self.running: dict[str, ServerProcess] = {}
        self.name_server = ""

    async def start_all(self) -> None:
        command = ("namesrv", "--port", "0")
        names = await ServerProcess.start(*command, log=self._folder / "namesrv.log")
        await self._stack.enter_async_context(names)
        self.name_server = names.addresses["namesrv"]
        for name in NAMES:
            settings = SMALL_FILES | {"brokerName": name, "brokerIP1": "127.0.0.1"}
            lines = "".join(f"{key}={value}\n" for key, value in settings.items())
            (self._folder / f"{name}.conf").write_text(lines)
            await self.start(name)

    async def start(self, name: str) -> None:
        """Start a broker; it has the store of the one that was killed."""
        self.running[name] = await ServerProcess.start(
            *("broker", "-n", self.name_server, "--port", str(self._ports[name])),
            *("-c", str(self._folder / f"{name}.conf"), "--store", str(self._folder / name)),
            log=self._folder / f"{name}.log",
            timeout=60.0,
        )
        await self._stack.enter_async_context(self.running[name])

    async def kill(self, name: str) -> None:
        await self.running[name].kill()

    async def restart_dead(self) -> None:
        for name, process in self.running.items():
            if process.returncode is not None:
                await self.start(name)


class KillingAdmin(AdminClient):
    """Moves queues, and kills the broker of one request."""

    brokers: Brokers
    chance: random.Random
    _left = 0
    _moment = ""

    def kill_at(self, request: int, moment: str) -> None:
        """Kill with one of the next requests, counted from 1."""
        self._left, self._moment = request, moment

    async def _write_part(self, plan: StaticPlan, broker: str, force: bool) -> dict[int, int]:
        self._left -= 1
        if self._left != 0:
            return await super()._write_part(plan, broker, force)
        if self._moment == "before":
            await self.brokers.kill(broker)
        writing = asyncio.create_task(super()._write_part(plan, broker, force))
        if self._moment == "during":
            await asyncio.wait([writing], timeout=self.chance.uniform(0.0, 0.01))
            await self.brokers.kill(broker)
        found = await writing
        if self._moment == "after":
            await self.brokers.kill(broker)
        return found


class Sending(Changes):
    """Sends numbers to a queue; each one until it is acknowledged."""

    def __init__(self, queue_id: int) -> None:
        super().__init__()
        self.queue = MessageQueue("T", "__syslo__global__", queue_id)
        self.acknowledged: list[tuple[int, int]] = []
        """The offsets of numbers; -1 where the broker did not know it yet."""
        self.is_ending = False

    async def run(self, producer: Producer) -> None:
        number = 0
        while not self.is_ending:
            message = Message("T", b"%d" % number)
            try:
                receipt = await producer.send(message, queue=self.queue, timeout=1.0)
            except CometError:
                await asyncio.sleep(0.01)  # its broker is being started
                continue
            self.acknowledged.append((number, receipt.queue_offset))
            number += 1
            self.moved.set()

    async def more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        await self.until(lambda: len(self.acknowledged) >= wanted)


async def more(sendings: list[Sending]) -> None:
    """Wait for some more messages of each queue."""
    for each in sendings:
        await each.more(5)


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    async with AsyncExitStack() as stack:
        made = Brokers(tmp_path, stack)
        await made.start_all()
        yield made


@pytest.mark.timeout(900)
async def test_moves_survive_kills_of_brokers_in_each_step(brokers: Brokers) -> None:
    seed = new_seed()
    print(f"seed={seed}")
    chance = random.Random(seed)
    cases = [(request, moment) for request in range(1, REQUESTS + 1) for moment in MOMENTS]
    chance.shuffle(cases)
    if len(cases) > CASES:  # each request once
        cases = list({request: (request, moment) for request, moment in cases}.values())
    sendings = [Sending(queue_id) for queue_id in range(QUEUES)]
    async with (
        asyncio.timeout(LIMIT_S),
        KillingAdmin(brokers.name_server) as admin,
        Producer(brokers.name_server, group="p") as producer,
    ):
        admin.brokers, admin.chance = brokers, chance
        await admin.create_static_topic("T", QUEUES, brokers=["a", "b"])
        tasks = [asyncio.create_task(each.run(producer)) for each in sendings]
        failed = 0
        for request, moment in cases:
            await more(sendings)
            await move_evenly(admin)
            await more(sendings)
            admin.kill_at(request, moment)
            try:
                await admin.move_static_queues("T", ["c"])
            except CometError:
                failed += 1
            await brokers.restart_dead()
            await until(lambda: are_registered(admin))

            await admin.move_static_queues("T", ["c"])

            await check_mapping(admin, (request, moment))
        await more(sendings)
        for each in sendings:
            each.is_ending = True
        await asyncio.gather(*tasks)
        assert failed >= REQUESTS // 2
        for each in sendings:
            await check_messages(brokers.name_server, each)


async def move_evenly(admin: AdminClient) -> None:
    """Let the first two brokers lead a queue each."""
    await admin.move_static_queues("T", ["a", "b"])
    leaders = leaders_of(await admin.static_parts("T"))
    assert sorted(leaders.values()) == ["a", "b"]


async def are_registered(admin: AdminClient) -> bool:
    table = (await admin.cluster_info()).broker_addr_table
    return {*NAMES} == {name for name, broker in table.items() if 0 in broker.broker_addrs}


async def check_mapping(admin: AdminClient, case: tuple[int, str]) -> None:
    """Check that all brokers agree about the queues."""
    parts = await admin.static_parts("T")
    assert set(leaders_of(parts).values()) == {"c"}, case
    assert len({detail_of(part).epoch for part in parts.values()}) == 1, case
    found = await static_findings(Cluster(admin), "T", await admin.route("T"))
    assert [finding.met for finding in found] == [], case


async def check_messages(name_server: str, sending: Sending) -> None:
    """Check that each message is there, at its offset, in order; and that offsets have no gap."""
    found: dict[int, int] = {}
    async with PullConsumer(name_server, group="reader") as consumer:
        bounds = await consumer.bounds(sending.queue)
        offset = bounds.min_offset
        while offset < bounds.max_offset:
            pulled = await consumer.pull(sending.queue, offset)
            found |= {message.queue_offset: int(message.body) for message in pulled.messages}
            offset = pulled.next_offset
    numbers = list(found.values())
    assert numbers == sorted(numbers)  # a number may be there twice, if its response was lost
    assert set(range(len(sending.acknowledged))) <= set(numbers)
    for number, stored in sending.acknowledged:
        assert stored < 0 or found[stored] == number
    offsets = list(found)
    gaps = [(a, b) for a, b in itertools.pairwise(offsets) if b != a + 1]
    assert gaps == []
