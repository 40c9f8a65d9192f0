"""Runs a table of cases in one test, which names each wrong case and makes its fixtures once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

Item = TypeVar("Item")
WRONG = Exception, pytest.fail.Exception
"""`pytest.raises` raises the second if its block raises nothing; it is not an `Exception`."""


@contextmanager
def case(name: object) -> Iterator[None]:
    """Name the case in the error of a block.

    For cases that share a fixture: the state after a wrong case is unknown, so it ends the test.
    """
    try:
        yield
    except WRONG as error:
        raise AssertionError(f"case {name}: {error}") from error


def on_each(
    items: Iterable[Item], name: Callable[[Item], str] = str
) -> Callable[[Callable[[Item], None]], Callable[[], None]]:
    """Make a test of all items from a check of one; its failure names every wrong item."""
    known = list(items)

    def decorate(check: Callable[[Item], None]) -> Callable[[], None]:
        def test() -> None:
            assert known, "there is no case"
            wrong = []
            for item in known:
                try:
                    check(item)
                except WRONG as error:
                    wrong.append(f"{name(item)}: {type(error).__name__}: {error}")
            if wrong:
                pytest.fail(f"{len(wrong)} of {len(known)}:\n" + "\n".join(wrong), pytrace=False)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate
