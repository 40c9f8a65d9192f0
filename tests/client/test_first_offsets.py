"""Where a group begins, by responses of real brokers: committed, first or new offset."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from cometmq.client import AdminClient, ClientInstance, Message, MessageQueue, Producer
from cometmq.client._connection.broker_calls import QueueOffsets
from cometmq.client._connection.instance import core_of
from cometmq.client._consuming.continuation import Continuation
from cometmq.client.offsets import OffsetStore, RemoteOffsetStore, StartFrom
from cometmq.model.offsets import QueueOffset
from support.clients.consumer_inputs import MemoryOffsets
from support.clients.stored_messages import until_queued

GAP_S = 0.3
STARTS = [StartFrom.LAST, StartFrom.FIRST, datetime(2020, 1, 1, tzinfo=UTC)]


class Filled:
    """A queue with six messages, stored three and three with a gap between."""

    def __init__(self, instance: ClientInstance, queue: MessageQueue) -> None:
        self.queue = queue
        self.offsets = QueueOffsets(core_of(instance).routes, core_of(instance).brokers)
        self.second_half_at = datetime.now(UTC)

    async def fill(self, instance: ClientInstance) -> None:
        async with Producer(group="p", instance=instance) as producer:
            for number in range(6):
                if number == 3:
                    await asyncio.sleep(GAP_S)
                    self.second_half_at = datetime.now(UTC)
                await producer.send(Message(self.queue.topic, b"x"), queue=self.queue)
        async with AdminClient(instance=instance) as admin:
            await until_queued(admin, self.queue.topic, 6)

    async def first(
        self, store: OffsetStore, start: StartFrom | datetime, *, retry: bool = False
    ) -> int:
        retry_topic = self.queue.topic if retry else None
        made = Continuation(store, self.offsets, start_from=start, retry_topic=retry_topic)
        return await made.assigned(self.queue)


@pytest.fixture
async def filled(instance: ClientInstance, queues: list[MessageQueue]) -> Filled:
    made = Filled(instance, queues[0])
    await made.fill(instance)
    return made


@pytest.mark.parametrize("start", STARTS, ids=["last", "first", "time"])
async def test_a_group_goes_on_where_it_committed_whatever_its_start(
    filled: Filled, instance: ClientInstance, group: str, start: StartFrom | datetime
) -> None:
    async with AdminClient(instance=instance) as admin:
        await admin.create_group(group)
    await filled.offsets.commit(group, filled.queue, QueueOffset(2))

    assert await filled.first(RemoteOffsetStore(instance, group), start) == 2


@pytest.mark.parametrize("start", STARTS, ids=["last", "first", "time"])
async def test_a_new_group_begins_a_young_topic_at_its_first_message_whatever_its_start(
    filled: Filled, instance: ClientInstance, group: str, start: StartFrom | datetime
) -> None:
    """Brokers say that the group is at 0 while the queue's first message is in memory."""
    assert await filled.first(RemoteOffsetStore(instance, group), start) == 0


async def test_a_group_without_an_offset_begins_where_it_is_told(filled: Filled) -> None:
    unknown = MemoryOffsets()
    just_before = filled.second_half_at - timedelta(milliseconds=5)

    assert await filled.first(unknown, StartFrom.LAST) == 6
    assert await filled.first(unknown, StartFrom.FIRST) == 0
    assert await filled.first(unknown, just_before) == 3
    assert await filled.first(unknown, datetime(2020, 1, 1, tzinfo=UTC)) == 0


async def test_nothing_of_a_retry_topic_is_skipped_unless_the_start_is_a_time(
    filled: Filled,
) -> None:
    unknown = MemoryOffsets()

    assert await filled.first(unknown, StartFrom.LAST, retry=True) == 0
    assert await filled.first(unknown, StartFrom.FIRST, retry=True) == 0
    assert await filled.first(unknown, filled.second_half_at, retry=True) == 6
