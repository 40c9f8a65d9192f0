"""Static topics on brokers in this process: moves under load, interrupted moves, a lost broker."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.broker.app import Broker
from cometmq.broker.static_topics import newer_parts
from cometmq.cli.doctor.cluster import Cluster
from cometmq.cli.doctor.static_topics import static_findings
from cometmq.client import AdminClient, Message, Producer, PullConsumer, PushConsumer, StartFrom
from cometmq.client.admin.static_plans import StaticPlan, detail_of, hosted_by, leaders_of
from cometmq.client.errors import ClientError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from support.brokers.pairs import LIMIT_S, SLAVE, Pairs, running_pairs
from support.checks.waiting import Changes, until
from support.processes.howto_pages import following

LOGICAL = "__syslo__global__"


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Pairs]:
    async with running_pairs(tmp_path) as pairs:
        for name in ("a", "b", "c"):
            await pairs.start(name, brokerName=name)
        yield pairs


@asynccontextmanager
async def admin_of(brokers: Pairs) -> AsyncIterator[AdminClient]:
    async with asyncio.timeout(LIMIT_S), AdminClient(brokers.name_server.address) as admin:
        yield admin


class Traffic(Changes):
    """Sends to the queues of a topic in turn, and receives what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[int, list[tuple[int, bytes]]] = {}
        self.received: dict[int, list[tuple[int, bytes]]] = {}
        self.is_ending = False

    def count(self) -> int:
        return sum(map(len, self.sent.values()))

    async def send(self, producer: Producer, queues: int) -> None:
        """Send until the end; each failure ends the test."""
        number = 0
        while not self.is_ending:
            queue = MessageQueue("T", LOGICAL, number % queues)
            body = str(number).encode()
            receipt = await producer.send(Message("T", body), queue=queue)
            self.sent.setdefault(receipt.queue.queue_id, []).append((receipt.queue_offset, body))
            number += 1
            self.moved.set()

    async def receive(self, message: StoredMessage) -> None:
        found = self.received.setdefault(message.queue_id, [])
        found.append((message.queue_offset, message.body))
        self.moved.set()

    async def more(self, count: int) -> None:
        wanted = self.count() + count
        await self.until(lambda: self.count() >= wanted)


@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
async def test_queues_move_under_load_without_a_lost_message_or_a_gap(
    brokers: Pairs, ordered: bool
) -> None:
    """With the routes of 30 seconds that clients have by default."""
    traffic, servers = Traffic(), brokers.name_server.address
    async with admin_of(brokers) as admin:
        assert set((await admin.create_static_topic("T", 4, brokers=["a", "b"])).values()) == {
            "a",
            "b",
        }
        async with (
            Producer(servers, group="p") as producer,
            PushConsumer(
                servers,
                group="G",
                handler=traffic.receive,
                subscriptions={"T": "*"},
                start_from=StartFrom.FIRST,
                ordered=ordered,
            ),
        ):
            sending = asyncio.create_task(traffic.send(producer, 4))
            await traffic.more(40)

            moves = await admin.move_static_queues("T", ["c"])
            await traffic.more(40)
            back = await admin.move_static_queues("T", ["a", "b", "c"])
            await traffic.more(40)
            traffic.is_ending = True
            await sending
            await traffic.until(
                lambda: (
                    {q: set(found) for q, found in traffic.received.items()}
                    == {q: set(found) for q, found in traffic.sent.items()}
                )
            )
        assert sorted(move.queue_id for move in moves) == [0, 1, 2, 3]
        assert len(back) == 2
        assert (await admin.plan_queue_moves("T", ["a", "b", "c"])).moves == []
    for queue, sent in traffic.sent.items():
        assert [offset for offset, _ in sent] == list(range(len(sent))), queue
        first = list(dict.fromkeys(traffic.received[queue]))
        assert first == sent if ordered else sorted(first) == sorted(sent), queue


STEPS = {
    "nothing": 0,
    "the new brokers": 1,
    "one old broker": 2,
    "all old brokers": 3,
    "the decided offsets": 4,
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
async def test_a_move_that_was_interrupted_is_finished_by_the_next_one(
    brokers: Pairs, steps: int
) -> None:
    async with (
        admin_of(brokers) as admin,
        Producer(brokers.name_server.address, group="p") as producer,
    ):
        await admin.create_static_topic("T", 2, brokers=["a", "b"])
        for number in range(4):
            await producer.send(
                Message("T", b"%d" % number), queue=MessageQueue("T", LOGICAL, number % 2)
            )
        plan = await admin.plan_queue_moves("T", ["c"])
        await run_some_steps(admin, plan, steps)
        assert bool(await problems(admin)) is (0 < steps < 4)

        made = await admin.move_static_queues("T", ["c"])

        assert {move.target for move in made} <= {"c"}
        parts = await admin.static_parts("T")
        assert set(leaders_of(parts).values()) == {"c"}
        assert await problems(admin) == []
        assert len({detail_of(part).epoch for part in parts.values()}) == 1
        begins = {q: items[-1].logic_offset for q, items in hosted_by(parts["c"]).items()}
        assert set(begins.values()) <= {2, 10_000}
        for number in (4, 5):
            await producer.send(
                Message("T", b"%d" % number), queue=MessageQueue("T", LOGICAL, number % 2)
            )
        assert sorted(await brokers.consume("G", "T", 6)) == [b"%d" % n for n in range(6)]


async def problems(admin: AdminClient) -> list[str]:
    """What the doctor says about the topic."""
    found = await static_findings(Cluster(admin), "T", await admin.route("T"))
    return [finding.met for finding in found]


async def run_some_steps(admin: AdminClient, plan: StaticPlan, steps: int) -> None:
    """Make the first steps of a move, as a tool that is killed then."""
    ends: dict[int, int] = {}
    if steps >= 1:
        await admin.write_static_parts(plan, plan.gaining)
    for name in plan.losing[: max(steps - 1, 0)]:
        ends |= await admin._write_part(plan, name, False)
    if steps >= 4:
        await admin._decide(plan, ends)
        await admin.write_static_parts(plan, plan.gaining)


async def test_the_queues_of_a_lost_broker_go_on_with_its_slave(
    brokers: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newer_parts, "AGE_MS", 0)
    servers = brokers.name_server.address
    master = await brokers.start("m", brokerName="m")
    slave = await brokers.start("s", brokerName="m", **SLAVE)
    async with admin_of(brokers) as admin, Producer(servers, group="p") as producer:
        await admin.create_static_topic("T", 1, brokers=["m"])
        queue = MessageQueue("T", LOGICAL, 0)
        for number in range(3):
            await producer.send(Message("T", b"%d" % number), queue=queue)
        await until(lambda: copied(slave, 3))
        with pytest.raises(ClientError, match="expected a lost broker"):
            await admin.plan_queue_moves("T", ["b"], lost="m")

        await brokers.stop(master)
        await until(lambda: lacks_master(admin, "m"))
        assert any("cannot be read" in each for each in await problems(admin))
        moves = await admin.move_static_queues("T", ["b"], lost="m")
        await producer.send(Message("T", b"3"), queue=queue)

        assert [(move.source, move.target) for move in moves] == [("m", "b")]
        assert await brokers.consume("G", "T", 4) == [b"0", b"1", b"2", b"3"]
        assert await brokers.consume("H", "T", 2) == [b"0", b"1"]
        async with PullConsumer(servers, group="H") as consumer:
            assert await consumer.committed(queue) == 2  # kept by the slave

        master = await brokers.start("m", brokerName="m")
        await until(lambda: leads_nothing(master))
        await producer.send(Message("T", b"4"), queue=queue)
        assert await brokers.consume("I", "T", 5) == [b"%d" % number for number in range(5)]


async def copied(slave: Broker, count: int) -> bool:
    core = slave.core
    return "T" in core.static_topics and core.store.bounds("T", 0)[1] == count


async def lacks_master(admin: AdminClient, name: str) -> bool:
    addresses = (await admin.cluster_info()).broker_addr_table[name].broker_addrs
    return set(addresses) == {1}


async def leads_nothing(broker: Broker) -> bool:
    info = broker.core.static_topics.info("T")
    return info is not None and info.curr_id_map == {}


async def test_a_broker_refuses_a_file_with_the_mapping_of_another_broker(
    brokers: Pairs, tmp_path: Path
) -> None:
    broker = await brokers.start("d", brokerName="d")
    async with admin_of(brokers) as admin:
        await admin.create_static_topic("T", 1, brokers=["d"])
    await brokers.stop(broker)
    file = tmp_path / "d" / "config" / "topicQueueMapping.json"
    assert json.loads(file.read_text())["topicQueueMappingInfoMap"]["T"]["bname"] == "d"

    with pytest.raises(Exception, match="mapping of topic T of broker d, expected e"):
        await brokers.start("d", brokerName="e")


async def test_the_steps_of_the_page_move_all_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following("move-queues", tmp_path) as guide:
        monkeypatch.setenv("NAMESRV_ADDR", guide.name_servers)
        for server in ("namesrv", "a.conf", "b.conf"):
            guide.start(server)

        printed = await asyncio.to_thread(guide.run_all)

        assert printed.count("move queue 0 of orders") == 2
        assert re.search(r"^__syslo__global__ +3 +0 +1", printed, re.MULTILINE), printed
        async with AdminClient(guide.name_servers) as admin:
            assert set(leaders_of(await admin.static_parts("orders")).values()) == {"broker-b"}
