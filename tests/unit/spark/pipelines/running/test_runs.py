"""Run records outlive the run: a killed run continues after its last complete step."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.model.errors import ConfigError
from cometmq.spark.pipelines import Runs, recorded
from cometmq.spark.pipelines.running.runs import RunError
from support.checks.manual_clock import ManualClock

INPUTS = {"store": "/data/store", "rows": 10}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def runs(tmp_path: Path, clock: ManualClock) -> Runs:
    return Runs(tmp_path / "runs", clock=clock)


def only_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "runs").iterdir()
    return path


def test_a_done_run_says_what_it_did(runs: Runs, clock: ManualClock) -> None:
    run = runs.begin("archive", INPUTS)
    run.step("a", rows=3)
    clock.advance(2500)
    record = run.end(outputs=["out"], counts={"rows": 3}, checksum="abc")
    assert runs.all() == [record]
    assert (record.status, record.counts, record.outputs) == ("done", {"rows": 3}, ["out"])
    assert record.ended_ms == record.started_ms + 2500
    assert record.as_row()["counts"] == '{"rows": 3}'


def test_a_killed_run_goes_on_after_its_last_step(runs: Runs) -> None:
    killed = runs.begin("archive", INPUTS)
    killed.step("a", rows=3)
    again = runs.resume("archive", INPUTS)
    assert again.record.id == killed.record.id
    assert again.steps == {"a": {"rows": 3}}
    assert again.resumed


def test_every_cut_of_the_file_leaves_whole_steps(runs: Runs, tmp_path: Path) -> None:
    run = runs.begin("archive", INPUTS)
    begun = len(only_file(tmp_path).read_bytes())
    run.step("a", rows=1)
    first = len(only_file(tmp_path).read_bytes())
    run.step("b", rows=2)
    whole = only_file(tmp_path).read_bytes()
    for cut in range(begun, len(whole) + 1):
        only_file(tmp_path).write_bytes(whole[:cut])
        found = runs.resume("archive", INPUTS)
        expected = ["a", "b"] if cut == len(whole) else ["a"] if cut >= first else []
        assert list(found.steps) == expected
        found.step("c")
        assert list(runs.resume("archive", INPUTS).steps) == [*expected, "c"]


def test_a_failed_run_says_why_and_can_be_gone_on_with(runs: Runs) -> None:
    run = runs.begin("replay", INPUTS)
    with pytest.raises(OSError, match="no room"), recorded(run):
        raise OSError("no room")
    (record,) = runs.all()
    assert (record.status, record.reason) == ("failed", "OSError: no room")
    resumed = runs.resume("replay", INPUTS, run.record.id)
    assert resumed.end(counts={"rows": 1}).status == "done"
    assert runs.all()[0].reason == ""


@pytest.mark.parametrize(
    ("pipeline", "inputs", "which", "text"),
    [
        ("archive", {**INPUTS, "rows": 11}, "latest", "no unfinished run"),
        ("archive", {**INPUTS, "rows": 11}, "id", "rows=10 instead of 11"),
        ("replay", INPUTS, "id", "no run"),
        ("archive", INPUTS, "archive-0-0", "no run archive-0-0"),
        ("archive", INPUTS, "../x", "not the id"),
    ],
)
def test_other_work_is_not_gone_on_with(
    runs: Runs, pipeline: str, inputs: dict[str, object], which: str, text: str
) -> None:
    run = runs.begin("archive", INPUTS)
    with pytest.raises(ConfigError, match=text):
        runs.resume(pipeline, inputs, run.record.id if which == "id" else which)


def test_a_done_run_is_not_gone_on_with(runs: Runs) -> None:
    run = runs.begin("archive", INPUTS)
    run.end()
    with pytest.raises(ConfigError, match="done already"):
        runs.resume("archive", INPUTS, run.record.id)
    with pytest.raises(ConfigError, match="no unfinished run"):
        runs.resume("archive", INPUTS)


def test_the_newest_unfinished_run_is_taken(runs: Runs, clock: ManualClock) -> None:
    runs.begin("archive", INPUTS)
    clock.advance(1)
    newest = runs.begin("archive", INPUTS)
    assert runs.resume("archive", INPUTS).record.id == newest.record.id


def test_a_damaged_line_is_named(runs: Runs, tmp_path: Path) -> None:
    runs.begin("archive", INPUTS)
    with only_file(tmp_path).open("ab") as file:
        file.write(b"{broken\n")
    with pytest.raises(RunError, match="line 2"):
        runs.all()


def test_runs_make_a_table(runs: Runs, clock: ManualClock) -> None:
    runs.begin("archive", INPUTS).end(counts={"rows": 3})
    clock.advance(1)
    runs.begin("replay", INPUTS)
    table = runs.table()
    assert table["pipeline"].to_pylist() == ["archive", "replay"]
    assert table["counts"].to_pylist() == ['{"rows": 3}', "{}"]
    assert table["ended_ms"].null_count == 1


def test_a_failed_run_that_goes_on_is_running_again(runs: Runs) -> None:
    run = runs.begin("archive", INPUTS)
    run.fail("disk full")
    runs.resume("archive", INPUTS).step("a")
    (record,) = runs.all()
    assert (record.status, record.ended_ms, record.reason) == ("running", None, "")
