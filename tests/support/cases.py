"""Tables of cases that one test walks with the same fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(name: object) -> Iterator[None]:
    """Name the case in the error of a block.

    For cases that share a fixture: the state after a wrong case is unknown, so it ends the test.
    """
    try:
        yield
    except Exception as error:
        raise AssertionError(f"case {name}: {error}") from error
