"""Rebalances: assigned and revoked queues, and calls of the listener."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.rebalancer import (
    LOOKUPS_MAX,
    RECONNECT_S,
    Intervals,
    MemberAllocation,
    QueueTable,
    Rebalancer,
)
from cometmq.client._supervision import SupervisedTasks
from cometmq.client.allocation import AllocationStrategy, Averagely
from cometmq.client.errors import ClientError
from cometmq.client.settings import ClientSettings
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting import Response, Supervisor
from support.brokers.group_broker import GroupBroker
from support.brokers.scripted import ScriptedCluster, route
from support.checks.waiting import Changes

TOPIC = "t"
ALL = [MessageQueue(TOPIC, "a", number) for number in range(4)]
LONG_S = 600.0

pytestmark = pytest.mark.usefixtures("virtual_time")


class Owner(Changes):
    """Owns queues, and notes how it came to them."""

    def __init__(self) -> None:
        super().__init__()
        self.mine: set[MessageQueue] = set()
        self.busy: set[MessageQueue] = set()
        """Queues that cannot be given up yet."""
        self.shut: set[MessageQueue] = set()
        """Queues that cannot be taken yet."""
        self.broken: set[MessageQueue] = set()
        """Queues that raise when they are taken."""
        self.error: BaseException = ClientError("cannot begin")
        """What they raise."""
        self.told: list[tuple[str, int, list[MessageQueue]]] = []
        self.takes = 0
        self.at_once = 0
        self.at_once_max = 0

    def assigned(self, topic: str) -> Collection[MessageQueue]:
        return [queue for queue in self.mine if queue.topic == topic]

    async def assign(self, queue: MessageQueue) -> bool:
        self.takes += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        await asyncio.sleep(0)
        self.at_once -= 1
        if queue in self.broken:
            raise self.error
        if queue in self.shut:
            return False
        self.mine.add(queue)
        self.moved.set()
        return True

    async def revoke(self, queue: MessageQueue) -> bool:
        if queue in self.busy:
            return False
        self.mine.discard(queue)
        self.moved.set()
        return True

    async def rebalanced(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        self.told.append((topic, len(queues), list(mine)))
        self.moved.set()


class Group:
    """A member of a group, on a scripted cluster."""

    def __init__(self, cluster: ScriptedCluster, broker: GroupBroker, instance: Any) -> None:
        self.cluster = cluster
        self.broker = broker
        self.instance: ClientCore = instance
        self.owner = Owner()
        self.topics = {TOPIC}
        self.tasks = Supervisor("test")
        broker.members = [instance.client_id]

    def rebalancer(
        self,
        *,
        broadcast: bool = False,
        strategy: AllocationStrategy | None = None,
        interval_s: float = LONG_S,
        min_interval_s: float = 0.01,
    ) -> Rebalancer:
        return Rebalancer(
            instance=self.instance,
            group="g",
            allocate=MemberAllocation(
                self.instance, "g", broadcast=broadcast, strategy=strategy or Averagely()
            ),
            topics=lambda: self.topics,
            owner=self.owner,
            intervals=Intervals(interval_s, min_interval_s),
        )


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    broker = GroupBroker()
    async with ScriptedCluster([broker]) as cluster:
        cluster.name_server.routes[TOPIC] = route({"a": broker.address}, queues=4)
        settings = ClientSettings(instance_name="m2")
        async with ClientCore(cluster.address, settings=settings) as instance:
            made = Group(cluster, broker, instance)
            yield made
            await made.tasks.cancel()


async def test_the_only_member_takes_all_queues(group: Group) -> None:
    assert await group.rebalancer().once()

    assert group.owner.mine == set(ALL)
    assert group.owner.told == [(TOPIC, 4, ALL)]


async def test_a_member_takes_its_share_in_the_order_of_client_ids(group: Group) -> None:
    group.broker.members = ["0-first", group.instance.client_id]

    assert await group.rebalancer().once()

    assert group.owner.mine == set(ALL[2:])


async def test_queues_are_given_up_when_another_member_comes(group: Group) -> None:
    rebalancer = group.rebalancer()
    await rebalancer.once()
    group.broker.members = ["0-first", group.instance.client_id]

    assert await rebalancer.once()

    assert group.owner.mine == set(ALL[2:])
    assert group.owner.told[-1] == (TOPIC, 4, ALL[2:])


async def test_the_owner_is_told_only_of_divisions_that_changed(group: Group) -> None:
    rebalancer = group.rebalancer()
    await rebalancer.once()
    await rebalancer.once()

    assert len(group.owner.told) == 1


async def test_every_member_takes_all_queues_of_a_broadcast_and_asks_for_nobody(
    group: Group,
) -> None:
    group.broker.members = ["0-first", group.instance.client_id]

    assert await group.rebalancer(broadcast=True).once()

    assert group.owner.mine == set(ALL)
    assert group.broker.member_questions == 0


@pytest.mark.parametrize("stuck", ["busy", "shut", "broken"])
async def test_a_round_is_unbalanced_while_a_queue_cannot_be_moved(
    group: Group, stuck: str
) -> None:
    rebalancer = group.rebalancer()
    if stuck == "busy":
        await rebalancer.once()
        group.broker.members = ["0-first", group.instance.client_id]
    getattr(group.owner, stuck).add(ALL[0])
    expected = set(ALL[2:]) | {ALL[0]} if stuck == "busy" else set(ALL[1:])

    assert not await rebalancer.once()
    assert group.owner.mine == expected

    getattr(group.owner, stuck).clear()
    assert await rebalancer.once()
    assert (ALL[0] in group.owner.mine) is (stuck != "busy")


async def test_queues_that_another_member_still_has_are_logged_once(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """The locks of an ordered member that was killed expire within a minute."""
    group.owner.shut = set(ALL[:2])
    rebalancer = group.rebalancer()

    with caplog.at_level(logging.INFO):
        assert not await rebalancer.once()
        assert not await rebalancer.once()
        group.owner.shut = set()
        assert await rebalancer.once()

    waits = [each.message for each in caplog.records if "not free" in each.message]
    assert waits == ["queues are not free yet, retrying topic=t group=g queues=2"]


@pytest.mark.parametrize("error", [ValueError("gone"), asyncio.CancelledError()], ids=repr)
async def test_a_queue_whose_offset_store_raises_keeps_no_other_queue_back(
    group: Group, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    group.owner.broken, group.owner.error = {ALL[0]}, error

    assert not await group.rebalancer().once()

    assert group.owner.mine == set(ALL[1:])
    assert "cannot assign or revoke a queue, retrying queue=t@a:0" in caplog.text


async def test_queues_stay_when_the_broker_does_not_tell_the_members(group: Group) -> None:
    rebalancer = group.rebalancer()
    await rebalancer.once()
    group.broker.member_failures.append(Response(ResponseCode.SYSTEM_ERROR, "no consumer"))

    assert not await rebalancer.once()

    assert group.owner.mine == set(ALL)


async def restart(broker: GroupBroker, *members: str) -> None:
    """Lose all connections; then list these members, those that reconnected first."""
    broker.members = list(members)
    await broker.be_away(0.1)


OTHER = "0-first"


async def test_queues_stay_while_members_reconnect_to_a_broker_that_restarted(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    own, broker = group.instance.client_id, group.broker
    broker.members = [OTHER, own]
    rebalancer = group.rebalancer()
    await rebalancer.once()

    with caplog.at_level(logging.INFO):
        for _ in range(2):
            await restart(broker, own)
            assert not await rebalancer.once()
            assert not await rebalancer.once()
            await restart(broker)
            assert not await rebalancer.once()
            broker.members = [own, OTHER]
            assert await rebalancer.once()

    assert group.owner.mine == set(ALL[2:])
    assert group.owner.told == [(TOPIC, 4, ALL[2:])]
    waits = [each.message for each in caplog.records if "not reconnected" in each.message]
    assert (
        waits
        == [
            "members have not reconnected yet, queues stay"
            f" group=g address={broker.address} missing=1"
        ]
        * 2
    ), "once for each restart"


@pytest.mark.parametrize("breaks", [False, True], ids=["once", "again and again"])
async def test_a_member_that_died_with_the_broker_is_waited_for_until_it_had_time_to_reconnect(
    group: Group, *, breaks: bool
) -> None:
    loop = asyncio.get_running_loop()
    own, broker = group.instance.client_id, group.broker
    broker.members = [OTHER, own]
    rebalancer = group.rebalancer(min_interval_s=1.0)
    rebalancer.start(group.tasks)
    await group.owner.until(lambda: group.owner.mine == set(ALL[2:]))
    await restart(broker, own)
    rebalancer.wake()
    began_s = loop.time()
    while breaks and loop.time() < began_s + RECONNECT_S - 1:
        await asyncio.sleep(3.0)
        await restart(broker, own)

    await group.owner.until(lambda: group.owner.mine == set(ALL))

    assert RECONNECT_S <= loop.time() - began_s < RECONNECT_S + 3
    await rebalancer.stop()


async def test_queues_of_a_member_that_leaves_are_taken_at_once(group: Group) -> None:
    """Also soon after a restart, once the member has reconnected."""
    own, broker = group.instance.client_id, group.broker
    broker.members = [OTHER, own]
    rebalancer = group.rebalancer()
    await rebalancer.once()
    broker.members = [own]
    assert await rebalancer.once()
    assert group.owner.mine == set(ALL)

    await restart(broker, own, OTHER)
    assert await rebalancer.once()
    assert group.owner.mine == set(ALL[2:])
    broker.members = [own]
    assert await rebalancer.once()

    assert group.owner.mine == set(ALL)


async def test_a_member_that_joins_waits_for_those_that_reconnect(group: Group) -> None:
    own, broker = group.instance.client_id, group.broker
    broker.members = [OTHER, own]
    rebalancer = group.rebalancer()
    await rebalancer.once()

    await restart(broker, own, "0-new")
    assert not await rebalancer.once()
    assert group.owner.mine == set(ALL[2:])
    broker.members = [OTHER, own, "0-new"]
    assert await rebalancer.once()

    assert group.owner.mine == {ALL[3]}


async def test_queues_stay_when_one_of_several_brokers_restarted() -> None:
    """A round requests the members from any of them."""
    brokers = [GroupBroker("a"), GroupBroker("b")]
    async with ScriptedCluster(brokers) as cluster, ClientCore(cluster.address) as instance:
        group = Group(cluster, brokers[0], instance)
        for broker in brokers:
            broker.members = [OTHER, instance.client_id]
        rebalancer = group.rebalancer()
        while not all(broker.member_questions for broker in brokers):
            await rebalancer.once()
        before = set(group.owner.mine)
        await restart(brokers[1], instance.client_id)
        asked = brokers[1].member_questions

        while brokers[1].member_questions < asked + 5:
            await rebalancer.once()

        assert len(before) == 2
        assert group.owner.mine == before


async def test_queues_stay_when_the_strategy_cannot_divide(group: Group) -> None:
    rebalancer = group.rebalancer()
    await rebalancer.once()
    group.cluster.name_server.routes[TOPIC] = route({"a": group.broker.address}, queues=0)
    await group.instance.routes.refresh(TOPIC)

    assert await rebalancer.once()

    assert group.owner.mine == set(ALL)


async def test_a_topic_that_does_not_exist_is_passed_over_and_told_of_once(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """But for the group's retry topic, which nobody has made before a message needs it."""
    group.topics = {TOPIC, "%RETRY%g", "misspelt"}
    rebalancer = group.rebalancer()

    tried_soon = [not await rebalancer.once() for _ in range(LOOKUPS_MAX)]
    assert all(tried_soon)
    assert await rebalancer.once()

    assert group.owner.mine == set(ALL)
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told == [
        "rebalance failed, retrying topic=misspelt group=g error=no broker serves topic misspelt:"
        " the name server has no route of it; check the name, create the topic by a send or"
        " `cometmq admin topic create`, or start its broker"
    ]


async def test_a_broker_that_does_not_know_this_member_is_greeted_before_queues_are_given_up(
    group: Group,
) -> None:
    group.broker.members = ["0-first"]

    assert await group.rebalancer().once()

    assert group.broker.member_questions == 2
    assert group.owner.mine == set()


async def test_the_queues_of_a_topic_are_given_up_when_it_is_not_subscribed_any_more(
    group: Group,
) -> None:
    rebalancer = group.rebalancer()
    await rebalancer.once()
    group.topics = set()

    assert await rebalancer.once()

    assert group.owner.mine == set()
    assert group.owner.told[-1] == (TOPIC, 0, [])


async def test_a_paused_rebalancer_changes_nothing(group: Group) -> None:
    rebalancer = group.rebalancer()
    rebalancer.paused = True

    assert await rebalancer.once()

    assert group.owner.mine == set()


async def test_queues_are_moved_several_at_a_time_but_not_all_at_once(group: Group) -> None:
    group.cluster.name_server.routes[TOPIC] = route({"a": group.broker.address}, queues=64)

    assert await group.rebalancer().once()

    assert group.owner.takes == 64
    assert 1 < group.owner.at_once_max <= 16


async def test_a_call_divides_at_once(group: Group) -> None:
    rebalancer = group.rebalancer()
    rebalancer.start(group.tasks)
    await group.owner.until(lambda: len(group.owner.told) == 1)
    group.broker.members = ["0-first", group.instance.client_id]

    rebalancer.wake()
    await group.owner.until(lambda: len(group.owner.told) == 2)

    assert group.owner.mine == set(ALL[2:])
    await rebalancer.stop()


async def test_a_route_that_changed_divides_at_once(group: Group) -> None:
    rebalancer = group.rebalancer()
    rebalancer.start(group.tasks)
    await group.owner.until(lambda: len(group.owner.told) == 1)
    group.cluster.name_server.routes[TOPIC] = route({"a": group.broker.address}, queues=6)

    await group.instance.routes.refresh(TOPIC)
    await group.owner.until(lambda: len(group.owner.told) == 2)

    assert len(group.owner.mine) == 6
    await rebalancer.stop()


async def test_an_unbalanced_round_is_followed_by_another_one_soon(group: Group) -> None:
    group.owner.shut = {ALL[0]}
    rebalancer = group.rebalancer()
    rebalancer.start(group.tasks)
    await group.owner.until(lambda: len(group.owner.told) == 1)

    group.owner.shut = set()
    await group.owner.until(lambda: len(group.owner.told) == 2)

    assert group.owner.mine == set(ALL)
    await rebalancer.stop()


async def test_a_regular_round_comes_without_a_call(group: Group) -> None:
    rebalancer = group.rebalancer(interval_s=0.02)
    rebalancer.start(group.tasks)
    await group.owner.until(lambda: len(group.owner.told) == 1)
    group.broker.members = ["0-first", group.instance.client_id]

    await group.owner.until(lambda: len(group.owner.told) == 2)

    await rebalancer.stop()


async def test_calls_that_come_thick_are_answered_by_few_rounds(group: Group) -> None:
    rebalancer = group.rebalancer(min_interval_s=5.0)
    rebalancer.start(group.tasks)
    await group.owner.until(lambda: len(group.owner.told) == 1)
    before = group.broker.member_questions

    for _ in range(20):
        rebalancer.wake()
        await asyncio.sleep(0.5)
    await rebalancer.stop()

    assert 1 <= group.broker.member_questions - before <= 3


class Faulty:
    """A strategy with a defect."""

    name = "FAULTY"

    def __init__(self) -> None:
        self.failures = 1

    def allocate(self, group: str, client_id: str, queues: Any, clients: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise ZeroDivisionError
        return list(queues)


async def test_rounds_go_on_after_one_that_failed(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    rebalancer = group.rebalancer(strategy=Faulty())
    with caplog.at_level(logging.WARNING):
        rebalancer.start(group.tasks)
        await group.owner.until(lambda: group.owner.mine == set(ALL))

    assert "rebalance failed, retrying" in caplog.text
    await rebalancer.stop()


class FaultyForOne:
    """A strategy with a defect that one topic shows."""

    name = "FAULTY"

    def __init__(self, topic: str, error: type[BaseException]) -> None:
        self._topic, self._error = topic, error

    def allocate(self, group: str, client_id: str, queues: Any, clients: Any) -> Any:
        if queues[0].topic == self._topic:
            raise self._error
        return list(queues)


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_a_topic_that_cannot_be_allocated_keeps_no_other_topic_back(
    group: Group, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    group.cluster.name_server.routes["before"] = route({"a": group.broker.address}, queues=1)
    group.topics = {"before", TOPIC}
    rebalancer = group.rebalancer(strategy=FaultyForOne("before", error))

    assert not await rebalancer.once()
    assert not await rebalancer.once()

    assert group.owner.mine == set(ALL)
    told = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert told == [f"rebalance failed, retrying topic=before group=g error={error.__name__}"], (
        "once, as long as it fails"
    )


async def test_a_round_that_is_cancelled_ends(group: Group) -> None:
    group.owner.shut = set(ALL)
    rebalancer = group.rebalancer()
    rounds = asyncio.create_task(rebalancer.once())
    while not group.owner.at_once:
        await asyncio.sleep(0)

    rounds.cancel()
    await asyncio.wait([rounds])

    assert rounds.cancelled()


async def test_a_stopped_rebalancer_listens_to_nobody(group: Group) -> None:
    listeners = (group.instance.on_broker, group.instance.routes.on_change)
    before = [list(each) for each in listeners]
    rebalancer = group.rebalancer()
    rebalancer.start(group.tasks)
    assert [len(each) for each in listeners] == [len(each) + 1 for each in before]

    await rebalancer.stop()
    await rebalancer.stop()

    assert [list(each) for each in listeners] == before
    assert len(group.tasks) == 0


@pytest.mark.parametrize("strategy", [True, False], ids=["strategy", "offset store"])
async def test_what_raises_in_each_round_is_a_permanent_failure(
    group: Group, *, strategy: bool
) -> None:
    tasks = SupervisedTasks("consumer g")
    if not strategy:
        group.owner.broken, group.owner.error = {ALL[0]}, ZeroDivisionError()
    rebalancer = Rebalancer(
        instance=group.instance,
        group="g",
        allocate=MemberAllocation(
            group.instance,
            "g",
            broadcast=False,
            strategy=FaultyForOne(TOPIC, ZeroDivisionError) if strategy else Averagely(),
        ),
        topics=lambda: group.topics,
        owner=group.owner,
        intervals=Intervals(20),
        on_permanent=tasks.end,
    )
    rebalancer.start(tasks)

    await asyncio.wait_for(tasks.wait_failed(), LONG_S)
    await rebalancer.stop()

    assert isinstance(tasks.failure, ZeroDivisionError)


async def test_a_round_that_hangs_is_begun_anew(group: Group) -> None:
    """A listener or an offset store may never return."""

    class Hanging(Owner):
        hangs = True

        async def assign(self, queue: MessageQueue) -> bool:
            if self.hangs:
                self.hangs = False
                await asyncio.Event().wait()
            return await super().assign(queue)

    group.owner = Hanging()
    rebalancer = group.rebalancer()
    rebalancer.start(group.tasks)
    async with asyncio.timeout(LONG_S):
        await rebalancer.until_assigned(lambda: group.topics)
    await rebalancer.stop()

    assert group.owner.mine == set(ALL)


def test_a_table_of_queues_finds_those_of_a_topic() -> None:
    table: QueueTable[int] = QueueTable()
    queues = [MessageQueue(topic, "a", number) for topic in ("t", "u") for number in range(2)]
    for number, queue in enumerate(queues):
        table[queue] = number
    table[queues[0]] = 7

    assert table.of_topic("t") == queues[:2]
    assert table.of_topic("v") == []
    assert (table.remove(queues[0]), table.remove(queues[0])) == (7, None)
    assert table.of_topic("t") == [queues[1]]
    assert table.remove(queues[1]) == 1
    assert (table.of_topic("t"), table.of_topic("u")) == ([], queues[2:])
    table.remove_all()
    assert (table.of_topic("u"), len(table)) == ([], 0)


@pytest.mark.parametrize("foreign", [MessageQueue("u", "a", 0), MessageQueue(TOPIC, "a", 4), "t"])
async def test_a_strategy_allocates_queues_of_the_topic_only(
    group: Group, foreign: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong:
        name = "WRONG"

        def allocate(self, group: str, client_id: str, queues: Any, clients: Any) -> Any:
            return [*queues, foreign]

    assert await group.rebalancer().once()
    before = set(group.owner.mine)
    await group.rebalancer(strategy=Wrong()).once()

    assert group.owner.mine == before
    assert f"strategy WRONG allocated {foreign}, which is no readable queue of t" in caplog.text
