"""A module of tests that leaves a descriptor open fails, unless what it opened lives longer."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from support.checks import descriptors
from support.checks.descriptors import DescriptorCheck

ONE = SimpleNamespace(nodeid="test_one.py::test_it", funcargs={})
SAME = SimpleNamespace(nodeid="test_one.py::test_more", funcargs={})
OTHER = SimpleNamespace(nodeid="test_two.py::test_it", funcargs={})


def finish(hook: Generator[None, Any, Any], opens: list[int] | None = None) -> None:
    next(hook)
    if opens is not None:
        opens.append(os.open(os.devnull, os.O_RDONLY))
    with suppress(StopIteration):
        hook.send(None)


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> DescriptorCheck:
    monkeypatch.setattr(descriptors, "SETTLE_S", 0.0)
    check = DescriptorCheck()
    finish(check.pytest_runtest_setup(ONE))  # type: ignore[arg-type]
    return check


@pytest.fixture
def opened() -> Iterator[list[int]]:
    numbers: list[int] = []
    yield numbers
    for number in numbers:
        os.close(number)


def end(check: DescriptorCheck, following: Any) -> None:
    finish(check.pytest_runtest_teardown(ONE, following))  # type: ignore[arg-type]


@pytest.mark.parametrize("following", [OTHER, None])
def test_a_descriptor_that_is_left_is_named(
    check: DescriptorCheck, opened: list[int], following: Any
) -> None:
    opened.append(os.open(os.devnull, os.O_RDONLY))
    end(check, SAME)
    left = rf"test_one.py leaves 1 descriptors open, .*: {opened[0]} \(.*\)"
    with pytest.raises(pytest.fail.Exception, match=left):
        end(check, following)


@pytest.mark.parametrize(("scope", "is_left"), [("session", False), ("module", True)])
def test_what_fixtures_open_counts_if_they_end_with_the_module(
    check: DescriptorCheck, opened: list[int], scope: str, is_left: bool
) -> None:
    fixture: Any = SimpleNamespace(scope=scope)
    finish(check.pytest_fixture_setup(fixture), opened)
    if is_left:
        with pytest.raises(pytest.fail.Exception):
            end(check, OTHER)
    else:
        end(check, OTHER)


def test_a_module_begins_with_what_is_open(check: DescriptorCheck, opened: list[int]) -> None:
    opened.append(os.open(os.devnull, os.O_RDONLY))
    finish(check.pytest_runtest_setup(OTHER))  # type: ignore[arg-type]
    end(check, None)
