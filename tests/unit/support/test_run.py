"""What the runner of all tests says of a stage that failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import run


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> run.Stage:
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    return run.Stage("unit", ("tests/unit",))


def test_what_failed_is_named_with_its_reason(stage: run.Stage) -> None:
    stage.report.write_text(
        '<testsuites><testsuite tests="4" failures="1" errors="1" skipped="1">'
        '<testcase file="tests/a.py" name="test_x[comet]">'
        '<failure message="AssertionError: 3 messages&#10;assert 3 == 4">a trace</failure>'
        '</testcase><testcase file="tests/a.py" name="test_y"><error message="no disk"/>'
        '</testcase><testcase file="tests/a.py" name="test_z"><skipped/></testcase>'
        '<testcase file="tests/a.py" name="test_fine"/></testsuite></testsuites>'
    )
    outcome = run.outcome_of(stage, status=1, seconds=2.0)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 2, 1)
    assert [str(failure) for failure in outcome.failures] == [
        "tests/a.py::test_x[comet]: AssertionError: 3 messages",
        "tests/a.py::test_y: no disk",
    ]


def test_every_stage_has_a_title_and_a_report_of_its_own() -> None:
    stages = [replace(s, build=build) for s in run.STAGES for build in ("compiled", "interpreted")]
    assert len({stage.title for stage in stages}) == len({s.report for s in stages}) == len(stages)


def test_a_stage_that_broke_off_has_failed(stage: run.Stage) -> None:
    outcome = run.outcome_of(stage, status=2, seconds=0.1)
    assert (outcome.passed, outcome.failed) == (0, 1)
    assert [str(failure) for failure in outcome.failures] == ["ended with status 2"]


def test_a_stage_that_broke_off_after_a_failure_says_both(stage: run.Stage) -> None:
    """So that the failed test alone does not stand for all that were to run."""
    stage.report.write_text(
        '<testsuites><testsuite tests="1" failures="1" errors="0" skipped="0">'
        '<testcase file="tests/a.py" name="test_x"><properties><property name="cluster"'
        ' value="5.3.3"/></properties><failure message="m"/></testcase>'
        "</testsuite></testsuites>"
    )
    outcome = run.outcome_of(stage, status=3, seconds=0.1)
    assert outcome.failed == 2
    assert run.settled(outcome) is outcome


def test_a_stage_that_passed_has_nothing_to_say(stage: run.Stage) -> None:
    stage.report.write_text(
        '<testsuites><testsuite tests="1" failures="0" errors="0" skipped="0">'
        '<testcase file="tests/a.py" name="test_fine"/></testsuite></testsuites>'
    )
    assert run.outcome_of(stage, status=0, seconds=0.1).failures == ()


FAILS_ONCE = """
import pytest
from pathlib import Path

MARK = Path(__file__).with_suffix(".met")

@pytest.mark.parametrize("target", [{target!r}])
def test_it(target, record_property):
    record_property("cluster", target)
    met = MARK.exists()
    MARK.touch()
    assert met and {passes}, "too late"
"""


@pytest.mark.parametrize(
    ("target", "passes", "failed"),
    [("5.3.3", True, 0), ("5.3.3", False, 1), ("comet", True, 1), ("5.3.3-main", True, 1)],
)
def test_only_tests_of_others_brokers_are_run_again(
    tmp_path: Path,
    stage: run.Stage,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    passes: bool,
    failed: int,
) -> None:
    monkeypatch.setattr(run, "ROOT", tmp_path)
    test = tmp_path / "test_once.py"
    test.write_text(FAILS_ONCE.format(target=target, passes=passes))
    stage = replace(stage, paths=(str(test),))
    with (tmp_path / "log").open("wb") as log:
        first = run.outcome_of(stage, stage.process(log).wait(), 1.0)
    assert (first.passed, first.failed) == (0, 1)
    last = run.settled(first)
    assert (last.passed, last.failed) == (1 - failed, failed)
    assert len(last.failures) == failed
    assert len(last.passed_later) == 1 - failed
