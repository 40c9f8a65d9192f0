"""How much may be on its way at a time."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client.back_pressure import BackPressure


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


async def test_who_waits_goes_as_soon_as_there_is_room_and_in_order() -> None:
    pressure = BackPressure(1)
    pressure.take(1)
    order: list[str] = []

    async def go(name: str) -> None:
        assert await pressure.wait(1, 5.0)
        order.append(name)
        pressure.give_back(1)

    waiting = [asyncio.ensure_future(go(name)) for name in "abc"]
    await asyncio.sleep(0)
    assert not pressure.take(1), "nobody passes those who wait"
    pressure.give_back(1)
    await asyncio.gather(*waiting)

    assert order == ["a", "b", "c"]
    assert pressure.messages == 0


async def test_waiting_ends_without_permits_when_time_runs_out() -> None:
    pressure = BackPressure(1)
    pressure.take(1)

    assert not await pressure.wait(1, 0.001)

    pressure.give_back(1)
    assert (pressure.messages, pressure.take(1)) == (0, True)


@pytest.mark.parametrize("granted_first", [True, False])
async def test_a_cancelled_waiter_keeps_no_permit(*, granted_first: bool) -> None:
    pressure = BackPressure(1)
    pressure.take(1)
    waiting = asyncio.ensure_future(pressure.wait(1, 5.0))
    await asyncio.sleep(0)

    if granted_first:
        pressure.give_back(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    if not granted_first:
        pressure.give_back(1)

    assert pressure.messages == 0
    assert pressure.take(1)


async def test_who_gives_up_lets_smaller_ones_behind_it_pass() -> None:
    pressure = BackPressure(10, 100)
    pressure.take(60)
    large = asyncio.ensure_future(pressure.wait(90, 0.01))
    await asyncio.sleep(0)
    small = asyncio.ensure_future(pressure.wait(30, 5.0))

    assert await asyncio.gather(large, small) == [False, True]
    assert pressure.size_bytes == 90
