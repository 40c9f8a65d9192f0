"""Members that share a topic: the lists of brokers, and their notifications of changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack

import pytest

from cometmq.client import Filter, MessageQueue
from cometmq.client._connection.instance import ClientCore, Membership
from cometmq.client._consuming.rebalancer import Intervals, MemberAllocation, Rebalancer
from cometmq.client.allocation import Averagely
from cometmq.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
)
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Request, RequestHandler, Response, Supervisor
from support.checks.waiting import until

WAIT_S = 120.0


class SharingMember:
    """A member that owns queues, and does nothing with them."""

    def __init__(self, name_servers: str, group: str, topic: str) -> None:
        self.group = group
        self.mine: set[MessageQueue] = set()
        self.instance = ClientCore(name_servers)
        self._topic = topic
        self._tasks = Supervisor("member")
        self._rebalancer = Rebalancer(
            instance=self.instance,
            group=group,
            allocate=MemberAllocation(self.instance, group, broadcast=False, strategy=Averagely()),
            topics=lambda: {topic},
            owner=self,
            intervals=Intervals(600, 0.05),
        )

    def membership(self) -> Membership:
        data = ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            subscription_data_set=[Filter.tags("*").data(self._topic)],
        )
        return Membership(consumers=[data])

    async def start(self) -> None:
        await self.instance.start()
        self.instance.join(self)
        handlers: dict[int, RequestHandler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._called
        }
        self.instance.requests.register(self.group, handlers)
        await self.instance.routes.find(self._topic)
        await self.instance.heartbeat()
        self._rebalancer.start(self._tasks)

    async def stop(self) -> None:
        await self._rebalancer.stop()
        await self._tasks.cancel()
        await self.instance.close()

    def _called(self, request: Request) -> Response | None:
        self._rebalancer.wake()
        return None

    def assigned(self, topic: str) -> Collection[MessageQueue]:
        return self.mine

    async def assign(self, queue: MessageQueue) -> bool:
        self.mine.add(queue)
        return True

    async def revoke(self, queue: MessageQueue) -> bool:
        self.mine.discard(queue)
        return True

    async def rebalanced(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        """Nothing depends on it."""


Join = Callable[[], Awaitable[SharingMember]]


@pytest.fixture
async def join(name_servers: str, group: str, topic: str) -> AsyncIterator[Join]:
    """Let a member of one group join."""
    async with AsyncExitStack() as stack:

        async def one() -> SharingMember:
            member = SharingMember(name_servers, group, topic)
            await member.start()
            stack.push_async_callback(member.stop)
            return member

        yield one


async def test_members_share_the_queues_as_soon_as_a_broker_tells_of_each_other(
    join: Join, queues: list[MessageQueue]
) -> None:
    """Rounds of their own would come ten minutes later."""
    first = await join()
    await until(lambda: len(first.mine) == 4)

    second = await join()
    members = sorted([first, second], key=lambda member: member.instance.client_id)
    await until(lambda: [len(member.mine) for member in members] == [2, 2])

    assert members[0].mine == set(queues[:2])
    assert members[1].mine == set(queues[2:])


async def test_the_queues_of_a_member_that_leaves_go_to_the_others(
    join: Join, queues: list[MessageQueue]
) -> None:
    first, second = await join(), await join()
    await until(lambda: len(first.mine) == len(second.mine) == 2)

    await second.stop()
    await until(lambda: first.mine == set(queues))
