"""Killed consumers and a killed broker, with duplicates sent on purpose: each row appears once.

Two processes of one group book orders into one SQLite file. In each round a member, the broker or
both are killed with SIGKILL while they work, and started again. Rounds: 3, on long runs 30.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

from cometmq.client import AdminClient, Message, Producer, RemotingError, ResponseError
from support.processes import order_booking_process
from support.processes.server import Standalone
from support.runner.tiers import new_seed, rounds

ROUNDS = rounds(test=3, long=30)
TOPIC, GROUP = "orders", "bookkeeping"
ORDERS_A_ROUND = 60
KILLED = (("member",), ("broker",), ("member", "broker"))
SAID_S, SETTLED_S, ROUND_S = 180.0, 300.0, 180.0


class Said:
    """How often all members together said each word."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self._more = asyncio.Condition()

    async def note(self, word: str) -> None:
        async with self._more:
            self.counts[word] += 1
            self._more.notify_all()

    async def more(self, word: str, times: int = 1) -> None:
        """Wait until a word was said so many times from now on."""
        wanted = self.counts[word] + times
        async with asyncio.timeout(SAID_S), self._more:
            await self._more.wait_for(lambda: self.counts[word] >= wanted)


class Member:
    """One process of the group."""

    def __init__(self, name_servers: str, path: Path, said: Said) -> None:
        self._arguments = (name_servers, str(path), GROUP, TOPIC)
        self._said = said

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            order_booking_process.__file__,
            *self._arguments,
            stdout=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read())
        await self._said.more("ready")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            await self._said.note(line.split()[0].decode())

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()
        await asyncio.wait_for(self._reading, SAID_S)


async def send_until_stored(producer: Producer, order: str) -> None:
    """As an application does that must not lose an order: a lost answer makes a duplicate."""
    async with asyncio.timeout(ROUND_S):
        while True:
            try:
                await producer.send(Message(topic=TOPIC, body=b"a hat", keys=[order]))
            except (RemotingError, ResponseError):
                await asyncio.sleep(0.1)
            else:
                return


async def send_orders(producer: Producer, orders: list[str]) -> None:
    for order in orders:
        await send_until_stored(producer, order)
        if order.endswith("7"):
            await send_until_stored(producer, order)


def booked(path: Path) -> Counter[str]:
    with closing(sqlite3.connect(path)) as connection:
        return Counter(name for (name,) in connection.execute("SELECT name FROM bookings"))


async def until_settled(name_servers: str, path: Path, orders: set[str]) -> None:
    """Wait until every order is booked, and every message of the topic was consumed."""
    async with asyncio.timeout(SETTLED_S), AdminClient(name_servers) as admin:
        while True:
            try:
                bounds = await admin.queue_bounds(TOPIC)
                reached = await admin.committed(GROUP, TOPIC)
            except (RemotingError, ResponseError):
                bounds, reached = {}, {}
            done = bounds and all(reached.get(q) == b.max_offset for q, b in bounds.items())
            if done and set(booked(path)) == orders:
                return
            await asyncio.sleep(0.1)


async def test_each_row_appears_once_when_consumers_and_broker_are_killed(tmp_path: Path) -> None:
    seed = new_seed()
    print(f"seed={seed}")
    chance = random.Random(seed)
    path, said = tmp_path / "shop.db", Said()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookings (name TEXT)")
    connection.close()
    server = Standalone(tmp_path / "server", settings={"brokerIP1": "127.0.0.1"})
    server.start()
    name_servers = "{}:{}".format(*server.namesrv)
    members = [Member(name_servers, path, said) for _ in range(2)]
    orders: set[str] = set()
    try:
        async with AdminClient(name_servers) as admin:
            await admin.create_topic(TOPIC, queues=4)
        for member in members:
            await member.start()
        async with Producer(name_servers, group="shop", route_refresh_ms=500) as producer:
            for number in range(ROUNDS):
                fresh = [f"order-{number}-{n}" for n in range(ORDERS_A_ROUND)]
                orders.update(fresh)
                sending = asyncio.create_task(send_orders(producer, fresh))
                await said.more("writing", chance.randrange(1, ORDERS_A_ROUND // 2))
                victim, victims = chance.choice(members), KILLED[number % len(KILLED)]
                if "broker" in victims:
                    await asyncio.to_thread(server.kill)
                if "member" in victims:
                    await victim.kill()
                if "broker" in victims:
                    await asyncio.to_thread(server.start)
                if "member" in victims:
                    await victim.start()
                await sending
                await until_settled(name_servers, path, orders)
    finally:
        for member in members:
            await member.kill()
        if server.running:
            await asyncio.to_thread(server.kill)

    print(f"{len(orders)} orders, {dict(said.counts)}")
    assert booked(path) == Counter(orders)
    assert said.counts["delivered"] > len(orders), "no message came twice: this showed nothing"
