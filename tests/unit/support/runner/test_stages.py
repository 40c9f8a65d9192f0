"""The runner of all tests: what it counts, which stages run side by side, what runs again."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import run
from support.runner import stages
from support.runner.stages import Outcome, Stage, next_stage, outcome_of, run_stages
from support.runner.tiers import ALL, INTEROP, TEST, TIERS
from support.runner.versions import NEWEST, VERSIONS


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(stages, "RESULTS", tmp_path)
    return Stage("unit", ("tests/unit",))


@pytest.fixture(autouse=True)
def _not_on_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


SKIPPED = """<testsuites><testsuite tests="2" failures="0" errors="0" skipped="2">
<testcase file="a.py" name="test_x"><skipped type="pytest.skip" message="needs go"/></testcase>
<testcase file="a.py" name="test_y"><skipped type="pytest.xfail" message="later"/></testcase>
</testsuite></testsuites>"""


def test_a_skipped_test_is_a_failure_on_ci_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.report.write_text(SKIPPED)
    outcome = outcome_of(stage, status=0, seconds=2.0)
    assert (outcome.failed, outcome.skipped, outcome.expected) == (0, 1, 1)
    assert list(stages.skips([outcome, outcome])) == ["2 skipped: needs go"]

    monkeypatch.setenv("CI", "true")
    outcome = outcome_of(stage, status=0, seconds=2.0)
    assert [str(failure) for failure in outcome.failures] == [
        "a.py::test_x: skipped on CI: needs go"
    ]


def test_what_failed_is_named_with_its_reason(stage: Stage) -> None:
    stage.report.write_text(
        '<testsuites><testsuite tests="4" failures="1" errors="1" skipped="1">'
        '<testcase file="tests/a.py" name="test_x[comet]">'
        '<failure message="AssertionError: 3 messages&#10;assert 3 == 4">a trace</failure>'
        '</testcase><testcase file="tests/a.py" name="test_y"><error message="no disk"/>'
        '</testcase><testcase file="tests/a.py" name="test_z"><skipped/></testcase>'
        '<testcase file="tests/a.py" name="test_fine"/></testsuite></testsuites>'
    )
    outcome = outcome_of(stage, status=1, seconds=2.0)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 2, 1)
    assert [str(failure) for failure in outcome.failures] == [
        "tests/a.py::test_x[comet]: AssertionError: 3 messages",
        "tests/a.py::test_y: no disk",
    ]


@pytest.mark.parametrize("tier", TIERS)
def test_every_stage_has_a_title_and_a_report_of_its_own(tier: str) -> None:
    found = run.stages_of(tier)

    assert len({each.title for each in found}) == len({each.report for each in found}) == len(found)


def test_each_tier_has_its_clusters() -> None:
    clusters = {
        tier: {stage.cluster for stage in run.stages_of(tier) if stage.name == "client"}
        for tier in (TEST, INTEROP, ALL)
    }

    assert clusters == {
        TEST: {"comet"},
        INTEROP: {*VERSIONS},
        ALL: {"comet", *VERSIONS, NEWEST},
    }


def test_what_a_stage_needs_is_a_preparation_of_its_tier() -> None:
    for tier in TIERS:
        found = run.stages_of(tier)
        prepared = {each.name for each in found if each.prepares}
        assert {each.needs for each in found if each.needs} <= prepared


def test_a_stage_that_broke_off_has_failed(stage: Stage) -> None:
    outcome = outcome_of(stage, status=2, seconds=0.1)
    assert (outcome.passed, outcome.failed) == (0, 1)
    assert [str(failure) for failure in outcome.failures] == ["ended with status 2"]


@pytest.mark.parametrize("report", [None, "<testsuites><testsuite/></testsuites>"])
def test_a_stage_without_a_test_in_its_report_has_failed(stage: Stage, report: str | None) -> None:
    if report is not None:
        stage.report.write_text(report)

    assert [str(each) for each in outcome_of(stage, status=0, seconds=0.1).failures] == [
        "ran no test"
    ]
    assert not outcome_of(replace(stage, prepares=("true",)), status=0, seconds=0.1).failures


def test_a_stage_whose_report_is_cut_off_has_failed(stage: Stage) -> None:
    stage.report.write_text("<testsuites><testsuite><testcase")

    (failure,) = outcome_of(stage, status=0, seconds=0.1).failures
    assert failure.why.startswith("wrote a report that is no XML: ")


def test_a_stage_that_broke_off_after_a_failure_says_both(stage: Stage) -> None:
    """So that the failed test alone does not stand for all that were to run."""
    stage.report.write_text(
        '<testsuites><testsuite tests="1" failures="1" errors="0" skipped="0">'
        '<testcase file="tests/a.py" name="test_x"><properties><property name="cluster"'
        ' value="5.3.3"/></properties><failure message="m"/></testcase>'
        "</testsuite></testsuites>"
    )
    outcome = outcome_of(stage, status=3, seconds=0.1)
    assert outcome.failed == 2
    assert stages.rerun_on_quiet_machine(outcome) is outcome


def test_a_stage_that_passed_has_nothing_to_say(stage: Stage) -> None:
    stage.report.write_text(
        '<testsuites><testsuite tests="1" failures="0" errors="0" skipped="0">'
        '<testcase file="tests/a.py" name="test_fine"/></testsuite></testsuites>'
    )
    assert outcome_of(stage, status=0, seconds=0.1).failures == ()


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
def test_only_tests_of_rocketmq_clusters_run_again(
    tmp_path: Path,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    passes: bool,
    failed: int,
) -> None:
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    test = tmp_path / "test_once.py"
    test.write_text(FAILS_ONCE.format(target=target, passes=passes))

    no_plugins = (("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"),)  # they are slow to import
    (last,) = run_stages([replace(stage, paths=(str(test),), variables=no_plugins)], cores=1)

    assert (last.passed, last.failed) == (1 - failed, failed)
    assert len(last.failures) == failed
    assert len(last.passed_on_rerun) == 1 - failed


def test_stages_start_in_their_order_while_processors_are_free() -> None:
    busy, half, other = Stage("a", cores=1.5), Stage("b", cores=0.5), Stage("c", cores=1.0)

    assert next_stage([busy, half], [], cores=2) is busy
    assert next_stage([other, half], [busy], cores=2) is half
    assert next_stage([other], [busy, half], cores=2) is None
    assert next_stage([replace(busy, cores=9)], [], cores=2), "the only stage always starts"


def test_a_stage_waits_for_its_preparation() -> None:
    install = Stage("install", prepares=("true",))
    stage = Stage("spark", needs="install")

    assert next_stage([stage], [install], cores=4) is None
    assert next_stage([stage, install], [], cores=4) is install
    assert next_stage([stage], [], cores=4) is stage


def test_a_preparation_that_fails_is_a_failure_with_its_output(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import sys; print('no room'); sys.exit(4)"
    (outcome,) = run_stages(
        [replace(stage, name="install", prepares=(sys.executable, "-c", program))], cores=1
    )

    assert [str(failure) for failure in outcome.failures] == ["ended with status 4"]
    assert "no room" in capfd.readouterr().out


HANGS = """
import threading

import pytest

@pytest.mark.timeout(func_only=True)
def test_that_hangs():
    threading.Event().wait()

@pytest.mark.timeout(60)
def test_after_it():
    pass
"""


def test_a_test_that_hangs_fails_and_the_next_one_runs(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    monkeypatch.setattr(stages, "TEST_LIMIT_S", 0.5)
    test = tmp_path / "test_hangs.py"
    test.write_text(HANGS)

    plugins = (("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"), ("PYTEST_PLUGINS", "pytest_timeout"))
    (outcome,) = run_stages([replace(stage, paths=(str(test),), variables=plugins)], cores=1)

    assert (outcome.passed, outcome.failed) == (1, 1)
    assert [str(each) for each in outcome.failures] == [
        "test_hangs.py::test_that_hangs: Failed: Timeout (>0.5s) from pytest-timeout."
    ]


def test_a_stage_that_hangs_is_killed_with_its_servers_and_has_failed(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server shares the stage's pipe, which closes only when both have ended."""
    monkeypatch.setattr(stages, "LIMIT_S", 2.0)
    pipe = tmp_path / "pipe"
    program = "import subprocess; subprocess.Popen(['sleep', '600']).wait()"
    command = ("sh", "-c", f'exec >"{pipe}"; exec "{sys.executable}" -c "{program}"')
    os.mkfifo(pipe)
    hold = os.open(pipe, os.O_RDWR)  # so that no end waits until the other one is open
    reader = os.open(pipe, os.O_RDONLY)
    (outcome,) = run_stages([replace(stage, prepares=command)], cores=1)
    os.close(hold)
    assert select.select([reader], [], [], 60)[0] == [reader]
    assert os.read(reader, 1) == b""
    os.close(reader)

    assert (outcome.passed, outcome.failed) == (0, 1)
    assert "killed at its limit" in outcome.failures[0].why


TWO_STAGES = """
import signal
from pathlib import Path
from support.runner import stages

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it for all that it starts
stages.RESULTS = Path({results!r})
stages.run_stages([stages.Stage(name, prepares={command!r}) for name in "ab"], cores=2)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_with_all_stages_and_their_servers(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The servers share a pipe, which closes only when all of them have ended."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = ("sh", "-c", f'exec >"{pipe}"; sleep 600 & echo started; wait')
    program = TWO_STAGES.format(results=str(tmp_path), command=command)
    environment = {**os.environ, "PYTHONPATH": str(stages.ROOT / "tests")}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as runner:
        with pipe.open() as started:
            assert started.readline() == started.readline() == "started\n"
            for _ in range(2):  # make and timeout may send it more than once
                runner.send_signal(number)
            assert started.read() == ""
        _, said = runner.communicate(timeout=60)

    assert runner.returncode == 128 + number
    assert f"tests: {number.name} ends the run" in said


def test_a_stage_that_starts_after_the_signal_is_killed_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = stages.ProcessGroups()
    groups.kill_all()
    monkeypatch.setattr(stages, "_groups", groups)

    outcome = stages.run_stage(replace(stage, prepares=("sleep", "600")))

    assert [str(failure) for failure in outcome.failures] == ["ended with status -9"]


def test_a_second_run_in_one_tree_is_refused_and_names_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    report = tmp_path / "results" / "unit.xml"
    report.touch()
    program = (
        "from pathlib import Path; from support.runner import stages;"
        f"stages.RESULTS = Path({str(tmp_path / 'results')!r});"
        "\nwith stages.results_folder(): print('begun', flush=True); input()"
    )
    environment = {**os.environ, "PYTHONPATH": str(stages.ROOT / "tests")}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "begun\n"
        assert not report.exists()
        report.touch()
        with pytest.raises(SystemExit, match=f"process {first.pid}, or a stage"):
            stages.results_folder().__enter__()
        assert report.exists()
        first.stdin.write("\n")
        first.stdin.flush()
        assert first.wait(60) == 0

    with stages.results_folder():
        assert not report.exists()


def test_a_stage_that_outlives_its_runner_keeps_the_tree_in_use(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "RESULTS", tmp_path / "results")
    with stages.results_folder():
        left = subprocess.Popen(["sleep", "600"], pass_fds=stages._lock_held)
    try:
        with pytest.raises(SystemExit, match="or a stage that it started, runs tests"):
            stages.results_folder().__enter__()
    finally:
        left.kill()
        left.wait()
    with stages.results_folder():
        assert stages._lock_held


def test_a_preparation_uses_the_python_that_runs_the_tests(stage: Stage) -> None:
    """Another one would make ``.venv`` anew under the tests that run."""
    python = stage.environment()["PYTHON"]
    program = "import sys; print(sys.prefix == sys.base_prefix, sys.version)"

    said = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)

    assert said.stdout.strip() == f"True {sys.version}"


def test_the_tables_show_each_stage_and_the_slowest_tests(stage: Stage) -> None:
    outcome = Outcome(stage, 1200, 0, 1, 3, 61.4, 50.6, slowest=((9.0, "a::b"), (1.0, "a::c")))
    other = Outcome(
        replace(stage, build="interpreted"), 1, 0, 0, 2.0, 1.0, slowest=((5.0, "d::e"),)
    )

    assert "| unit (compiled) | 1,200 | 0 | 1 | 3 | 61 | 51 |" in stages.table([outcome, other])
    assert stages.slowest_tests([outcome, other])[2:] == [
        "| 9.0 | `a::b` | unit (compiled) |",
        "| 5.0 | `d::e` | unit (interpreted) |",
        "| 1.0 | `a::c` | unit (compiled) |",
    ]


def test_long_runs_leave_nothing_out_that_shorter_ones_have() -> None:
    """A long run has no stage for tests that need programs: its other stages have them."""

    def key(each: Stage) -> tuple[str, str, str]:
        return each.name, each.cluster, each.build

    everything = {key(each) for each in run.stages_of(ALL)}
    for tier in TIERS:
        assert {key(each) for each in run.stages_of(tier)} - everything <= {
            ("programs", "", "compiled")
        }
        if tier == ALL:
            assert not [
                each for each in run.stages_of(tier) if "COMETMQ_PROGRAMS" in dict(each.variables)
            ]


def test_a_machine_without_java_leaves_out_the_spark_stages_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert not [
        each for each in run.stages_of(TEST) if "Spark" in each.title or "spark" in each.title
    ]
    assert "left out: the Spark stages: no java on the PATH" in capsys.readouterr().out


def test_a_failure_is_shown_with_its_message_and_a_command_that_repeats_it(stage: Stage) -> None:
    trace = "def test_x():\n>   assert 3 == 4\nE   assert 3 == 4\n\ntests/a.py:7: AssertionError"
    stage.report.write_text(
        '<testsuites><testsuite><testcase file="tests/a.py" name="test_x[a b]">'
        f'<failure message="assert 3 == 4">{trace}</failure></testcase></testsuite></testsuites>'
    )
    interpreted = replace(stage, build="interpreted", cluster="5.3.3")
    interpreted.report.write_text(stage.report.read_text())
    conformance = replace(stage, name="conformance", runner=("tests/conformance_run/run.py",))

    assert list(stages.failures([outcome_of(interpreted, status=1, seconds=1.0)])) == [
        "FAILED in unit 5.3.3 (interpreted): tests/a.py::test_x[a b]: assert 3 == 4",
        "E   assert 3 == 4",
        "tests/a.py:7: AssertionError",
        "  repeat: COMETMQ_TIER=test COMETMQ_BUILD=interpreted COMETMQ_CLUSTERS=5.3.3"
        " .venv/bin/python -m pytest 'tests/a.py::test_x[a b]'",
    ]
    assert conformance.repeat_command("tests/a.py::test_x") == (
        ".venv/bin/python tests/run.py --tier test --build compiled --test tests/a.py::test_x"
        " conformance"
    )


def test_all_that_is_said_of_many_failures_fits_into_forty_lines(stage: Stage) -> None:
    trace = "\n".join(["E   wrong " * 50] * 60)
    cases = "".join(
        f'<testcase file="tests/a.py" name="test_{number}"><failure message="m">{trace}</failure>'
        "</testcase>"
        for number in range(100)
    )
    stage.report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    said = list(stages.failures([outcome_of(stage, status=1, seconds=1.0)]))

    last = said[-stages.LINES_MAX :]
    assert [line for line in last if line.startswith("  repeat: ")][-1].endswith("::test_3")
    assert sum(line.startswith("  repeat: ") for line in last) == stages.FAILURES_SHOWN
    assert len(said) == 100 - stages.FAILURES_SHOWN + len(last)
