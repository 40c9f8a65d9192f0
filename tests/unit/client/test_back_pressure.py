"""How much may be on its way at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cometmq.client._sending.back_pressure import BackPressure

ENDS_S, ROUNDS_MAX = 60.0, 100

Drain = Callable[[BackPressure], Awaitable[bool]]


def test_no_more_messages_than_allowed_are_on_their_way() -> None:
    pressure = BackPressure(2)

    assert [pressure.take(1) for _ in range(3)] == [True, True, False]
    pressure.give_back(1)
    assert pressure.take(1)


def test_no_more_bytes_than_allowed_are_on_their_way() -> None:
    pressure = BackPressure(10, 100)

    assert pressure.take(60)
    assert not pressure.take(41)
    assert pressure.take(40)


def test_a_message_larger_than_all_bytes_goes_alone() -> None:
    pressure = BackPressure(10, 100)

    assert pressure.take(500)
    assert not pressure.take(1)
    pressure.give_back(500)
    assert (pressure.messages, pressure.size_bytes) == (0, 0)


async def retry(pressure: BackPressure, size: int) -> None:
    """Do what applications do: refused, wait for room, try again."""
    for _ in range(ROUNDS_MAX):
        if pressure.take(size):
            return
        assert await pressure.drain(ENDS_S)
    raise AssertionError(f"refused {ROUNDS_MAX} times, though each time there was room")


async def turns() -> None:
    """Let the other tasks run until nothing is left to do for them."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_draining_waits_until_what_was_refused_has_room() -> None:
    pressure = BackPressure(10, 100)
    assert pressure.take(60)
    assert pressure.take(30)
    waiting = asyncio.create_task(retry(pressure, 50))
    await turns()
    assert not waiting.done()

    pressure.give_back(30)
    await turns()
    assert not waiting.done(), "40 bytes are free"

    pressure.give_back(60)
    await waiting
    assert (pressure.messages, pressure.size_bytes) == (1, 50)


async def test_draining_waits_while_all_bytes_are_taken() -> None:
    pressure = BackPressure(10, 100)
    assert pressure.take(100)

    assert not await pressure.drain(0.001)
    pressure.give_back(100)
    assert await pressure.drain(ENDS_S)


async def test_draining_again_after_a_timeout_still_waits_for_what_was_refused() -> None:
    pressure = BackPressure(10, 100)
    assert pressure.take(60)
    assert not pressure.take(50)

    assert not await pressure.drain(0.001)
    assert not await pressure.drain(0.001)
    pressure.give_back(60)
    assert await pressure.drain(ENDS_S)


@pytest.mark.parametrize("messages_max", [1, 2])
async def test_many_that_wait_all_get_their_turn(messages_max: int) -> None:
    """A task that waits must not be refused because of room that is kept for another one."""
    pressure = BackPressure(messages_max)
    assert pressure.take(1)
    order: list[int] = []

    async def go(number: int) -> None:
        await retry(pressure, 1)
        order.append(number)
        await asyncio.sleep(0)
        pressure.give_back(1)

    pressure.take(1)
    waiting = [asyncio.create_task(go(number)) for number in range(6)]
    await turns()
    assert not pressure.take(1), "nobody passes those who wait"
    for _ in range(messages_max):
        pressure.give_back(1)
    async with asyncio.timeout(ENDS_S):
        await asyncio.gather(*waiting)

    assert order == list(range(6))
    assert (pressure.messages, pressure.size_bytes) == (0, 0)


@pytest.mark.parametrize("room_first", [True, False])
async def test_a_cancelled_waiter_holds_nobody_up(*, room_first: bool) -> None:
    pressure = BackPressure(1)
    assert pressure.take(1)
    cancelled, other = (asyncio.create_task(retry(pressure, 1)) for _ in range(2))
    await turns()

    if room_first:
        pressure.give_back(1)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    if not room_first:
        pressure.give_back(1)

    async with asyncio.timeout(ENDS_S):
        await other
    assert pressure.messages == 1


async def test_who_gives_up_lets_smaller_ones_behind_it_pass() -> None:
    pressure = BackPressure(10, 100)
    assert pressure.take(60)
    assert not pressure.take(90)
    large = asyncio.create_task(pressure.drain(0.01))
    await asyncio.sleep(0)
    small = asyncio.create_task(retry(pressure, 30))
    await asyncio.sleep(0)

    assert not await large
    await small
    assert pressure.size_bytes == 90


async def test_one_that_does_not_use_its_turn_lets_the_next_one_go() -> None:
    pressure = BackPressure(1)
    assert pressure.take(1)
    assert not pressure.take(1)
    first = asyncio.create_task(pressure.drain(ENDS_S))
    await asyncio.sleep(0)
    second = asyncio.create_task(retry(pressure, 1))
    await turns()

    pressure.give_back(1)

    assert await first
    async with asyncio.timeout(ENDS_S):
        await second
    assert pressure.messages == 1


async def send_repeatedly(pressure: BackPressure, count: int, drain: Drain) -> int:
    """Send messages, and yield between waiting and trying again; gives how many were refused."""
    refused = 0
    for _ in range(count):
        while not pressure.take(1):
            refused += 1
            assert await drain(pressure)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        pressure.give_back(1)
    return refused


async def drain_here(pressure: BackPressure) -> bool:
    return await pressure.drain(ENDS_S)


async def drain_in_another_task(pressure: BackPressure) -> bool:
    """As `asyncio.wait_for` does in Python 3.11."""
    return await asyncio.create_task(pressure.drain(ENDS_S))


@pytest.mark.parametrize("drain", [drain_here, drain_in_another_task])
@pytest.mark.parametrize("tasks", [3, 8, 64])
async def test_tasks_that_yield_before_they_try_again_all_send(tasks: int, drain: Drain) -> None:
    pressure, count = BackPressure(1), 20

    async with asyncio.timeout(ENDS_S):
        refused = await asyncio.gather(
            *(send_repeatedly(pressure, count, drain) for _ in range(tasks))
        )

    assert pressure.messages == 0
    assert sum(refused) <= 3 * tasks * count, "most tasks that are woken send"


async def test_a_task_that_never_waits_does_not_keep_those_who_wait_from_sending() -> None:
    """It hears of the end of its message at the moment in which there is room."""
    pressure = BackPressure(1)
    waiting: asyncio.Task[None] | None = None

    for _ in range(ROUNDS_MAX):
        if pressure.take(1):
            waiting = waiting or asyncio.create_task(retry(pressure, 1))
            await turns()
            pressure.give_back(1)
        else:
            await asyncio.sleep(0)
        if waiting is not None and waiting.done():
            break

    assert waiting is not None
    assert waiting.done()


async def test_small_messages_do_not_keep_a_large_one_from_being_sent() -> None:
    pressure = BackPressure(10, 100)
    assert pressure.take(50)
    assert pressure.take(50)
    large = asyncio.create_task(retry(pressure, 90))
    await turns()
    pressure.give_back(50)

    assert not pressure.take(10), "there is room, but the large one would wait for good"
    small = asyncio.create_task(retry(pressure, 10))
    await turns()
    pressure.give_back(50)

    async with asyncio.timeout(ENDS_S):
        await asyncio.gather(large, small)
    assert pressure.size_bytes == 100


@pytest.mark.usefixtures("virtual_time")
async def test_as_many_are_woken_as_there_is_room_for() -> None:
    pressure = BackPressure(3)
    for _ in range(3):
        assert pressure.take(1)
    assert not pressure.take(1)
    waiting = [asyncio.create_task(pressure.drain(ENDS_S)) for _ in range(5)]
    await turns()

    for _ in range(3):
        pressure.give_back(1)
    await turns()

    assert [task.done() for task in waiting] == [True] * 3 + [False] * 2
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_very_many_may_wait() -> None:
    """Waking one must not look at all others: this would take minutes."""
    pressure, many = BackPressure(10), 30_000
    for _ in range(10):
        assert pressure.take(1)

    async def go() -> None:
        await retry(pressure, 1)
        asyncio.get_running_loop().call_soon(pressure.give_back, 1)

    waiting = [asyncio.create_task(go()) for _ in range(many)]
    await turns()
    for _ in range(10):
        pressure.give_back(1)
    async with asyncio.timeout(ENDS_S / 2):
        await asyncio.gather(*waiting)

    assert pressure.messages == 0
