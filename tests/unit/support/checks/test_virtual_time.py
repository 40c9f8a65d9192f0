"""A loop on virtual time waits for nothing, and keeps the order of things."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from support.checks import virtual_time as module

pytestmark = pytest.mark.usefixtures("virtual_time")

DAY_S = 86_400.0


async def test_a_day_passes_at_once_and_exactly() -> None:
    loop = asyncio.get_running_loop()
    began, really_began = loop.time(), time.monotonic()

    await asyncio.sleep(DAY_S)

    assert loop.time() - began == pytest.approx(DAY_S, abs=1e-6)
    assert time.monotonic() - really_began < DAY_S / 100


async def test_timers_come_in_their_order() -> None:
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    for number in (3, 1, 2):
        loop.call_later(number * 3600, seen.append, number)

    await asyncio.sleep(4 * 3600)

    assert seen == [1, 2, 3]


async def test_time_stands_still_while_there_is_work() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    for _ in range(1000):
        await asyncio.sleep(0)

    assert loop.time() == began


async def test_a_limit_ends_what_would_hang() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(DAY_S):
            await asyncio.Event().wait()


async def test_time_does_not_jump_over_a_call_in_a_thread() -> None:
    began = asyncio.get_running_loop().time()

    async with asyncio.timeout(DAY_S):
        assert await asyncio.to_thread(sum, range(1_000_000)) == 499_999_500_000

    assert asyncio.get_running_loop().time() - began < DAY_S / 100


async def test_a_timer_ends_the_wait_for_a_call_in_a_thread() -> None:
    gate = threading.Event()
    call = asyncio.ensure_future(asyncio.to_thread(gate.wait, 60))
    _, waiting = await asyncio.wait([call], timeout=0.01)
    gate.set()

    assert waiting == {call}
    assert await call


async def test_sockets_are_served_before_time_passes() -> None:
    reader, writer = await asyncio.open_connection(sock=(ends := socket.socketpair())[0])
    ends[1].send(b"x")

    async with asyncio.timeout(1):
        assert await reader.readexactly(1) == b"x"
    writer.close()
    ends[1].close()


async def test_a_loop_that_waits_for_nothing_at_all_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STUCK_S", 0.01)
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]

    with pytest.raises(RuntimeError, match="no timer is set"):
        selector.select(None)
