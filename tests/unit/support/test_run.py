"""What the runner of all tests says of a stage that failed."""

from __future__ import annotations

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
        '<testcase classname="tests.a" name="test_x[comet]">'
        '<failure message="AssertionError: 3 messages&#10;assert 3 == 4">a trace</failure>'
        '</testcase><testcase classname="tests.a" name="test_y"><error message="no disk"/>'
        '</testcase><testcase classname="tests.a" name="test_z"><skipped/></testcase>'
        '<testcase classname="tests.a" name="test_fine"/></testsuite></testsuites>'
    )
    outcome = run.outcome_of(stage, status=1, seconds=2.0)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 2, 1)
    assert outcome.failures == (
        "tests.a::test_x[comet]: AssertionError: 3 messages",
        "tests.a::test_y: no disk",
    )


def test_a_stage_that_broke_off_has_failed(stage: run.Stage) -> None:
    outcome = run.outcome_of(stage, status=2, seconds=0.1)
    assert (outcome.passed, outcome.failed) == (0, 1)
    assert outcome.failures == ("ended with status 2",)


def test_a_stage_that_passed_has_nothing_to_say(stage: run.Stage) -> None:
    stage.report.write_text(
        '<testsuites><testsuite tests="1" failures="0" errors="0" skipped="0">'
        '<testcase classname="tests.a" name="test_fine"/></testsuite></testsuites>'
    )
    assert run.outcome_of(stage, status=0, seconds=0.1).failures == ()
