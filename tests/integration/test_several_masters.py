"""A topic on two masters in two processes, of which one is killed or restarted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.client import AdminClient, Message, Producer, PushConsumer, StartFrom
from cometmq.model.message import StoredMessage
from cometmq.remoting.ports import free_broker_port
from cometmq.testing import ServerProcess
from support.checks.waiting import Changes

LIMIT_S = 120.0
"""It ends what hangs."""
NAMES = ("broker-a", "broker-b")
QUEUES = 4


class Masters:
    """A name server and two masters that can be killed and started again.

    Args:
        folder: for stores and logs.
        name_server: where they register.
    """

    def __init__(self, folder: Path, name_server: ServerProcess) -> None:
        self._folder = folder
        self._ports = {name: free_broker_port() for name in NAMES}
        self.name_servers = name_server.addresses["namesrv"]
        self.running: dict[str, ServerProcess] = {}

    async def start(self, name: str) -> None:
        """Start a master on its store."""
        file = self._folder / f"{name}.conf"
        file.write_text(f"brokerName={name}\ndefaultTopicQueueNums={QUEUES}\n")
        self.running[name] = await ServerProcess.start(
            "broker",
            "-c", str(file),
            "--port", str(self._ports[name]),
            "--store", str(self._folder / name),
            "-n", self.name_servers,
            log=self._folder / f"{name}.log",
            timeout=LIMIT_S,
        )  # fmt: skip

    async def kill(self, name: str) -> None:
        """Kill a master."""
        await self.running.pop(name).kill()

    async def stop(self, name: str) -> None:
        """Stop a master in an orderly way."""
        assert await self.running.pop(name).stop(LIMIT_S) == 0


@pytest.fixture
async def masters(tmp_path: Path) -> AsyncIterator[Masters]:
    name_server = await ServerProcess.start(
        "namesrv", "--port", "0", log=tmp_path / "namesrv.log", timeout=LIMIT_S
    )
    async with name_server:
        made = Masters(tmp_path, name_server)
        try:
            for name in NAMES:
                await made.start(name)
            async with AdminClient(made.name_servers) as admin:
                assert len(await admin.create_topic("T", queues=QUEUES)) == 2 * QUEUES
            yield made
        finally:
            for server in made.running.values():
                await server.kill()


class Load(Changes):
    """Sends one message after the other, and notes where each was acknowledged."""

    def __init__(self, producer: Producer) -> None:
        super().__init__()
        self._producer = producer
        self.acknowledged: list[tuple[str, str]] = []
        """Body and broker, in the order of the sends."""
        self.failed: list[str] = []
        self._is_ending = False
        self._sending: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Send until `end`."""
        self._sending = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while not self._is_ending:
            body = f"{number}"
            number += 1
            try:
                receipt = await self._producer.send(Message("T", body.encode()))
            except Exception as problem:
                self.failed.append(f"{body}: {type(problem).__name__}: {problem}")
            else:
                self.acknowledged.append((body, receipt.queue.broker_name))
            self.moved.set()

    async def more(self, count: int, broker: str | None = None) -> None:
        """Wait for so many further acknowledgements, of one broker or any."""
        start = len(self.acknowledged)

        def enough() -> bool:
            return sum(broker in (None, found) for _, found in self.acknowledged[start:]) >= count

        await self.until(enough)

    async def end(self) -> None:
        """Send no more; return when the last send has ended."""
        self._is_ending = True
        if self._sending is not None:
            await self._sending


@asynccontextmanager
async def loaded(masters: Masters) -> AsyncIterator[Load]:
    """Send within ``async with``."""
    async with Producer(masters.name_servers, group="p", route_refresh_ms=200) as producer:
        load = Load(producer)
        load.start()
        try:
            yield load
        finally:
            await load.end()


class Group(Changes):
    """A group of one consumer, and what it has received."""

    def __init__(self, masters: Masters, *, ordered: bool = False) -> None:
        super().__init__()
        self.received: list[tuple[str, int, str]] = []
        """Queue, queue offset and body."""
        self.consumer = PushConsumer(
            masters.name_servers,
            group="G",
            handler=self._handle,
            subscriptions={"T": "*"},
            start_from=StartFrom.FIRST,
            ordered=ordered,
            route_refresh_ms=200,
        )

    async def _handle(self, message: StoredMessage) -> None:
        queue = f"{message.broker_name}/{message.queue_id}"
        self.received.append((queue, message.queue_offset, message.body.decode()))
        self.moved.set()

    async def counts_of(self, bodies: set[str]) -> Counter[str]:
        """Wait for some bodies; return how often each was received."""
        await self.until(lambda: bodies <= {body for _, _, body in self.received})
        return Counter(body for _, _, body in self.received)

    def is_in_order(self) -> bool:
        """Whether each queue was received for the first time in the order of its offsets."""
        first: dict[str, list[int]] = {}
        for queue, offset, _ in self.received:
            if offset not in first.setdefault(queue, []):
                first[queue].append(offset)
        return all(offsets == sorted(offsets) for offsets in first.values())


def report(what: str, load: Load, counts: Counter[str]) -> None:
    """Print the counts of a run."""
    brokers = Counter(broker for _, broker in load.acknowledged)
    print(
        f"{what}: acknowledged={len(load.acknowledged)} {dict(brokers)} failed={len(load.failed)}"
        f" received={sum(counts.values())} duplicates={sum(counts.values()) - len(counts)}"
    )


@pytest.mark.parametrize("ordered", [False, True], ids=["in parallel", "in order"])
async def test_producers_go_on_at_the_other_master_and_consumers_catch_up(
    masters: Masters, ordered: bool
) -> None:
    group = Group(masters, ordered=ordered)
    async with group.consumer, loaded(masters) as load:
        await load.more(50, "broker-a")
        await load.more(50, "broker-b")
        await masters.kill("broker-a")
        await load.more(200, "broker-b")
        await masters.start("broker-a")
        await load.more(50, "broker-a")
        await load.end()
        counts = await group.counts_of({body for body, _ in load.acknowledged})
    report("one of two masters killed", load, counts)
    assert load.failed == []
    assert not ordered or group.is_in_order()


async def test_a_rolling_restart_fails_no_send_and_loses_nothing(masters: Masters) -> None:
    group = Group(masters)
    async with group.consumer, loaded(masters) as load:
        for name in NAMES:
            await load.more(50, name)
            await masters.stop(name)
            await load.more(50)
            await masters.start(name)
        for name in NAMES:
            await load.more(50, name)
        await load.end()
        counts = await group.counts_of({body for body, _ in load.acknowledged})
    report("rolling restart", load, counts)
    assert load.failed == []
