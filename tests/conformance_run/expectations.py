"""Holds the tests of a suite to the list of those that fail, strictly in both directions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass(frozen=True)
class Expected:
    """Which tests of a suite fail, by name.

    A name is a file, ``file::test`` for all parameters of a test, or ``file::test[parameter]``.
    """

    failing: Mapping[str, str] = field(default_factory=dict)
    """Why, by name."""
    passing: Collection[str] = ()
    """What passes nevertheless below a name in ``failing``."""


class Expectations:
    """A pytest plugin.

    Every expected failure is strict: a test that passes is an error. So is a name that matches no
    test, and a test that is skipped though it is not expected to fail.

    Args:
        expected: the tests that fail.
        not_run: names of such tests that are reported without being run.
        only: how the ids of the tests to run begin; empty for all tests.
    """

    def __init__(
        self, expected: Expected, not_run: Collection[str] = (), only: tuple[str, ...] = ()
    ) -> None:
        self._expected = expected
        self._not_run = set(not_run)
        self._only = only

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Mark what fails, before anything is deselected."""
        names = {item: _names(item) for item in items}
        every = {name for of_item in names.values() for name in of_item}
        passing = set(self._expected.passing)
        unknown = (self._expected.failing.keys() | passing) - every
        if unknown:
            raise pytest.UsageError(
                "listed in expected_failures.py, but there is no such test: "
                f"{', '.join(sorted(unknown))}"
            )
        failing = set()
        useless = set(passing)
        for item, of_item in names.items():
            name = next((name for name in of_item if name in self._expected.failing), None)
            if name is None:
                continue
            if found := passing.intersection(of_item):
                useless -= found
                continue
            failing.update(of_item)
            item.add_marker(
                pytest.mark.xfail(
                    reason=self._expected.failing[name],
                    strict=True,
                    run=not self._not_run.intersection(of_item),
                )
            )
        useless |= (self._not_run & every) - failing
        if useless:
            raise pytest.UsageError(
                f"listed, but not below a failing name: {', '.join(sorted(useless))}"
            )
        if self._only:
            items[:] = [item for item in items if item.nodeid.startswith(self._only)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[Any]:
        """A skip is an expected failure, or an error."""
        report: pytest.TestReport = yield
        if report.skipped and not hasattr(report, "wasxfail"):
            mark = item.get_closest_marker("xfail")
            if mark is not None:
                report.wasxfail = mark.kwargs["reason"]
            else:
                report.outcome = "failed"
                report.longrepr = f"skipped, but nothing may be skipped here: {report.longrepr}"
        return report


def _names(item: pytest.Item) -> tuple[str, str, str]:
    """The names that mean a test, the most exact one first."""
    file = item.path.name
    test = getattr(item, "originalname", None) or item.name
    return f"{file}::{item.name}", f"{file}::{test}", file
