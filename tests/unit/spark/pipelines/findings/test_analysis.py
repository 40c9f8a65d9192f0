"""Runs of an analysis: steps are done once, tables are kept, secrets are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cometmq.model.errors import ConfigError
from cometmq.spark.pipelines.findings.analysis import (
    Analysis,
    AnalysisSettings,
    checksum,
    new_report,
)
from cometmq.spark.pipelines.findings.rows import Finding, Severity
from cometmq.spark.pipelines.running.progress import Silent
from cometmq.spark.pipelines.running.registry import Result
from cometmq.spark.pipelines.running.runs import Runs


class Counting(Silent):
    """Counts the steps that were told."""

    def __init__(self) -> None:
        self.total = self.done = 0

    def start(self, total: int, unit: str, what: str) -> None:
        self.total = total

    def step(self, n: int = 1) -> None:
        self.done += n


def settings(path: Path, **more: Any) -> AnalysisSettings:
    known = {"source": "log:/store", "output": str(path), **more}
    return AnalysisSettings(**known)


def numbers(count: int) -> pa.Table:
    return pa.table({"n": list(range(count))})


def run(given: AnalysisSettings, made: list[str], fail_at: str = "") -> Result:
    """An analysis of three tables, which says what it computed."""
    analysis = Analysis("usage", given, Silent(), 3)

    def make(name: str) -> pa.Table:
        if name == fail_at:
            raise OSError("the disk is gone")
        made.append(name)
        return numbers(len(name))

    with analysis.recorded():
        for name in ("a", "bb", "ccc"):
            analysis.table(name, lambda name=name: make(name))  # type: ignore[misc]
        analysis.findings.add(Finding("odd", Severity.NOTE, "three"))
        return analysis.finish(new_report("x", given), {"rows": 6}, ["a note"])


def test_tables_report_and_record_are_in_the_output_folder(tmp_path: Path) -> None:
    result = run(settings(tmp_path), [])

    assert result.run.status == "done"
    assert result.good
    assert result.notes == ("a note",)
    assert result.run.counts == {"rows": 6, "findings": 1}
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert names == {"report.html", "findings.parquet", "a.parquet", "bb.parquet", "ccc.parquet"}
    assert set(result.run.outputs) == {str(tmp_path / name) for name in names}
    assert pq.read_table(tmp_path / "ccc.parquet") == numbers(3)
    [record] = Runs(tmp_path / "_runs").all()
    assert record == result.run


def test_a_run_that_failed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    made: list[str] = []
    with pytest.raises(OSError, match="disk is gone"):
        run(settings(tmp_path), made, fail_at="bb")
    [failed] = Runs(tmp_path / "_runs").all()

    result = run(settings(tmp_path, resume="latest"), made)

    assert (failed.status, failed.reason) == ("failed", "OSError: the disk is gone")
    assert made == ["a", "bb", "ccc"]
    assert result.run.id == failed.id
    assert result.run.checksum == run(settings(tmp_path / "whole"), []).run.checksum


def test_a_run_is_not_gone_on_with_for_another_source(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk is gone"):
        run(settings(tmp_path), [], fail_at="bb")

    with pytest.raises(ConfigError, match="no unfinished run"):
        run(settings(tmp_path, resume="latest", source="log:/another"), [])


def test_options_of_formats_are_not_in_the_record(tmp_path: Path) -> None:
    run(settings(tmp_path, options=("rocketmq.acl.accessKey=hush-hush",)), [])

    for path in (tmp_path / "_runs").iterdir():
        assert "hush-hush" not in path.read_text()
    assert "hush-hush" not in (tmp_path / "report.html").read_text()


def test_without_an_output_nothing_is_begun(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no output"):
        run(settings(tmp_path, output="", runs=str(tmp_path / "runs")), [])

    assert not list(tmp_path.iterdir())


def test_progress_is_told_of_every_step_and_an_act_is_done_once(tmp_path: Path) -> None:
    progress = Counting()
    analysis = Analysis("usage", settings(tmp_path), progress, 2)
    acts: list[int] = []

    def act() -> dict[str, int]:
        acts.append(1)
        return {"rows": 5}

    told = [analysis.once("export", act)["rows"] for _ in range(2)]

    assert (told, acts) == ([5, 5], [1])
    assert (progress.total, progress.done) == (2, 2)


def test_a_checksum_is_that_of_the_rows_and_not_of_their_order() -> None:
    one = pa.table({"n": [1, 2, 3], "t": ["a", "b", None]})
    other = one.take(pa.array([2, 0, 1]))
    changed = pa.table({"n": [1, 2, 4], "t": ["a", "b", None]})

    assert checksum({"x": one}) == checksum({"x": other})
    assert checksum({"x": one}) != checksum({"x": changed})
    assert checksum({"x": one}) != checksum({"y": one})
