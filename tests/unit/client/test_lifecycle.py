"""Objects start and close once each, for any number of waiting and cancelled callers."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cometmq.client._lifecycle import Lifecycle
from cometmq.client.errors import ClientClosedError


class Door(Lifecycle):
    """Starts and closes once it may, and counts."""

    def __init__(self) -> None:
        super().__init__("door d")
        self.may_start, self.may_close = asyncio.Event(), asyncio.Event()
        self.starts = self.closes = 0
        self.interrupted = False
        self.start_error: BaseException | None = None
        self.close_error: BaseException | None = None

    async def _start(self) -> None:
        self.starts += 1
        try:
            await self.may_start.wait()
        except asyncio.CancelledError:
            self.interrupted = True
            raise
        if self.start_error is not None:
            raise self.start_error

    async def _close(self) -> None:
        self.closes += 1
        await self.may_close.wait()
        if self.close_error is not None:
            raise self.close_error


def door(*, starts: bool = True, closes: bool = True) -> Door:
    made = Door()
    if starts:
        made.may_start.set()
    if closes:
        made.may_close.set()
    return made


async def begun(*calls: asyncio.Task[None]) -> None:
    """Let calls come to where they wait."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_it_runs_between_start_and_close() -> None:
    async with door() as one:
        assert one.running
    assert not one.running
    assert (one.starts, one.closes) == (1, 1)


async def test_starts_and_closes_at_once_are_one() -> None:
    one = door()
    await asyncio.gather(one.start(), one.start())
    await one.start()
    await asyncio.gather(one.close(), one.close())
    await one.close()
    assert (one.starts, one.closes) == (1, 1)


async def test_a_start_after_a_close_is_refused() -> None:
    one = door()
    await one.close()
    with pytest.raises(ClientClosedError, match="door d is closed: create a new one"):
        await one.start()
    assert one.starts == 0


async def test_a_close_interrupts_a_start() -> None:
    one = door(starts=False)
    starting = asyncio.create_task(one.start())
    await begun(starting)
    await one.close()

    with pytest.raises(ClientClosedError, match="closed while it started"):
        await starting
    assert one.interrupted
    assert (one.running, one.closes) == (False, 1)


async def test_a_failed_start_closes_and_each_caller_gets_its_error() -> None:
    one = door()
    one.start_error = ValueError("no hinge")
    failures = await asyncio.gather(one.start(), one.start(), return_exceptions=True)

    assert [type(failure) for failure in failures] == [ValueError, ValueError]
    assert one.closes == 1
    with pytest.raises(ClientClosedError, match="create a new one"):
        await one.start()


async def test_a_cancellation_that_the_start_raises_itself_closes() -> None:
    one = door()
    one.start_error = asyncio.CancelledError()
    with pytest.raises(ClientClosedError):
        await one.start()
    assert one.closes == 1


async def test_cancelling_the_only_call_of_a_start_closes() -> None:
    one = door(starts=False)
    starting = asyncio.create_task(one.start())
    await begun(starting)
    starting.cancel()
    await asyncio.wait([starting])

    assert starting.cancelled()
    assert one.interrupted
    assert one.closes == 1


async def test_cancelling_one_of_two_calls_of_a_start_leaves_it_to_the_other() -> None:
    one = door(starts=False)
    first, second = (asyncio.create_task(one.start()) for _ in range(2))
    await begun(first, second)
    first.cancel()
    await asyncio.wait([first])
    one.may_start.set()
    await second

    assert first.cancelled()
    assert one.running
    await one.close()


async def test_cancelling_a_call_of_a_start_beside_one_that_returned_closes_nothing() -> None:
    one = door()
    await one.start()
    again = asyncio.create_task(one.start())
    again.cancel()
    await asyncio.wait([again])

    assert one.running
    await one.close()


async def test_a_start_that_is_cancelled_in_the_moment_of_its_end_closes() -> None:
    one = door(starts=False)
    starting = asyncio.create_task(one.start())
    await begun(starting)
    one.may_start.set()
    while not one.running:
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])

    assert starting.cancelled()
    assert not one.running
    assert one.closes == 1


async def test_cancelling_a_close_stops_the_waiting_only() -> None:
    one = door(closes=False)
    await one.start()
    closing = asyncio.create_task(one.close())
    await begun(closing)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()

    one.may_close.set()
    await one.close()
    assert one.closes == 1


async def test_the_error_of_a_close_is_raised_once_even_if_the_first_call_is_cancelled() -> None:
    one = door(closes=False)
    await one.start()
    one.close_error = ValueError("stuck")
    closing = asyncio.create_task(one.close())
    await begun(closing)
    closing.cancel()
    await asyncio.wait([closing])
    one.may_close.set()

    with pytest.raises(ValueError, match="stuck"):
        await one.close()
    await one.close()


async def test_one_that_is_never_closed_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    left = door()
    await left.start()
    with pytest.warns(ResourceWarning, match="unclosed door d: leave its `async with`"):
        left.__del__()
    with caplog.at_level(logging.INFO):
        await left.close()
    left.__del__()  # no warning, which would be an error

    assert "door d closed seconds=0.0" in caplog.text
    door().__del__()
