"""Texts of errors in failed messages, and errors that end background tasks."""

from __future__ import annotations

import asyncio

from cometmq.client._consuming.retries import ERROR_CHARS_MAX, error_text
from cometmq.client._consuming.supervision import SupervisedTasks


class ShopError(Exception):
    """An application's own."""


def test_an_error_says_its_module_its_class_and_its_text() -> None:
    assert error_text(ShopError("no stock")) == f"{__name__}.ShopError: no stock"
    assert error_text(KeyError("k")) == "builtins.KeyError: 'k'"


def test_a_long_error_is_cut() -> None:
    assert len(error_text(ShopError("x" * 5000))) == ERROR_CHARS_MAX


def test_characters_that_separate_properties_are_replaced() -> None:
    assert error_text(ValueError("a\x01b\x02c\nd\te")) == "builtins.ValueError: a b c d e"


async def test_the_first_failure_of_a_task_is_kept() -> None:
    tasks = SupervisedTasks("tests")
    waiting = asyncio.create_task(tasks.wait_failed())

    async def fail(text: str) -> None:
        raise ShopError(text)

    tasks.spawn(fail("first"), "fails")
    tasks.spawn(fail("second"), "fails")
    await asyncio.wait_for(waiting, 60)
    await tasks.drain(60)

    assert isinstance(tasks.failure, ShopError)
    assert str(tasks.failure) == "first"


async def test_a_cancelled_task_is_no_failure() -> None:
    tasks = SupervisedTasks("tests")
    tasks.spawn(asyncio.Event().wait(), "sleeps")
    await tasks.cancel()

    assert tasks.failure is None
