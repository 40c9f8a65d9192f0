"""What a failed message says of the error that its handler raised."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client._consuming.ending import Ending
from cometmq.client._consuming.retries import ERROR_CHARS_MAX, error_text
from cometmq.client._consuming.supervision import SupervisedTasks
from cometmq.client.errors import ClientClosedError


class ShopError(Exception):
    """An application's own."""


def test_an_error_says_its_module_its_class_and_its_text() -> None:
    assert error_text(ShopError("no stock")) == f"{__name__}.ShopError: no stock"
    assert error_text(KeyError("k")) == "builtins.KeyError: 'k'"


def test_a_long_error_is_cut() -> None:
    assert len(error_text(ShopError("x" * 5000))) == ERROR_CHARS_MAX


def test_characters_that_separate_properties_are_replaced() -> None:
    assert error_text(ValueError("a\x01b\x02c\nd\te")) == "builtins.ValueError: a b c d e"


async def test_whoever_waits_for_a_failure_gets_the_first_one() -> None:
    tasks = SupervisedTasks("tests")
    waiting = asyncio.create_task(tasks.until_failed())

    async def fail() -> None:
        raise ShopError("broken")

    tasks.spawn(fail(), "fails")
    with pytest.raises(ShopError):
        await asyncio.wait_for(waiting, 60)
    tasks.end("it was closed")
    with pytest.raises(ShopError):
        await tasks.until_failed()


async def test_whoever_waits_for_a_failure_hears_of_the_end() -> None:
    tasks = SupervisedTasks("tests")
    waiting = asyncio.create_task(tasks.until_failed())
    await asyncio.sleep(0)
    tasks.end("it was closed")

    with pytest.raises(ClientClosedError, match="it was closed"):
        await asyncio.wait_for(waiting, 60)


async def test_an_end_happens_once_and_goes_on_when_those_who_wait_are_cancelled() -> None:
    ending, may_end = Ending("tests"), asyncio.Event()
    ended: list[int] = []

    async def end(number: int) -> None:
        await may_end.wait()
        ended.append(number)

    first = asyncio.create_task(ending.come(end(1)))
    await asyncio.sleep(0)
    assert (ending.begun, ending.under_way) == (True, True)
    first.cancel()
    second = asyncio.create_task(ending.come(end(2)))
    await asyncio.sleep(0)
    may_end.set()
    await second

    assert ended == [1]
    assert (ending.begun, ending.under_way) == (True, False)
