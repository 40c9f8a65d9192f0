"""The helper that cancels at every wait finds what it is there to find."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from support.checks.cancellation import Moment, cancel_at_every_await

pytestmark = pytest.mark.usefixtures("virtual_time")


async def nothing() -> None:
    """A check that has nothing to check."""


async def test_every_wait_is_cancelled_in_both_ways() -> None:
    reached: list[int] = []

    async def waits_three_times() -> None:
        for number in range(3):
            reached.append(number)
            await asyncio.sleep(0.001 if number else 0)

    assert await cancel_at_every_await(waits_three_times, nothing) == 6
    assert reached == 2 * [0, 0, 1, 0, 1, 2, 0, 1, 2]


async def test_a_result_that_has_come_is_lost_only_in_the_second_way() -> None:
    taken: list[int] = []
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def takes() -> None:
        asyncio.get_running_loop().call_later(0.001, queue.put_nowait, 1)
        taken.append(await queue.get())

    await cancel_at_every_await(takes, nothing, moments=(Moment.COME,))

    assert len(taken) == 1


async def test_a_coroutine_that_goes_on_is_found() -> None:
    async def swallows() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.001)

    with pytest.raises(AssertionError, match="went on when cancelled at wait 0, while it waits"):
        await cancel_at_every_await(swallows, nothing)


async def test_a_lock_that_stays_taken_is_found() -> None:
    lock = asyncio.Lock()

    async def leaks() -> None:
        await lock.acquire()
        await asyncio.sleep(0.001)
        lock.release()

    async def is_free() -> None:
        assert not lock.locked()

    with pytest.raises(AssertionError):
        await cancel_at_every_await(leaks, is_free)


async def test_an_error_is_not_taken_for_the_cancelling() -> None:
    async def breaks() -> None:
        try:
            await asyncio.sleep(0.001)
        finally:
            raise KeyError("state")

    with pytest.raises(AssertionError, match=r"KeyError\('state'\)"):
        await cancel_at_every_await(breaks, nothing)


async def test_a_coroutine_with_more_waits_than_expected_is_found() -> None:
    async def waits_on() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="still waiting after 3 waits"):
        await cancel_at_every_await(waits_on, nothing, max_awaits=3)
