"""Positions of a pull consumer: committed, stored, sought."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client import (
    AdminClient,
    ClientError,
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.client.errors import OffsetRangeError
from cometmq.client.settings import PullSettings
from cometmq.model.offsets import QueueOffset
from support.clients.stored_messages import until_queued

BY_HAND = PullSettings(auto_commit_ms=0)


@pytest.fixture
async def queue(instance: ClientInstance, queues: list[MessageQueue]) -> MessageQueue:
    """A queue with ten messages, numbered from 0."""
    async with Producer(instance=instance, group="test-producer") as sending:
        for number in range(10):
            await sending.send(Message(queues[0].topic, str(number).encode()), queue=queues[0])
    async with AdminClient(instance=instance) as admin:
        await until_queued(admin, queues[0].topic, 10)
    return queues[0]


def consumer(
    name_servers: str, queue: MessageQueue, *, settings: PullSettings | None = None
) -> PullConsumer:
    """A consumer of a group that belongs to the queue's test alone."""
    return PullConsumer(
        name_servers, group=f"g-{queue.topic}", start_from=StartFrom.FIRST, settings=settings
    )


async def take(reading: PullConsumer, count: int) -> list[int]:
    """The numbers of the next messages, one at a time."""
    numbers = []
    async with asyncio.timeout(60):
        while len(numbers) < count:
            message: StoredMessage = await anext(reading)
            numbers.append(int(message.body))
    return numbers


async def test_a_new_group_begins_at_the_first_message(
    name_servers: str, queue: MessageQueue
) -> None:
    async with consumer(name_servers, queue) as reading:
        await reading.assign([queue])

        assert await take(reading, 10) == list(range(10))


async def test_commit_includes_the_message_in_hand(name_servers: str, queue: MessageQueue) -> None:
    async with consumer(name_servers, queue, settings=BY_HAND) as reading:
        await reading.assign([queue])
        await take(reading, 4)
        await reading.commit()
        assert await reading.committed(queue) == 4

    async with consumer(name_servers, queue) as reading:
        await reading.assign([queue])
        assert await take(reading, 2) == [4, 5]


async def test_without_a_commit_everything_is_handed_out_again(
    name_servers: str, queue: MessageQueue
) -> None:
    for _ in range(2):
        async with consumer(name_servers, queue, settings=BY_HAND) as reading:
            await reading.assign([queue])
            assert await take(reading, 4) == [0, 1, 2, 3]


async def test_closing_commits_what_is_finished_and_not_the_message_in_hand(
    name_servers: str, queue: MessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    async with consumer(name_servers, queue) as reading:
        await reading.assign([queue])
        async for message in reading:
            if message.queue_offset == 3:
                break

    assert "closed with unfinished messages" in caplog.text
    assert "offset=3 messages=1" in caplog.text

    async with consumer(name_servers, queue) as reading:
        assert await reading.committed(queue) == 3
        await reading.assign([queue])
        assert await take(reading, 1) == [3]


async def test_what_is_finished_is_committed_by_itself(
    name_servers: str, queue: MessageQueue
) -> None:
    settings = PullSettings(auto_commit_ms=20)
    async with consumer(name_servers, queue, settings=settings) as reading:
        await reading.assign([queue])
        await take(reading, 8)

        async with asyncio.timeout(120):
            while await reading.committed(queue) != 7:
                await asyncio.sleep(0.02)


async def test_polling_hands_out_the_messages_that_wait(
    name_servers: str, queue: MessageQueue
) -> None:
    async with consumer(name_servers, queue, settings=BY_HAND) as reading:
        await reading.assign([queue])

        assert [int(m.body) for m in await reading.poll()] == list(range(10))
        assert reading.position(queue) == 10
        assert await reading.poll(timeout=0.1) == []


async def test_seeking_goes_on_elsewhere(name_servers: str, queue: MessageQueue) -> None:
    async with consumer(name_servers, queue) as reading:
        await reading.assign([queue])
        assert await take(reading, 2) == [0, 1]

        await reading.seek(queue, 7)
        assert await take(reading, 2) == [7, 8]

        await reading.seek_to_begin()
        assert await take(reading, 1) == [0]


async def test_seeking_beyond_what_the_queue_holds_is_refused_and_moves_nothing(
    name_servers: str, queue: MessageQueue
) -> None:
    async with consumer(name_servers, queue) as reading:
        await reading.assign([queue])
        await take(reading, 2)

        for offset in (-1, 11):
            with pytest.raises(OffsetRangeError, match="has 0 to 10"):
                await reading.seek(queue, offset)
        assert await take(reading, 1) == [2]

        await reading.seek(queue, 10)
        assert await reading.poll(timeout=0.1) == []


@pytest.mark.parametrize("assigned", [True, False])
async def test_committing_beyond_the_end_is_refused_and_commits_nothing(
    name_servers: str, queue: MessageQueue, *, assigned: bool
) -> None:
    async with consumer(name_servers, queue, settings=BY_HAND) as reading:
        if assigned:
            await reading.assign([queue])
            await take(reading, 2)
        await reading.commit({queue: 1})

        for offset in (-1, 11, 10**9):
            with pytest.raises(OffsetRangeError, match=f"offset {offset} is .* has 0 to 10"):
                await reading.commit({queue: offset})
        assert await reading.committed(queue) == 1

        await reading.commit({queue: 10})
        assert await reading.committed(queue) == 10


async def test_behind_the_end_only_new_messages_come(
    name_servers: str, queue: MessageQueue
) -> None:
    async with (
        consumer(name_servers, queue) as reading,
        Producer(name_servers, group="test-producer") as sending,
    ):
        await reading.assign([queue])
        await reading.seek_to_end()
        await sending.send(Message(queue.topic, b"10"), queue=queue)

        assert await take(reading, 1) == [10]


async def test_seeking_to_a_time_finds_a_message_stored_then(
    name_servers: str, queue: MessageQueue, target: str
) -> None:
    async with consumer(name_servers, queue) as reading:
        sixth = (await reading.pull(queue, 6)).messages[0]
        await reading.assign([queue])

        await reading.seek_to_time(sixth.store_time_ms)
        first = (await take(reading, 1))[0]

        assert (await reading.pull(queue, first)).messages[0].store_time_ms == sixth.store_time_ms
        if target != "4.9.7":  # which knows no first: any message of the same millisecond will do
            assert first <= 6


async def test_a_place_that_is_no_longer_there_is_left_for_one_that_is(
    name_servers: str, queue: MessageQueue
) -> None:
    async with (
        consumer(name_servers, queue) as reading,
        Producer(name_servers, group="test-producer") as sending,
    ):
        await reading.assign([queue])
        await reading.seek_to_end()
        await reading.assign([])
        await reading._offsets.commit(f"g-{queue.topic}", queue, QueueOffset(10_000))
        await reading.assign([queue])
        await sending.send(Message(queue.topic, b"10"), queue=queue)
        numbers = await take(reading, 1)
        while numbers[-1] != 10:
            numbers += await take(reading, 1)

        # Our broker counts an offset beyond the end as the end; others let the member begin anew.
        assert numbers in ([10], list(range(11)))


async def test_a_queue_taken_away_yields_nothing_more(
    name_servers: str, queue: MessageQueue
) -> None:
    async with consumer(name_servers, queue) as reading:
        await reading.assign([queue])
        await take(reading, 1)

        await reading.assign([])

        assert reading.queues() == []
        assert await reading.poll(timeout=0.2) == []
        with pytest.raises(ClientError, match="not assigned"):
            await reading.seek(queue, 0)


async def test_a_consumer_that_waits_can_be_cancelled_and_goes_on(
    name_servers: str, queue: MessageQueue
) -> None:
    async with consumer(name_servers, queue) as reading:
        await reading.assign([queue])
        await take(reading, 10)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await anext(reading)

        await reading.seek(queue, 3)
        assert await take(reading, 2) == [3, 4]


async def test_who_pulls_by_hand_keeps_places_by_hand(
    name_servers: str, queue: MessageQueue
) -> None:
    async with consumer(name_servers, queue, settings=BY_HAND) as reading:
        result = await reading.pull(queue, 3, max_messages=2)
        await reading.commit({queue: result.next_offset})

        assert [message.body for message in result.messages] == [b"3", b"4"]
        assert await reading.committed(queue) == 5
