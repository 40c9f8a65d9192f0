"""Requests that wait for a prerequisite share one run of a blocking function."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cometmq.broker.thread_calls import NextCall, SharedCall
from cometmq.model.errors import StoreError

WAIT_S = 60.0


class Work:
    """A blocking function that the test lets go on, and may let fail."""

    def __init__(self) -> None:
        self.begun = 0
        self.begins = asyncio.Event()
        self.go = threading.Event()
        self.fails = False
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> None:
        self.begun += 1
        self._loop.call_soon_threadsafe(self.begins.set)
        assert self.go.wait(WAIT_S)
        if self.fails:
            raise StoreError("the disk is gone")


async def test_all_who_wait_at_once_share_a_run() -> None:
    work = Work()
    call = SharedCall(work)
    calls = [asyncio.ensure_future(call()) for _ in range(3)]
    await work.begins.wait()
    calls.append(asyncio.ensure_future(call()))
    work.go.set()
    await asyncio.gather(*calls)
    assert work.begun == 1


@pytest.mark.usefixtures("virtual_time")
async def test_a_failure_is_told_for_a_moment_before_the_next_run() -> None:
    work = Work()
    work.go.set()
    work.fails = True
    call = SharedCall(work)
    for _ in range(3):
        with pytest.raises(StoreError):
            await call()
    assert work.begun == 1
    await asyncio.sleep(2)
    work.fails = False
    await call()
    assert work.begun == 2


async def test_who_comes_during_a_run_waits_for_the_next_one() -> None:
    work = Work()
    call = NextCall(work)
    first = asyncio.ensure_future(call())
    await work.begins.wait()
    later = [asyncio.ensure_future(call()) for _ in range(5)]
    await asyncio.sleep(0)
    work.go.set()
    await asyncio.gather(first, *later)
    assert work.begun == 2


async def test_a_failed_run_is_told_to_those_who_shared_it_only() -> None:
    work = Work()
    work.fails = True
    call = NextCall(work)
    first = asyncio.ensure_future(call())
    await work.begins.wait()
    work.go.set()
    with pytest.raises(StoreError):
        await first
    work.fails = False
    await call()
