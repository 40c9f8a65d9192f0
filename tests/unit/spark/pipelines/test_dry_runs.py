"""A dry run of an analysis says what would be read and written, and does neither."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from cometmq.model.errors import ConfigError
from cometmq.spark.pipelines import PIPELINES
from cometmq.spark.pipelines.findings.analysis import AnalysisSettings

ANALYSES = sorted(
    name for name, pipeline in PIPELINES.items() if issubclass(pipeline.settings, AnalysisSettings)
)


def test_these_are_the_analyses() -> None:
    assert ANALYSES == ["audit", "dead-letters", "trace", "usage"]


@pytest.mark.parametrize("name", ANALYSES)
def test_a_dry_run_reads_and_writes_nothing(name: str, tmp_path: Path) -> None:
    """Without a session nothing can be read; at the source there is nothing."""
    pipeline = PIPELINES[name]
    output = tmp_path / "out"
    settings = pipeline.settings(source="parquet:/nowhere", output=str(output))

    result = pipeline.function(None, settings, dry_run=True)

    assert result.run.status == "dry run"
    assert "would read parquet:/nowhere" in result.notes[0]
    assert result.notes[1].startswith("would write report.html and ")
    assert result.notes[1].endswith(f" to {output}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ANALYSES)
def test_a_dry_run_refuses_what_the_run_would_refuse(name: str) -> None:
    pipeline = PIPELINES[name]

    with pytest.raises(ConfigError, match="no output"):
        pipeline.function(None, pipeline.settings(source="parquet:/nowhere"), dry_run=True)
    with pytest.raises(ConfigError, match="no source"):
        pipeline.function(None, pipeline.settings(output="/nowhere"), dry_run=True)


def test_a_dry_run_exports_no_letters(tmp_path: Path) -> None:
    pipeline = PIPELINES["dead-letters"]
    settings = pipeline.settings(
        source="parquet:/nowhere", output=str(tmp_path / "out"), export=str(tmp_path / "letters")
    )

    result = pipeline.function(None, settings, dry_run=True)

    assert result.notes[2:] == (f"would export letters to {tmp_path / 'letters'}",)
    assert not list(tmp_path.iterdir())
