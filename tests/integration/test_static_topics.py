"""Static topics on brokers in this process: moves under load, interrupted moves, a lost broker."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.app import Broker
from cometmq.broker.replication.metadata import MetadataCopy
from cometmq.cli.doctor.cluster import Broker as DoctorsBroker
from cometmq.cli.doctor.cluster import Cluster
from cometmq.cli.doctor.findings import Level
from cometmq.cli.doctor.static_topics import static_findings
from cometmq.cli.doctor.topics_and_groups import checks
from cometmq.client import (
    AdminClient,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    StartFrom,
)
from cometmq.client.admin.static_plans import StaticPlan, hosted_by, leaders_of
from cometmq.client.errors import ClientError, ConfigError
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ResponseError, StoreError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import MAPPING_QUEUE, MAPPING_TOPIC, TopicConfig
from cometmq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from cometmq.protocol.bodies.route import TopicQueueMappingDetail
from cometmq.protocol.bodies.topic import detail_of
from cometmq.protocol.codes import ResponseCode
from support.brokers.accounts import SECRETS, credentials, guarded
from support.brokers.pairs import LIMIT_S, SLAVE, Pairs, running_pairs
from support.checks.waiting import Changes, until
from support.controllers.elected_pairs import (
    ElectedPairs,
    is_master,
    members,
    running_elected_pairs,
)
from support.processes.howto_pages import following
from support.stores.small_stores import put

LOGICAL = "__syslo__global__"


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Pairs]:
    async with running_pairs(tmp_path) as pairs:
        for name in ("a", "b", "c"):
            await pairs.start(name, brokerName=name)
        yield pairs


@asynccontextmanager
async def elected_and_b(tmp_path: Path) -> AsyncIterator[tuple[ElectedPairs, Broker, Broker]]:
    """Two elected brokers of the name `pair`, the master first, and one of the name `b`."""
    async with running_elected_pairs(tmp_path) as elected:
        await elected.controller()
        first, second = await elected.start("x"), await elected.start("y")
        await until(lambda: members(first) == {1, 2})
        await elected.pairs.start("b", brokerName="b")
        yield elected, first, second


@asynccontextmanager
async def admin_of(brokers: Pairs) -> AsyncIterator[AdminClient]:
    async with asyncio.timeout(LIMIT_S), AdminClient(brokers.name_server.address) as admin:
        yield admin


class Traffic(Changes):
    """Sends to the queues of a topic in turn, and receives what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[int, list[bytes]] = {}
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
            self.sent.setdefault(receipt.queue.queue_id, []).append(body)
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
                    {q: {body for _, body in found} for q, found in traffic.received.items()}
                    == {q: set(bodies) for q, bodies in traffic.sent.items()}
                )
            )
        assert sorted(move.queue_id for move in moves) == [0, 1, 2, 3]
        assert len(back) == 2
        assert (await admin.plan_queue_moves("T", ["a", "b", "c"])).moves == []
    for queue, sent in traffic.sent.items():
        first = list(dict.fromkeys(traffic.received[queue]))
        assert (first if ordered else sorted(first)) == list(enumerate(sent)), queue


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


async def test_the_queues_of_a_lost_broker_go_on_with_its_slave(brokers: Pairs) -> None:
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
        assert leads_nothing(master)  # from its start on, however short the time is since the move
        await producer.send(Message("T", b"4"), queue=queue)
        assert await brokers.consume("I", "T", 5) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("steps", [2, 4, 5], ids=["undecided", "decided", "finished"])
async def test_a_queue_of_a_broker_that_was_lost_just_after_a_move_goes_on(
    brokers: Pairs, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Its slave has not copied the tables since the master got the queue."""
    master = await brokers.start("m", brokerName="m")
    slave = await brokers.start("s", brokerName="m", **SLAVE)
    async with (
        admin_of(brokers) as admin,
        Producer(brokers.name_server.address, group="p") as producer,
    ):
        await admin.create_topic("first", queues=1, brokers=["m"])
        await until(lambda: "first" in slave.core.topics)
        monkeypatch.setattr(MetadataCopy, "run", no_copy)
        await admin.create_static_topic("T", 1, brokers=["a"])
        queue = MessageQueue("T", LOGICAL, 0)
        await producer.send(Message("T", b"0"), queue=queue)
        plan = await admin.plan_queue_moves("T", ["m"])
        if steps == 5:
            await admin.run_static_plan(plan)
        else:
            await run_some_steps(admin, plan, steps)
        await producer.send(Message("T", b"1"), queue=queue)
        await until(lambda: copied(slave, 1))

        await brokers.stop(master)
        await until(lambda: lacks_master(admin, "m"))
        await admin.move_static_queues("T", ["b"], lost="m")
        await producer.send(Message("T", b"2"), queue=queue)

        assert await brokers.consume("G", "T", 3) == [b"0", b"1", b"2"]


async def copied(slave: Broker, count: int) -> bool:
    core = slave.core
    return "T" in core.static_topics and core.store.bounds("T", 0)[1] == count


async def lacks_master(admin: AdminClient, name: str) -> bool:
    addresses = (await admin.cluster_info()).broker_addr_table[name].broker_addrs
    return set(addresses) == {1}


def leads_nothing(broker: Broker) -> bool:
    info = broker.core.static_topics.info("T")
    return info is not None and info.curr_id_map == {}


SERVICE, OPERATIONS = (
    ClientSettings(access_key=name, secret_key=SECRETS[name])
    for name in ("order-service", "operations")
)
USERS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps(
        {"username": "operations", "password": SECRETS["operations"]}
    ),
}


async def create_service_user(admin: AdminClient) -> None:
    """Give the service the rights that the file of plain accounts gives it."""
    entries = [
        PolicyEntryInfo(resource=resource, actions=["Pub", "Sub"], decision="Allow")
        for resource in ("Topic:Orders", "Group:order-service")
    ]
    policy = AclInfo(subject="User:order-service", policies=[PolicyInfo(entries=entries)])
    user = UserInfo(username="order-service", password=SECRETS["order-service"])
    for broker in (await admin.cluster_info()).broker_addr_table.values():
        await admin.create_user(broker.broker_addrs[0], user)
        await admin.create_policy(broker.broker_addrs[0], policy)


@pytest.mark.parametrize("kind", ["plain", "users"])
async def test_queues_move_with_access_control(tmp_path: Path, kind: str) -> None:
    """The service may use topic and group; the brokers sign their own requests as operations."""
    accounts = guarded(tmp_path)
    plain = {"aclEnable": "true", "rocketmqHome": str(accounts.rocketmq_home)}
    settings = {"innerClientAuthenticationCredentials": credentials("operations")}
    settings |= plain if kind == "plain" else USERS
    async with running_pairs(tmp_path, accounts=accounts if kind == "plain" else None) as pairs:
        for name in ("a", "b"):
            await pairs.start(name, brokerName=name, **settings)
        servers = pairs.name_server.address
        queue = MessageQueue("Orders", LOGICAL, 0)
        async with (
            asyncio.timeout(LIMIT_S),
            AdminClient(servers, client=OPERATIONS) as admin,
            AdminClient(servers, client=SERVICE) as service,
            Producer(servers, group="p", client=SERVICE) as producer,
        ):
            if kind == "users":
                await create_service_user(admin)
            await admin.create_static_topic("Orders", 1, brokers=["a"])
            await producer.send(Message("Orders", b"0"), queue=queue)
            plan = await admin.plan_queue_moves("Orders", ["b"])
            with pytest.raises(ResponseError, match=r"(?i)permission"):
                await service.write_static_parts(plan, ["b"])
            await admin.move_static_queues("Orders", ["b"])
            for body in (b"1", b"2"):
                await producer.send(Message("Orders", body), queue=queue)

            consumed = await pairs.consume("order-service", "Orders", 1, SERVICE)
            assert (await admin.committed("order-service", "Orders"))[queue] == 1
            consumed += await pairs.consume("order-service", "Orders", 2, SERVICE)

            assert consumed == [b"0", b"1", b"2"]
            assert (await admin.committed("order-service", "Orders"))[queue] == 3
            assert (await admin.queue_bounds("Orders"))[queue] == (0, 3)


@pytest.mark.parametrize("steps", [2, pytest.param(4, marks=pytest.mark.long)])
async def test_a_new_master_leads_no_queue_that_has_moved_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """It has not copied the mapping by which its master lost the queue."""
    async with elected_and_b(tmp_path) as (elected, first, second):
        pairs = elected.pairs
        async with (
            admin_of(pairs) as admin,
            Producer(pairs.name_server.address, group="p") as producer,
        ):
            await admin.create_static_topic("T", 1, brokers=["pair"])
            queue = MessageQueue("T", LOGICAL, 0)
            for number in range(2):
                await producer.send(Message("T", b"%d" % number), queue=queue)
            await until(lambda: copied(second, 2))
            monkeypatch.setattr(MetadataCopy, "run", no_copy)
            plan = await admin.plan_queue_moves("T", ["b"])
            await run_some_steps(admin, plan, steps)

            await pairs.stop(first)
            await until(lambda: is_master(second) and second.core.role.in_force.is_set())

            refused = await elected.send(second, b"lost", "T", queue_id=0)
            assert refused.code == ResponseCode.NOT_LEADER_FOR_QUEUE
            await until(lambda: pairs.name_server.registry.groups["pair"].addresses.get(0))
            await admin.move_static_queues("T", ["b"])
            await producer.send(Message("T", b"2"), queue=queue)
            assert await pairs.consume("G", "T", 3) == [b"0", b"1", b"2"]
            assert await problems(admin) == []


async def test_a_new_master_has_the_changes_that_its_master_has_responded_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave gets them with the log, and does not wait until it copies the tables."""
    async with elected_and_b(tmp_path) as (elected, first, second):
        pairs = elected.pairs
        monkeypatch.setattr(MetadataCopy, "run", no_copy)
        async with (
            admin_of(pairs) as admin,
            Producer(pairs.name_server.address, group="p") as producer,
        ):
            await admin.create_static_topic("T", 1, brokers=["pair"])
            leaders = await admin.create_static_topic("T", 4, brokers=["pair"])
            await admin.create_static_topic("gained", 1, brokers=["b"])
            await admin.create_static_topic("deleted", 1, brokers=["pair"])
            queues = [MessageQueue("T", LOGICAL, number) for number in range(4)]
            gained = MessageQueue("gained", LOGICAL, 0)
            for queue in (*queues, gained):
                await producer.send(Message(queue.topic, b"before"), queue=queue)
            await admin.move_static_queues("gained", ["pair"])
            await admin.delete_topic("deleted")

            await pairs.stop(first)
            await until(lambda: is_master(second) and second.core.role.in_force.is_set())

            core = second.core
            assert set(core.static_topics.all()) == {"T", "gained"}
            assert core.topics.require("T").write_queue_nums == 2
            assert list(leaders.values()).count("pair") == 2
            assert "deleted" not in core.topics
            await until(lambda: pairs.name_server.registry.groups["pair"].addresses.get(0))
            for queue in (*queues, gained):
                await producer.send(Message(queue.topic, b"after"), queue=queue)
            assert await pairs.consume("G", "gained", 2) == [b"before", b"after"]
            assert sorted(await pairs.consume("G", "T", 8)) == [b"after"] * 4 + [b"before"] * 4
            assert await problems(admin) == []


@pytest.mark.parametrize("loses", [False, True], ids=["gains", "loses"])
@pytest.mark.parametrize("is_stored", [False, True], ids=["before", "after"])
async def test_an_election_during_a_request_of_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loses: bool, is_stored: bool
) -> None:
    """Another master is elected before, or after, the change is in the log of the first one."""
    async with elected_and_b(tmp_path) as (elected, first, second):
        pairs = elected.pairs
        source, target = ("pair", "b") if loses else ("b", "pair")
        async with (
            admin_of(pairs) as admin,
            Producer(pairs.name_server.address, group="p") as producer,
        ):
            await admin.create_static_topic("T", 1, brokers=[source])
            queue = MessageQueue("T", LOGICAL, 0)
            await producer.send(Message("T", b"0"), queue=queue)
            table = first.core.static_topics
            replace = table.replace

            async def replace_and_elect(*change: Any) -> int:
                log_end = await replace(*change) if is_stored else 0
                assert (await elected.elect(2)).code == ResponseCode.SUCCESS
                await until(lambda: is_master(second) and not is_master(first))
                return log_end if is_stored else await replace(*change)

            monkeypatch.setattr(table, "replace", replace_and_elect)
            with pytest.raises(ResponseError):
                await admin.move_static_queues("T", [target])
            await until(lambda: is_leading(admin, second))

            await admin.move_static_queues("T", [target])
            await producer.send(Message("T", b"1"), queue=queue)

            assert set(leaders_of(await admin.static_parts("T")).values()) == {target}
            assert await pairs.consume("G", "T", 2) == [b"0", b"1"]
            assert await problems(admin) == []


async def is_leading(admin: AdminClient, broker: Broker) -> bool:
    """Whether clients find a broker as the master of its name."""
    if not broker.core.role.in_force.is_set():
        return False
    info = await admin.cluster_info()
    return info.broker_addr_table["pair"].broker_addrs.get(0) == broker.address


async def test_changes_of_the_log_are_made_at_the_next_start_or_again(
    brokers: Pairs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await brokers.start("d", brokerName="d")
    async with admin_of(brokers) as admin:
        for topic in ("T", "deleted"):
            await admin.create_static_topic(topic, 1, brokers=["d"])
        await admin.delete_topic("deleted")
        stored = broker.core.static_topics._stored
        with monkeypatch.context() as patch:
            patch.setattr(stored, "change", refuse_write)
            with pytest.raises(ResponseError, match="no room"):
                await admin.create_static_topic("T", 5, brokers=["d"])
        assert detail_at(broker).total_queues == 1

        await brokers.stop(broker)
        broker = await brokers.start("d", brokerName="d")
        before = detail_at(broker)
        assert before.total_queues == 5
        assert broker.core.topics.require("T").write_queue_nums == len(before.hosted_queues or {})

        put(broker.core.store, b"damaged", topic=MAPPING_TOPIC, queue_id=MAPPING_QUEUE)
        broker.features.static_topics.before_truncation(0)
        assert broker.core.static_topics.changes_known == 0
        await broker.features.static_topics._make_changes()
        assert detail_at(broker) == before
        assert broker.core.static_topics.changes_known == 5
        assert "deleted" not in broker.core.topics
        assert "passed over damaged changes of static topics count=1" in caplog.text


async def refuse_write(*_: object, **__: object) -> None:
    raise StoreError("no room")


def detail_at(broker: Broker) -> TopicQueueMappingDetail:
    detail = broker.core.static_topics.get("T")
    assert detail is not None
    return detail


async def test_a_change_that_no_slave_has_is_made_and_refused(brokers: Pairs) -> None:
    broker = await brokers.start("d", brokerName="d", brokerRole="SYNC_MASTER")
    async with admin_of(brokers) as admin:
        with pytest.raises(ResponseError, match="have not confirmed it: send the same request"):
            await admin.create_static_topic("T", 1, brokers=["d"])
    assert detail_at(broker).total_queues == 1


async def test_the_lag_of_a_moved_queue_is_that_of_the_logical_queue(brokers: Pairs) -> None:
    """The last commit at the old broker is behind its last message, and stays there."""
    async with (
        admin_of(brokers) as admin,
        Producer(brokers.name_server.address, group="p") as producer,
    ):
        await admin.create_static_topic("T", 1, brokers=["a"])
        queue = MessageQueue("T", LOGICAL, 0)
        for number in range(3):
            await producer.send(Message("T", b"%d" % number), queue=queue)
        assert len(await brokers.consume("all", "T", 2)) == 2
        assert len(await brokers.consume("some", "T", 3)) == 3
        await admin.move_static_queues("T", ["b"])
        for number in (3, 4):
            await producer.send(Message("T", b"%d" % number), queue=queue)
        assert len(await brokers.consume("all", "T", 3)) == 3

        ended = MessageQueue("T", "a", 0)
        old = (await admin.cluster_info()).broker_addr_table["a"].broker_addrs[0]
        physical = (await admin.broker_consume_stats(old, "all", "T")).offset_table[ended]
        assert (physical.consumer_offset, physical.broker_offset) == (2, 3)
        for group, lag in (("all", 0), ("some", 2)):
            row = (await admin.consume_stats(group))[queue]
            assert row.broker_offset - row.consumer_offset == lag, group
        found = [
            finding.met
            for check in checks(await look_at_cluster(admin))
            if check.name == "groups"
            for finding in await check.run()
            if finding.level is not Level.FINE
        ]
        assert found == ["no consumer is online, 2 messages not consumed"]


async def look_at_cluster(admin: AdminClient) -> Cluster:
    """What the doctor knows of the masters."""
    cluster = Cluster(admin)
    for name, data in (await admin.cluster_info()).broker_addr_table.items():
        cluster.brokers.append(DoctorsBroker(name, 0, data.broker_addrs[0], {}, {}))
    return cluster


async def no_copy(copy: MetadataCopy) -> None:
    """A slave that has not copied the tables of its master yet."""


async def clean(*brokers: Broker) -> None:
    """Remove expired items, as each of the brokers does it every five minutes."""
    for broker in brokers:
        await broker.features.static_topics._expired.get().run()


def expire(broker: Broker) -> None:
    """Let all files of the log but the last one expire."""
    broker.core.store.write_out()
    in_a_year_ms = broker.core.clock.now_ms() + 365 * 86_400_000
    broker.core.store.clean(in_a_year_ms, expired_at_any_hour=True)


def items_at(broker: Broker) -> dict[int, list[str]]:
    """The brokers of the items in a part."""
    detail = broker.core.static_topics.get("T")
    assert detail is not None
    hosted = detail.hosted_queues or {}
    return {queue_id: [item.bname for item in items] for queue_id, items in hosted.items()}


SMALL_LOG = {"mappedFileSizeCommitLog": str(256 * 1024)}


async def fill_log(producer: Producer, broker: str) -> None:
    """Store so many messages of another topic that the first file of the log is full."""
    for _ in range(20):
        await producer.send(
            Message("other", os.urandom(16_000)), queue=MessageQueue("other", broker, 0)
        )


async def test_items_go_when_their_messages_have_expired_and_offsets_stay(brokers: Pairs) -> None:
    old = await brokers.start("old", brokerName="old", **SMALL_LOG)
    new = next(each for each in brokers.running if each.core.static_topics.broker_name == "b")
    async with (
        admin_of(brokers) as admin,
        Producer(brokers.name_server.address, group="p") as producer,
    ):
        await admin.create_topic("other", queues=1, brokers=["old"])
        await admin.create_static_topic("T", 2, brokers=["old"])
        queues = [MessageQueue("T", LOGICAL, number) for number in range(2)]
        for number in range(4):
            await producer.send(Message("T", b"%d" % number), queue=queues[number % 2])
        assert len(await brokers.consume("behind", "T", 1)) == 1
        await admin.move_static_queues("T", ["b"])
        for number in (4, 5):
            await producer.send(Message("T", b"%d" % number), queue=queues[number % 2])
        await clean(new, old)
        assert items_at(new) == {0: ["old", "b"], 1: ["old", "b"]}

        await fill_log(producer, "old")
        expire(old)
        await clean(new, old)

        assert items_at(new) == {0: ["b"], 1: ["b"]}
        assert items_at(old) == {}
        async with PullConsumer(brokers.name_server.address, group="behind") as consumer:
            assert {await consumer.committed(each) for each in queues} <= {2, None}
            assert 2 in [await consumer.committed(each) for each in queues]
        assert sorted(await brokers.consume("fresh", "T", 2)) == [b"4", b"5"]

        await brokers.stop(old)
        await admin.move_static_queues("T", ["c"])
        await producer.send(Message("T", b"6"), queue=queues[0])
        assert sorted(await brokers.consume("last", "T", 3)) == [b"4", b"5", b"6"]
        assert await problems(admin) == []


async def test_items_stay_while_their_broker_is_away_or_has_lost_its_mapping(
    brokers: Pairs, tmp_path: Path
) -> None:
    old = await brokers.start("old", brokerName="old")
    new = next(each for each in brokers.running if each.core.static_topics.broker_name == "b")
    async with admin_of(brokers) as admin:
        await admin.create_static_topic("T", 1, brokers=["old"])
        await admin.move_static_queues("T", ["b"])
        await brokers.stop(old)
        await clean(new)
        assert items_at(new) == {0: ["old", "b"]}

        shutil.rmtree(tmp_path / "old")
        old = await brokers.start("old", brokerName="old")
        ordinary = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
        await admin.set_topic_config(old.address, ordinary)
        await clean(new)
        assert items_at(new) == {0: ["old", "b"]}

        await brokers.stop(old)
        shutil.rmtree(tmp_path / "old")
        old = await brokers.start("old", brokerName="old")
        await clean(new)
        assert items_at(new) == {0: ["old", "b"]}


async def test_an_item_without_messages_goes_unless_the_next_one_is_undecided(
    brokers: Pairs,
) -> None:
    new = next(each for each in brokers.running if each.core.static_topics.broker_name == "b")
    async with admin_of(brokers) as admin:
        await admin.create_static_topic("T", 1, brokers=["a"])
        plan = await admin.plan_queue_moves("T", ["b"])
        await run_some_steps(admin, plan, 2)
        await clean(*brokers.running)
        assert items_at(new) == {0: ["a", "b"]}

        await admin.move_static_queues("T", ["b"])
        await clean(*brokers.running)
        assert items_at(new) == {0: ["b"]}


async def test_a_plan_needs_brokers_and_queues_and_moves_need_a_topic(brokers: Pairs) -> None:
    async with admin_of(brokers) as admin:
        for queues in (0, 65_536, 10**12):
            with pytest.raises(ConfigError, match=f"queues={queues}: expected 1 to 65535"):
                await admin.plan_static_topic("T", queues, ["a"])
        with pytest.raises(ConfigError, match="no broker is named, expected at least one"):
            await admin.create_static_topic("T", 1, brokers=[])
        for plan in (admin.plan_remapping, admin.plan_queue_moves):
            with pytest.raises(ConfigError, match="no broker is named, expected at least one"):
                await plan("T", [])
            with pytest.raises(ClientError, match="no broker has the topic T, expected a static"):
                await plan("T", ["a"])


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
