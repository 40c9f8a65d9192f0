"""The limits on sends in flight: nothing exceeds them, and waiting is in order."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client._sending.back_pressure import BackPressure, Generation

ENDS_S = 60.0
BYTES = 1 << 40


async def turns() -> None:
    """Let the other tasks run until none of them can go on."""
    for _ in range(20):
        await asyncio.sleep(0)


def taken(pressure: BackPressure, size: int = 1) -> Generation:
    generation = pressure.try_acquire(size)
    assert generation is not None
    return generation


def waits(
    pressure: BackPressure, size: int = 1, timeout: float = ENDS_S
) -> asyncio.Task[Generation]:
    return asyncio.create_task(pressure.acquire(size, timeout))


def test_no_more_messages_than_allowed_are_in_flight() -> None:
    pressure = BackPressure(2, BYTES)
    first = taken(pressure)
    taken(pressure)

    assert pressure.try_acquire(1) is None
    pressure.release(1, first)
    assert pressure.try_acquire(1) is not None


def test_no_more_bytes_than_allowed_are_in_flight() -> None:
    pressure = BackPressure(10, 100)
    taken(pressure, 60)

    assert pressure.try_acquire(41) is None
    assert pressure.try_acquire(40) is not None
    assert pressure.try_acquire(1) is None


def test_a_message_larger_than_all_bytes_is_sent_alone() -> None:
    pressure = BackPressure(10, 100)
    generation = taken(pressure, 500)

    assert pressure.try_acquire(1) is None
    pressure.release(500, generation)
    assert (pressure.messages, pressure.size_bytes) == (0, 0)


async def test_acquiring_waits_while_the_limit_of_bytes_is_reached() -> None:
    """A message without a size would fit, but the one that waits does not."""
    pressure = BackPressure(10, 100)
    first, second = taken(pressure, 70), taken(pressure, 30)
    waiting = waits(pressure, 50)
    await turns()
    assert not waiting.done()

    pressure.release(30, second)
    await turns()
    assert not waiting.done(), "30 bytes are free"

    pressure.release(70, first)
    await waiting
    assert (pressure.messages, pressure.size_bytes) == (1, 50)


async def test_sends_get_room_in_the_order_in_which_they_came() -> None:
    pressure = BackPressure(1, BYTES)
    generation = taken(pressure)
    order: list[int] = []

    async def send(number: int) -> None:
        generation = await pressure.acquire(1, ENDS_S)
        order.append(number)
        await asyncio.sleep(0)
        pressure.release(1, generation)

    sends = [asyncio.create_task(send(number)) for number in range(6)]
    await turns()
    assert pressure.try_acquire(1) is None
    pressure.release(1, generation)
    assert pressure.try_acquire(1) is None, "nothing passes the sends that wait"
    await asyncio.gather(*sends)

    assert order == list(range(6))
    assert (pressure.messages, pressure.size_bytes) == (0, 0)


async def test_small_messages_do_not_keep_a_large_one_from_being_sent() -> None:
    pressure = BackPressure(10, 100)
    first, second = taken(pressure, 50), taken(pressure, 50)
    large = waits(pressure, 90)
    await turns()
    pressure.release(50, first)

    assert pressure.try_acquire(10) is None, "it fits, but the large one would wait for good"
    small = waits(pressure, 10)
    await turns()
    assert not small.done()
    pressure.release(50, second)

    await asyncio.gather(large, small)
    assert pressure.size_bytes == 100


@pytest.mark.parametrize("has_room", [True, False])
async def test_a_cancelled_wait_takes_no_room_and_holds_nothing_up(*, has_room: bool) -> None:
    pressure = BackPressure(1, BYTES)
    generation = taken(pressure)
    cancelled, other = waits(pressure), waits(pressure)
    await turns()

    if has_room:
        pressure.release(1, generation)  # the room is granted, and the task has not run yet
    cancelled.cancel()
    await asyncio.wait([cancelled])
    if not has_room:
        pressure.release(1, generation)

    assert cancelled.cancelled()
    await other
    assert pressure.messages == 1


async def test_cancelling_a_large_message_lets_the_smaller_one_behind_it_go() -> None:
    pressure = BackPressure(10, 100)
    taken(pressure, 60)
    large, small = waits(pressure, 90), waits(pressure, 30)
    await turns()

    large.cancel()

    await small
    assert pressure.size_bytes == 90


@pytest.mark.usefixtures("virtual_time")
async def test_a_wait_ends_in_time_and_lets_the_next_one_go() -> None:
    pressure = BackPressure(10, 100)
    taken(pressure, 60)
    large, small = waits(pressure, 90, timeout=3.0), waits(pressure, 30, timeout=5.0)
    late = waits(pressure, 50, timeout=1.0)

    with pytest.raises(TimeoutError):
        await late
    assert not large.done()
    with pytest.raises(TimeoutError):
        await large
    await small
    assert pressure.size_bytes == 90


async def test_a_flush_waits_for_earlier_sends_only() -> None:
    pressure = BackPressure(10, BYTES)
    first, second = taken(pressure), taken(pressure)
    flush = asyncio.create_task(pressure.flush())
    await turns()
    later = taken(pressure)
    again = asyncio.create_task(pressure.flush())
    await turns()

    pressure.release(1, second)
    await turns()
    assert not flush.done()
    pressure.release(1, first)
    await flush
    assert not again.done()
    pressure.release(1, later)
    await again
    await pressure.flush()


async def test_a_cancelled_flush_leaves_the_others() -> None:
    pressure = BackPressure(10, BYTES)
    generation = taken(pressure)
    cancelled, other = (asyncio.create_task(pressure.flush()) for _ in range(2))
    await turns()

    cancelled.cancel()
    await turns()
    assert not other.done()
    pressure.release(1, generation)

    await other
    assert cancelled.cancelled()


async def test_every_wait_can_be_refused() -> None:
    pressure = BackPressure(1, BYTES)
    generation = taken(pressure)
    waiting = [waits(pressure) for _ in range(3)]
    await turns()

    pressure.refuse_all(ValueError("closed"))
    results = await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(result) for result in results] == [ValueError] * 3
    pressure.release(1, generation)
    assert pressure.messages == 0


@pytest.mark.parametrize("ends", ["cancelled", "in time"])
async def test_those_that_give_up_are_forgotten_behind_one_that_waits_for_long(ends: str) -> None:
    pressure = BackPressure(1, 100)
    first = taken(pressure)
    patient = waits(pressure)
    await turns()
    for _ in range(50):
        hasty = waits(pressure, timeout=ENDS_S if ends == "cancelled" else 0.0)
        await turns()
        if ends == "cancelled":
            hasty.cancel()
        await asyncio.wait([hasty])

    assert len(pressure._waiting) <= 3
    pressure.release(1, first)
    assert await patient


async def test_very_many_may_wait() -> None:
    """Granting room to one must not look at all others: that would take minutes."""
    pressure, many = BackPressure(10, BYTES), 30_000
    generations = [taken(pressure) for _ in range(10)]
    loop = asyncio.get_running_loop()

    async def send() -> None:
        generation = await pressure.acquire(1, ENDS_S)
        loop.call_soon(pressure.release, 1, generation)

    sends = [asyncio.create_task(send()) for _ in range(many)]
    await turns()
    for generation in generations:
        pressure.release(1, generation)
    async with asyncio.timeout(ENDS_S / 2):
        await asyncio.gather(*sends)

    assert pressure.messages == 0
