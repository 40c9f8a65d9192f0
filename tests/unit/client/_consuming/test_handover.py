"""A queue that another living member had begins when that member has released it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.group_calls import GroupCalls
from cometmq.client._consuming.handover import POLL_S, TAKE_S, UNKNOWN_S, Handover
from cometmq.client._consuming.rebalancer import MemberAllocation
from cometmq.client.allocation import AllocationStrategy, Averagely
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.client import ConsumerRunningInfo, ProcessQueueInfo
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.consumer import GetConsumerRunningInfoRequest
from cometmq.remoting import Request, Response
from support.brokers.group_broker import GroupBroker
from support.brokers.scripted import ScriptedCluster

pytestmark = pytest.mark.usefixtures("virtual_time")

QUEUES = [MessageQueue("t", "a", number) for number in range(4)]
OTHER = "other"


class Member:
    """A member of a group, and what another one says."""

    def __init__(self, broker: GroupBroker, instance: ClientCore) -> None:
        self.broker = broker
        self.instance = instance
        self.calls = GroupCalls(instance)
        self.theirs: set[MessageQueue] | None = set(QUEUES)
        """The queues of the other member; None if it does not say."""
        self.asked: list[str] = []
        broker.handlers[RequestCode.GET_CONSUMER_RUNNING_INFO] = self._running_info
        self.use(Averagely())

    def use(self, strategy: AllocationStrategy) -> None:
        self.allocation = MemberAllocation(self.instance, "g", broadcast=False, strategy=strategy)
        self.handover = Handover(self.calls, "g", self.allocation)

    def _running_info(self, request: Request) -> Response:
        self.asked.append(request.header(GetConsumerRunningInfoRequest).client_id)
        self.broker.moved.set()
        if self.theirs is None:
            return Response(ResponseCode.SYSTEM_ERROR, "the member does not respond")
        table = {queue: ProcessQueueInfo() for queue in self.theirs}
        return Response(body=ConsumerRunningInfo(mq_table=table).encode())

    async def allocated(self, *others: str) -> list[MessageQueue]:
        """Rebalance while these other members are in the group."""
        self.broker.members = [self.instance.client_id, *others]
        found = await self.allocation("t", QUEUES)
        assert found is not None
        return list(found)

    async def first(self, queue: MessageQueue) -> QueueOffset:
        return QueueOffset(7 if self.theirs is None or queue not in self.theirs else 3)

    async def begin(self, *queues: MessageQueue) -> float:
        """Begin queues, and return how long that took."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        offsets = await asyncio.gather(
            *(self.handover.begin(queue, self.first) for queue in queues)
        )
        self.offsets = list(map(int, offsets))
        return loop.time() - begun_s


@pytest.fixture
async def member() -> AsyncIterator[Member]:
    broker = GroupBroker()
    async with ScriptedCluster([broker]) as cluster, ClientCore(cluster.address) as instance:
        made = Member(broker, instance)
        yield made
        await made.handover.stop()


async def test_the_first_member_begins_at_once(member: Member) -> None:
    mine = await member.allocated()

    assert not any(map(member.handover.waits, mine))
    assert await member.begin(*mine) == 0
    assert member.asked == []


async def test_a_newcomer_reads_offsets_after_the_other_member_has_released_its_queues(
    member: Member,
) -> None:
    mine = await member.allocated(OTHER)
    assert len(mine) == 2
    assert all(map(member.handover.waits, mine))

    beginning = asyncio.create_task(member.begin(*mine))
    await member.broker.until(lambda: len(member.asked) == 3)
    assert not beginning.done()
    member.theirs = set(QUEUES) - set(mine)
    assert await beginning >= 3 * POLL_S

    assert member.offsets == [7, 7]
    assert set(member.asked) == {OTHER}
    assert len(member.asked) <= 5, "one question is asked for all queues"


async def test_a_queue_that_the_other_member_does_not_have_begins_after_one_question(
    member: Member,
) -> None:
    mine = await member.allocated(OTHER)
    member.theirs = set()

    await member.begin(*mine)

    assert member.asked == [OTHER]


async def test_the_queues_of_a_member_that_has_left_begin_at_once_and_are_in_doubt(
    member: Member,
) -> None:
    before = set(await member.allocated(OTHER))
    mine = set(await member.allocated())

    for queue in mine - before:
        assert member.handover.is_taken_from_the_dead(queue)
    assert await member.begin(*(mine - before)) == 0
    assert member.asked == []


async def test_the_queue_of_a_member_that_has_left_does_not_wait_for_those_that_stay(
    member: Member,
) -> None:
    await member.allocated()
    assert await member.allocated("0-stays", "z-leaves") == [QUEUES[2]]
    assert await member.allocated("0-stays") == QUEUES[2:]

    assert member.allocation.former_owner(QUEUES[3]) == "z-leaves"
    assert not any(map(member.handover.waits, QUEUES[2:]))


async def test_a_queue_waits_for_a_member_that_does_not_answer_for_a_short_time(
    member: Member,
) -> None:
    mine = await member.allocated(OTHER)
    member.theirs = None

    assert await member.begin(*mine) == pytest.approx(UNKNOWN_S, abs=0.1)


async def test_a_queue_that_is_never_released_begins_in_the_end(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    mine = await member.allocated(OTHER)

    assert await member.begin(*mine) == pytest.approx(TAKE_S, abs=0.5)
    assert "does not release a queue" in caplog.text


async def test_a_wait_ends_when_the_former_owner_is_gone(member: Member) -> None:
    mine = await member.allocated(OTHER)
    beginning = asyncio.create_task(member.begin(*mine))
    await member.broker.until(lambda: len(member.asked) == 2)
    await member.allocated()

    assert await beginning < 1.0


async def test_a_queue_of_an_interrupted_member_is_asked_for_at_all_others(
    member: Member,
) -> None:
    mine = await member.allocated()
    await member.allocated("a", "b")
    queue = mine[0]
    assert not member.handover.waits(queue)
    member.handover.contest(queue)
    member.theirs = set()

    await member.begin(queue)

    assert sorted(member.asked) == ["a", "b"]
    assert not member.handover.waits(queue), "once"


class KnowsItself:
    """Raises if it is to allocate for another member, as an application's strategy may."""

    name = "KNOWS_ITSELF"

    def __init__(self, member: str) -> None:
        self._member = member

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        members: Sequence[str],
    ) -> Sequence[MessageQueue]:
        if client_id != self._member:
            raise LookupError(client_id)
        return Averagely().allocate(group, client_id, queues, members)


async def test_any_other_member_may_have_a_queue_if_the_strategy_does_not_say(
    member: Member,
) -> None:
    member.use(KnowsItself(member.instance.client_id))
    mine = await member.allocated(OTHER)

    assert all(map(member.handover.waits, mine))
