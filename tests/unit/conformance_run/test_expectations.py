"""The list of expected failures of the conformance suites is strict in both directions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance_run.expectations import Expectations, Expected

Run = Callable[..., tuple[int, str]]

SUITE = """
import pytest

def test_fails(): assert False

@pytest.mark.parametrize("n", [1, 2])
def test_some(n): assert n == 2

def test_skips(): pytest.skip("not here")

def test_passes(): pass
"""

WHOLE = {"test_it.py": "not built"}
PASSING = ("test_it.py::test_some[2]", "test_it.py::test_passes")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the suite with a list; returns pytest's exit status and what it says."""
    (tmp_path / "test_it.py").write_text(SUITE)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_PLUGINS", raising=False)

    def run(
        failing: dict[str, str], passing: tuple[str, ...] = (), not_run: tuple[str, ...] = ()
    ) -> tuple[int, str]:
        options = ("-rA", "--import-mode=importlib", "--rootdir", str(tmp_path), "-c", os.devnull)
        # The second one would collect the garbage of the outer run five times.
        plugins = ("-p", "no:cacheprovider", "-p", "no:unraisableexception")
        status = pytest.main(
            [str(tmp_path), *options, *plugins],
            plugins=[Expectations(Expected(failing, passing), not_run)],
        )
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def test_a_list_that_is_true_passes(run: Run) -> None:
    status, said = run(WHOLE, PASSING)

    assert status == 0, said
    assert "2 passed, 3 xfailed" in said


def test_single_tests_and_parameters_can_be_listed(run: Run) -> None:
    names = ("test_fails", "test_some[1]", "test_skips")
    status, said = run({f"test_it.py::{name}": "not built" for name in names})

    assert status == 0, said


def test_a_listed_test_that_passes_is_an_error(run: Run) -> None:
    status, said = run(WHOLE, PASSING[:1])

    assert status == 1
    assert "1 failed, 1 passed, 3 xfailed" in said
    assert "[XPASS(strict)] not built" in said


def test_a_skip_that_is_not_listed_is_an_error(run: Run) -> None:
    failing = {"test_it.py::test_fails": "not built", "test_it.py::test_some[1]": "not built"}
    status, said = run(failing)

    assert status == 1
    assert "1 failed, 2 passed, 2 xfailed" in said
    assert "nothing may be skipped here" in said


@pytest.mark.parametrize(
    ("failing", "passing", "not_run", "name"),
    [
        ({"test_it.py::test_gone": "not built"}, (), (), "test_it.py::test_gone"),
        (WHOLE, ("test_it.py::test_some[3]",), (), "test_it.py::test_some[3]"),
        ({"test_it.py::test_fails": "not built"}, PASSING, (), "test_it.py::test_passes"),
        (WHOLE, PASSING, ("test_it.py::test_passes",), "test_it.py::test_passes"),
    ],
    ids=["no such test", "no such parameter", "needs no exception", "passes and is not run"],
)
def test_a_name_that_says_nothing_is_an_error(
    run: Run,
    failing: dict[str, str],
    passing: tuple[str, ...],
    not_run: tuple[str, ...],
    name: str,
) -> None:
    status, said = run(failing, passing, not_run)

    assert status == pytest.ExitCode.USAGE_ERROR
    assert name in said


def test_what_is_slow_to_fail_is_not_run_and_still_counted(run: Run) -> None:
    status, said = run(WHOLE, PASSING, ("test_it.py::test_fails",))

    assert status == 0, said
    assert "[NOTRUN] not built" in said
