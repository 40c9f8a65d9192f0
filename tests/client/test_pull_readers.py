"""Tasks or threads that share one pull consumer lose no message, and commit none early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import cometmq.client.blocking as blocking
from cometmq.client import (
    AdminClient,
    ClientClosedError,
    ClientError,
    ClientInstance,
    ConfigError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.client.settings import PullSettings
from support.clients.stored_messages import until_queued

COUNT = 10
BY_HAND = PullSettings(auto_commit_ms=0)
ENDS_S = 60


@pytest.fixture
async def queue(instance: ClientInstance, queues: list[MessageQueue]) -> MessageQueue:
    """A queue with ten messages, numbered from 0."""
    async with Producer(instance=instance, group="test-producer") as sending:
        for number in range(COUNT):
            await sending.send(Message(queues[0].topic, str(number).encode()), queue=queues[0])
    async with AdminClient(instance=instance) as admin:
        await until_queued(admin, queues[0].topic, COUNT)
    return queues[0]


@pytest.fixture
async def reading(instance: ClientInstance, queue: MessageQueue) -> AsyncIterator[PullConsumer]:
    """A consumer of the queue that commits when it is told to."""
    async with PullConsumer(
        instance=instance, group=f"g-{queue.topic}", start_from=StartFrom.FIRST, settings=BY_HAND
    ) as consumer:
        await consumer.assign([queue])
        yield consumer


class Worker:
    """A task that asks for messages when it is told to."""

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer = consumer
        self._orders: asyncio.Queue[tuple[str, asyncio.Future[object]]] = asyncio.Queue()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            order, result = await self._orders.get()
            if order == "fail":
                raise ValueError("the worker breaks")
            if order == "next":
                result.set_result(int((await anext(self._consumer)).body))
            elif order == "poll":
                result.set_result([int(each.body) for each in await self._consumer.poll(ENDS_S)])
            elif order == "commit":
                result.set_result(await self._consumer.commit())
            elif order == "take_back":
                result.set_result(self._consumer.take_back())

    def order(self, what: str) -> asyncio.Future[object]:
        """Have the task do something; gives its result."""
        result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._orders.put_nowait((what, result))
        return result

    async def stop(self) -> None:
        """Cancel the task and wait for its end."""
        self.task.cancel()
        await asyncio.wait([self.task])


@pytest.fixture
async def workers(reading: PullConsumer) -> AsyncIterator[tuple[Worker, Worker]]:
    """Two tasks that read with the same consumer."""
    pair = Worker(reading), Worker(reading)
    async with asyncio.timeout(ENDS_S):
        yield pair
        for worker in pair:
            await worker.stop()


async def test_two_tasks_that_iterate_see_every_message_once(
    instance: ClientInstance, queues: list[MessageQueue]
) -> None:
    """Both wait when batches of two queues come; neither batch may replace the other."""
    first, second, *_ = queues
    seen: list[bytes] = []
    complete, both_received = asyncio.Event(), asyncio.Barrier(2)
    async with (
        PullConsumer(instance=instance, group=f"g-{first.topic}", start_from=StartFrom.FIRST) as it,
        Producer(instance=instance, group="test-producer") as sending,
        asyncio.timeout(ENDS_S),
    ):

        async def read() -> None:
            seen.append((await anext(it)).body)
            await both_received.wait()
            async for message in it:
                seen.append(message.body)
                if len(seen) >= 2 * COUNT:
                    complete.set()

        await it.assign([first, second])
        tasks = [asyncio.create_task(read()) for _ in range(2)]
        bodies = [b"%d" % number for number in range(2 * COUNT)]
        await sending.send_batch(
            [Message(first.topic, each) for each in bodies[:COUNT]], queue=first
        )
        await sending.send_batch(
            [Message(first.topic, each) for each in bodies[COUNT:]], queue=second
        )
        await complete.wait()
        await it.close()
        await asyncio.gather(*tasks)

    assert sorted(seen) == sorted(bodies)


async def test_a_message_is_finished_by_the_task_that_received_it(
    reading: PullConsumer, queue: MessageQueue, workers: tuple[Worker, Worker]
) -> None:
    slow, quick = workers
    assert await slow.order("next") == 0
    assert [await quick.order("next") for _ in range(3)] == [1, 2, 3]

    await quick.order("commit")
    assert await reading.committed(queue) == 0

    assert await slow.order("next") == 4
    await quick.order("commit")
    assert await reading.committed(queue) == 4


async def test_polling_beside_iterating_neither_loses_nor_finishes_the_others(
    reading: PullConsumer, queue: MessageQueue, workers: tuple[Worker, Worker]
) -> None:
    one, many = workers
    assert await one.order("next") == 0
    assert await many.order("poll") == list(range(1, COUNT))
    await many.order("commit")
    assert await reading.committed(queue) == 0

    await one.order("commit")
    assert await reading.committed(queue) == COUNT


async def test_what_one_task_takes_back_goes_to_the_one_that_waits(
    reading: PullConsumer, queue: MessageQueue, workers: tuple[Worker, Worker]
) -> None:
    one, other = workers
    assert await one.order("next") == 0
    assert await other.order("poll") == list(range(1, COUNT))
    waits = other.order("next")
    await one.order("take_back")

    assert await waits == 0
    assert reading.position(queue) == COUNT
    await other.order("commit")
    assert await reading.committed(queue) == COUNT


async def test_what_a_failed_task_had_in_hand_goes_to_the_one_that_waits(
    reading: PullConsumer, queue: MessageQueue, workers: tuple[Worker, Worker]
) -> None:
    failing, other = workers
    assert await failing.order("next") == 0
    assert await other.order("poll") == list(range(1, COUNT))
    waits = other.order("next")
    failing.order("fail")

    assert await waits == 0
    assert isinstance(failing.task.exception(), ValueError)


async def test_a_task_for_each_call_reads_on_like_one_task(
    reading: PullConsumer, queue: MessageQueue
) -> None:
    """What a task gave to who awaits it counts as finished with the next call."""
    for number in range(3):
        message = await asyncio.create_task(anext(reading))
        assert int(message.body) == number
    await asyncio.create_task(reading.commit())

    assert await reading.committed(queue) == 3


async def test_closing_ends_every_task_that_waits_and_finishes_nothing(
    instance: ClientInstance, reading: PullConsumer, queue: MessageQueue
) -> None:
    holds = asyncio.Event()

    async def iterate() -> list[int]:
        return [int(message.body) async for message in reading]

    async def hold() -> StoredMessage:
        message = await anext(reading)
        holds.set()
        await asyncio.Event().wait()
        return message

    holding = asyncio.create_task(hold())
    await holds.wait()
    assert len(await reading.poll(ENDS_S)) == COUNT - 1
    iterating = asyncio.create_task(iterate())
    polling = asyncio.create_task(reading.poll(ENDS_S))
    await asyncio.sleep(0)
    async with asyncio.timeout(ENDS_S):
        await reading.close()
        assert await iterating == []
        with pytest.raises(ClientClosedError):
            await polling
    holding.cancel()
    await asyncio.wait([holding])

    async with PullConsumer(
        instance=instance, group=f"g-{queue.topic}", start_from=StartFrom.FIRST
    ) as again:
        await again.assign([queue])
        async with asyncio.timeout(ENDS_S):
            assert int((await anext(again)).body) == 0


@pytest.fixture
def blocked(name_servers: str, queue: MessageQueue) -> Iterator[blocking.PullConsumer]:
    """A consumer for threads that reads the queue."""
    with blocking.PullConsumer(
        name_servers, group=f"g-{queue.topic}", start_from=StartFrom.FIRST, settings=BY_HAND
    ) as consumer:
        consumer.assign([queue])
        yield consumer


def test_two_threads_share_the_messages_and_finish_their_own(
    blocked: blocking.PullConsumer, queue: MessageQueue
) -> None:
    with ThreadPoolExecutor(1) as slow, ThreadPoolExecutor(1) as quick:
        assert int(slow.submit(next, blocked).result(ENDS_S).body) == 0
        rest = [int(quick.submit(next, blocked).result(ENDS_S).body) for _ in range(4)]
        assert rest == [1, 2, 3, 4]
        quick.submit(blocked.commit).result(ENDS_S)
        assert blocked.committed(queue) == 0
        slow.submit(blocked.commit).result(ENDS_S)
        assert blocked.committed(queue) == 5


def test_threads_that_iterate_side_by_side_see_every_message_once(
    blocked: blocking.PullConsumer,
) -> None:
    seen: list[int] = []
    complete = threading.Event()

    def iterate() -> None:
        for message in blocked:
            seen.append(int(message.body))
            if len(seen) >= COUNT:
                complete.set()

    threads = [threading.Thread(target=iterate) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert complete.wait(ENDS_S)
    blocked.close()
    for thread in threads:
        thread.join(ENDS_S)
        assert not thread.is_alive()
    assert sorted(seen) == list(range(COUNT))


def test_what_a_thread_had_in_hand_when_it_ended_is_handed_out_again(
    blocked: blocking.PullConsumer,
) -> None:
    ended = threading.Thread(target=next, args=(blocked,))
    ended.start()
    ended.join(ENDS_S)
    assert int(next(blocked).body) == 0


async def test_a_commit_by_another_task_is_refused_while_several_read(
    reading: PullConsumer, queue: MessageQueue, workers: tuple[Worker, Worker]
) -> None:
    """The task does not say whose messages are finished: `asyncio.shield` makes such tasks."""
    one, other = workers
    assert [await one.order("next"), await other.order("next")] == [0, 1]

    with pytest.raises(ClientError, match="2 tasks or threads"):
        await asyncio.create_task(reading.commit())
    with pytest.raises(ClientError, match="2 tasks or threads"):
        await asyncio.create_task(reading.commit([queue]))

    await reading.commit({queue: 1})
    assert await reading.committed(queue) == 1


async def test_a_reader_that_has_nothing_in_hand_may_commit(
    reading: PullConsumer, queue: MessageQueue, workers: tuple[Worker, Worker]
) -> None:
    one, other = workers
    assert [await one.order("next"), await other.order("next")] == [0, 1]
    await one.order("commit")
    await one.order("commit")

    assert await reading.committed(queue) == 1


async def test_a_reader_that_stops_reading_is_reported_once(
    instance: ClientInstance,
    queue: MessageQueue,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of a pool, say, that went on with other work."""
    async with PullConsumer(
        instance=instance,
        group=f"g-{queue.topic}",
        start_from=StartFrom.FIRST,
        settings=PullSettings(auto_commit_ms=1000),
    ) as consumer:
        monkeypatch.setattr("cometmq.client._pull.core.UNFINISHED_S_MAX", 0.0)
        await consumer.assign([queue])
        slow = Worker(consumer)
        assert await slow.order("next") == 0
        for _ in range(2):
            await consumer._auto_commit()

        warnings = [each for each in caplog.messages if "not committed" in each]
        assert len(warnings) == 1
        assert "offset=0" in warnings[0]
        assert await slow.order("next") == 1
        await consumer._auto_commit()
        await slow.stop()
    assert len([each for each in caplog.messages if "not committed" in each]) == 2


@pytest.mark.parametrize(
    "wrong", [{"max_messages": 0}, {"max_messages": 1025}, {"wait": -1}, {"wait": 121}], ids=str
)
async def test_a_single_pull_beyond_its_ranges_is_refused(
    reading: PullConsumer, queue: MessageQueue, wrong: dict[str, int]
) -> None:
    [(name, met)] = wrong.items()
    with pytest.raises(ConfigError, match=f"{name}={met}: expected"):
        await reading.pull(queue, 0, **wrong)


async def test_what_a_reader_changes_in_a_polled_list_is_not_redelivered(
    reading: PullConsumer,
) -> None:
    messages = await reading.poll(ENDS_S)
    bodies = [message.body for message in messages]
    messages[0].body = b"changed"
    messages.clear()
    reading.take_back()

    assert [message.body for message in await reading.poll(ENDS_S)] == bodies


async def test_messages_are_taken_back_in_the_event_loop_only(reading: PullConsumer) -> None:
    with pytest.raises(ClientError, match="runs in another event loop"):
        await asyncio.to_thread(reading.take_back)
