"""Waiting for conditions: both kinds of functions, time limits, and one implementation."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from support.checks.waiting import Changes, until, wait_until

TESTS = Path(__file__).resolve().parents[3]
ELSEWHERE = {"ha/cluster.py"}
"""Files that run without the helpers."""


async def false() -> bool:
    return False


@pytest.mark.usefixtures("virtual_time")
async def test_a_function_and_a_coroutine_function_are_called_until_they_return_true() -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()

    async def is_later() -> bool:
        return loop.time() >= begin + 60

    await until(lambda: loop.time() >= begin + 30)
    assert begin + 30 <= loop.time() < begin + 31
    await until(is_later)
    assert begin + 60 <= loop.time() < begin + 61


@pytest.mark.usefixtures("virtual_time")
async def test_waiting_has_a_limit() -> None:
    changes = Changes()
    for wait in (until(lambda: False), until(false), changes.until(lambda: False)):
        with pytest.raises(TimeoutError):
            await wait


def test_an_error_outside_an_event_loop_names_the_condition() -> None:
    with pytest.raises(AssertionError, match="not within 0 s: the end"):
        wait_until(lambda: False, "the end", timeout=0)


async def test_a_change_is_looked_at() -> None:
    changes, found = Changes(), list[int]()

    def change() -> None:
        found.append(1)
        changes.moved.set()

    asyncio.get_running_loop().call_soon(change)
    await changes.until(lambda: bool(found))


def test_there_is_one_implementation() -> None:
    defining = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*.py")
        if re.search(r"^(async )?def (wait_)?until\(", path.read_text(), re.MULTILINE)
    }

    assert defining == {"support/checks/waiting.py"} | ELSEWHERE
