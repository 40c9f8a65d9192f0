"""Fetching ahead: bounded, in order, and ended when a queue is released."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial

import pytest

from cometmq.client._consuming.continuation import Cause
from cometmq.client._consuming.pulls import PullResult, PullStatus
from cometmq.client._pull.fetcher import Batch, BufferLimits, Fetcher, QueueEvents
from cometmq.client._supervision import SupervisedTasks
from cometmq.model.errors import RemotingError, ResponseError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from support.checks.waiting import until
from support.clients.consumer_inputs import stored_in

ONE, TWO = MessageQueue("t", "a", 1), MessageQueue("t", "a", 2)

STORED_MS = 1_000


async def never(*what: object) -> None:
    raise AssertionError(f"no queue continues elsewhere: {what}")


EIGHT = BufferLimits(8)
STAYS = QueueEvents(moved=never, topic_missed=lambda queue: None)
fetcher_of = partial(Fetcher, limits=EIGHT, retry_s=1, group="g", events=STAYS)


def found(queue: MessageQueue, offset: int, count: int) -> PullResult:
    messages = [stored_in(queue, offset + step, store_time_ms=STORED_MS) for step in range(count)]
    end = QueueOffset(offset + count)
    return PullResult(PullStatus.FOUND, messages, end, QueueOffset(0), end)


class Queues:
    """An endless supply of messages, which notes what is asked of it."""

    def __init__(self, batch: int = 4) -> None:
        self.batch = batch
        self.asked: list[tuple[MessageQueue, int]] = []
        self.failures = 0

    async def pull(self, queue: MessageQueue, offset: QueueOffset) -> PullResult:
        self.asked.append((queue, offset))
        if self.failures:
            self.failures -= 1
            raise RemotingError("the broker is away")
        await asyncio.sleep(0)
        return found(queue, offset, self.batch)

    async def start(self, queue: MessageQueue) -> QueueOffset:
        return QueueOffset(100)


async def taken(fetcher: Fetcher) -> Batch:
    """The next batch; there must be one."""
    batch = await fetcher.take()
    assert batch is not None
    return batch


@pytest.fixture
def queues() -> Queues:
    return Queues()


@pytest.fixture
async def fetcher(queues: Queues):
    fetcher = fetcher_of(queues.pull, queues.start, retry_s=0.001)
    yield fetcher
    await fetcher.stop()


async def test_a_queue_comes_in_order_from_where_it_starts(fetcher: Fetcher) -> None:
    fetcher.begin(ONE)

    batches = [await taken(fetcher) for _ in range(3)]

    offsets = [message.queue_offset for batch in batches for message in batch.messages]
    assert offsets == list(range(100, 112))
    assert batches[-1].next_offset == 112


async def test_fetching_stops_when_the_buffer_is_full(fetcher: Fetcher, queues: Queues) -> None:
    fetcher.begin(ONE)
    await until(lambda: fetcher.held >= 8)
    asked = len(queues.asked)

    for _ in range(50):
        await asyncio.sleep(0)
    assert (fetcher.held, len(queues.asked)) == (8, asked)

    await fetcher.take()
    await until(lambda: len(queues.asked) == asked + 1)


async def test_what_was_fetched_of_a_queue_is_dropped_when_it_is_given_up(
    fetcher: Fetcher, queues: Queues
) -> None:
    fetcher.begin(ONE)
    await until(lambda: fetcher.held >= 8)

    fetcher.end(ONE)
    assert (fetcher.held, fetcher.queues) == (0, [])
    fetcher.begin(TWO, QueueOffset(7))

    batch = await taken(fetcher)
    assert (batch.queue, batch.messages[0].queue_offset) == (TWO, 7)


async def test_a_queue_begun_again_goes_on_at_the_new_offset(fetcher: Fetcher) -> None:
    fetcher.begin(ONE)
    await fetcher.take()

    fetcher.begin(ONE, QueueOffset(3))

    assert (await taken(fetcher)).messages[0].queue_offset == 3


async def test_a_pull_that_fails_is_made_again(fetcher: Fetcher, queues: Queues) -> None:
    queues.failures = 3

    fetcher.begin(ONE)

    assert (await taken(fetcher)).messages[0].queue_offset == 100
    assert queues.asked[:4] == [(ONE, 100)] * 4


async def test_a_stretch_without_wanted_messages_still_moves_the_place(queues: Queues) -> None:
    """A filter that nothing passes must not make the next start read everything again."""

    async def nothing(queue: MessageQueue, offset: QueueOffset) -> PullResult:
        if offset >= 300:
            await asyncio.Event().wait()
        end = QueueOffset(offset + 100)
        return PullResult(PullStatus.NO_MATCHED_MESSAGE, [], end, QueueOffset(0), end)

    fetcher = fetcher_of(nothing, queues.start, retry_s=0.001)
    fetcher.begin(ONE)

    assert (await taken(fetcher)).next_offset == 200
    assert (await taken(fetcher)).next_offset == 300
    await fetcher.stop()


async def test_a_paused_queue_is_set_aside_and_leaves_room_for_others(
    fetcher: Fetcher, queues: Queues
) -> None:
    fetcher.begin(ONE)
    await until(lambda: fetcher.held >= 8)

    fetcher.pause(ONE)
    assert (fetcher.held, fetcher.paused, fetcher.held_of(ONE).count) == (0, {ONE}, 8)
    fetcher.begin(TWO)
    await until(lambda: fetcher.held >= 8)
    assert {(await taken(fetcher)).queue for _ in range(2)} == {TWO}

    fetcher.end(TWO)
    fetcher.resume(ONE)
    offsets = [m.queue_offset for _ in range(3) for m in (await taken(fetcher)).messages]
    assert offsets == list(range(100, 112))


async def test_a_queue_is_not_pulled_beyond_its_own_share(queues: Queues) -> None:
    fetcher = fetcher_of(queues.pull, queues.start, limits=BufferLimits(100, queue_messages_max=4))
    fetcher.begin(ONE)
    fetcher.begin(TWO)
    await until(lambda: fetcher.held == 8)
    for _ in range(50):
        await asyncio.sleep(0)

    assert sorted(queues.asked) == [(ONE, 100), (TWO, 100)]
    await fetcher.stop()


class Filtered(Queues):
    """Queues in which one message of ten is wanted."""

    async def pull(self, queue: MessageQueue, offset: QueueOffset) -> PullResult:
        result = await super().pull(queue, offset)
        end = QueueOffset(offset + 10)
        return PullResult(PullStatus.FOUND, result.messages, end, QueueOffset(0), end)


async def test_a_queue_is_not_pulled_while_its_messages_lie_too_far_apart() -> None:
    queues = Filtered(batch=1)
    fetcher = fetcher_of(queues.pull, queues.start, limits=BufferLimits(100, span_max=25))
    fetcher.begin(ONE)
    asked = [(ONE, 100), (ONE, 110), (ONE, 120), (ONE, 130)]
    await until(lambda: queues.asked == asked)
    for _ in range(50):
        await asyncio.sleep(0)
    assert queues.asked == asked

    first = await taken(fetcher)
    await until(lambda: len(queues.asked) == 5)
    fetcher.put_back(first)
    fetcher.pause(ONE)
    fetcher.resume(ONE)
    for _ in range(4):
        assert len(queues.asked) == 5
        await taken(fetcher)
    await until(lambda: len(queues.asked) > 5)
    await fetcher.stop()


async def test_a_batch_put_back_comes_next(fetcher: Fetcher) -> None:
    fetcher.begin(ONE)
    first = await taken(fetcher)

    fetcher.put_back(first)

    assert await taken(fetcher) == first


async def test_part_of_a_batch_may_be_taken_and_the_rest_comes_next(
    fetcher: Fetcher, queues: Queues
) -> None:
    fetcher.begin(ONE)
    await until(lambda: fetcher.held >= 8)

    one, rest = await fetcher.take(1), await fetcher.take(5)

    assert one is not None
    assert rest is not None
    assert ([each.queue_offset for each in one.messages], one.next_offset) == ([100], 101)
    assert ([each.queue_offset for each in rest.messages], rest.next_offset) == (
        [101, 102, 103],
        104,
    )
    assert (fetcher.lowest(ONE), fetcher.lowest(TWO)) == (104, None)


async def test_two_tasks_that_wait_get_different_messages(queues: Queues) -> None:
    fetcher = fetcher_of(queues.pull, queues.start)
    waiting = [asyncio.create_task(fetcher.take(1)) for _ in range(6)]
    await asyncio.sleep(0)

    fetcher.begin(ONE)

    batches = await asyncio.gather(*waiting)
    assert sorted(batch.begins for batch in batches if batch) == list(range(100, 106))
    await fetcher.stop()


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_what_is_put_back_waits_in_order(
    fetcher: Fetcher, queues: Queues, order: tuple[int, ...], *, paused: bool
) -> None:
    fetcher.begin(ONE)
    await until(lambda: fetcher.held >= 8)
    taken_batches = [await fetcher.take(1) for _ in range(3)]
    if paused:
        fetcher.pause(ONE)

    for index in order:
        batch = taken_batches[index]
        assert batch is not None
        fetcher.put_back(batch)
    if paused:
        fetcher.resume(ONE)

    assert fetcher.lowest(ONE) == 100
    offsets = [m.queue_offset for _ in range(5) for m in (await taken(fetcher)).messages]
    assert offsets == list(range(100, 108))


async def test_who_waits_for_a_batch_is_let_go_when_fetching_stops(queues: Queues) -> None:
    fetcher = fetcher_of(queues.pull, queues.start)
    waiting = asyncio.create_task(fetcher.take())
    await asyncio.sleep(0)

    await fetcher.stop()

    assert await waiting is None


@pytest.mark.usefixtures("virtual_time")
async def test_answers_without_anything_new_are_not_asked_for_in_a_busy_loop() -> None:
    """A broker that does not hold pulls must not be asked again at once."""
    asked = 0

    async def nothing(queue: MessageQueue, offset: QueueOffset) -> PullResult:
        nonlocal asked
        asked += 1
        return PullResult(PullStatus.NO_NEW_MESSAGE, [], offset, QueueOffset(0), offset)

    async def start(queue: MessageQueue) -> QueueOffset:
        return QueueOffset(0)

    fetcher = fetcher_of(nothing, start)
    fetcher.begin(ONE)
    await until(lambda: asked == 1, pause_s=0)
    for _ in range(1_000):
        await asyncio.sleep(0)

    assert asked == 1
    await fetcher.stop()


async def test_a_list_that_a_reader_keeps_is_not_changed_after_it_was_put_back(
    fetcher: Fetcher,
) -> None:
    fetcher.begin(ONE)
    polled = await taken(fetcher)
    kept = polled.messages
    fetcher.put_back(polled)

    await fetcher.take(1)

    assert [each.queue_offset for each in kept] == [100, 101, 102, 103]


@pytest.mark.usefixtures("virtual_time")
async def test_a_queue_whose_offset_store_hangs_is_begun_anew(queues: Queues) -> None:
    """A pull that hangs has a timeout; a custom offset store need not."""
    calls = 0

    async def start(queue: MessageQueue) -> QueueOffset:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()
        return QueueOffset(100)

    fetcher = fetcher_of(queues.pull, start)
    fetcher.begin(ONE)

    async with asyncio.timeout(200):
        assert (await taken(fetcher)).begins == 100
    await fetcher.stop()


@pytest.mark.usefixtures("virtual_time")
async def test_a_queue_that_can_never_be_read_is_a_permanent_failure(queues: Queues) -> None:
    tasks = SupervisedTasks("consumer g")

    async def pull(queue: MessageQueue, offset: QueueOffset) -> PullResult:
        raise LookupError("from a hook")

    fetcher = fetcher_of(pull, queues.start, on_permanent=tasks.end)
    fetcher.begin(ONE)
    await asyncio.wait_for(tasks.wait_failed(), 600)
    await fetcher.stop()

    assert isinstance(tasks.failure, LookupError)


async def test_a_pull_that_ends_after_its_queue_was_moved_is_ignored(queues: Queues) -> None:
    """Even if a hook swallows the cancellation."""
    first = asyncio.Event()

    async def stubborn(queue: MessageQueue, offset: QueueOffset) -> PullResult:
        if offset == 100:
            with suppress(asyncio.CancelledError):
                await first.wait()
        return await queues.pull(queue, offset)

    fetcher = fetcher_of(stubborn, queues.start)
    fetcher.begin(ONE, QueueOffset(100))
    await asyncio.sleep(0)
    fetcher.begin(ONE, QueueOffset(500))
    await until(lambda: fetcher.held >= 8)

    offsets = [m.queue_offset for _ in range(2) for m in (await taken(fetcher)).messages]
    assert offsets == list(range(500, 508))
    await fetcher.stop()


async def test_a_queue_of_a_deleted_topic_loses_its_messages_and_begins_anew_when_it_is_back(
    queues: Queues,
) -> None:
    moves: list[tuple[Cause, int]] = []
    missed: list[MessageQueue] = []
    responses: deque[PullResult | ResponseError] = deque(
        [
            found(ONE, 100, 4),
            ResponseError(ResponseCode.TOPIC_NOT_EXIST, "gone"),
            ResponseError(ResponseCode.TOPIC_NOT_EXIST, "gone"),
            found(ONE, 104, 1),
        ]
    )

    async def pull(queue: MessageQueue, offset: QueueOffset) -> PullResult:
        response = responses.popleft()
        if isinstance(response, ResponseError):
            raise response
        return response

    async def moved(
        cause: Cause, queue: MessageQueue, response: PullResult, received_ms: int
    ) -> None:
        moves.append((cause, received_ms))
        fetcher.end(queue)
        has_moved.set()

    has_moved = asyncio.Event()
    fetcher = fetcher_of(
        pull, queues.start, retry_s=0.001, events=QueueEvents(moved, missed.append)
    )
    fetcher.begin(ONE)
    async with asyncio.timeout(60):
        await has_moved.wait()
    await fetcher.stop()

    assert moves == [(Cause.TOPIC_MISSED, STORED_MS)]
    assert missed == [ONE]
    assert fetcher.held == 0


@pytest.mark.parametrize("next_offset", [90, 110], ids=["back", "ahead"])
async def test_a_queue_that_was_reset_at_its_broker_begins_anew(
    queues: Queues, next_offset: int
) -> None:
    moves: list[tuple[Cause, int]] = []

    async def pull(queue: MessageQueue, offset: QueueOffset) -> PullResult:
        next = QueueOffset(next_offset)
        return PullResult(PullStatus.OFFSET_ILLEGAL, [], next, QueueOffset(0), QueueOffset(200))

    async def moved(
        cause: Cause, queue: MessageQueue, response: PullResult, received_ms: int
    ) -> None:
        moves.append((cause, response.next_offset))
        fetcher.end(queue)
        has_moved.set()

    has_moved = asyncio.Event()
    fetcher = fetcher_of(pull, queues.start, events=QueueEvents(moved, lambda queue: None))
    fetcher.begin(ONE)
    async with asyncio.timeout(60):
        await has_moved.wait()
    await fetcher.stop()

    assert moves == [(Cause.MOVED, next_offset)]
