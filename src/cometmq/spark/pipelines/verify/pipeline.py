"""The verification: compares an archive with the log that it was made of.

Every archived range has the rows that the log has, and is then marked as verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cometmq.model.errors import ConfigError
from cometmq.spark.logs import open_place
from cometmq.spark.pipelines.findings.rows import Findings
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.pipelines.running.progress import Progress, silent
from cometmq.spark.pipelines.running.registry import Pipeline, PipelineSettings, Result
from cometmq.spark.pipelines.running.runs import RunRecord, Runs, recorded
from cometmq.spark.pipelines.verify.archive_check import check_archive
from cometmq.system.settings import setting


@dataclass(frozen=True)
class VerifySettings(PipelineSettings):
    """What is verified."""

    store: str = setting("")
    """The store's directory, or an address."""
    broker_name: str = setting("")
    """The broker's name in the archive."""
    archive: str = setting("")
    """Folder of an archive of the store; its ranges are compared with the log and marked."""


def verify(
    spark: Any,
    settings: VerifySettings,
    *,
    progress: Progress = silent,
    dry_run: bool = False,
) -> Result:
    """Compare an archive of a store with its log.

    Args:
        spark: the session; its executors must see the store.
        settings: what to compare.
        progress: is told of every range.
        dry_run: only say what would be compared.

    Returns:
        The run's record and a table ``findings``; ``good`` if there is none worse than a note.

    Raises:
        ConfigError: no store or no archive is named.
        PlaceError: there is none.
    """
    if not settings.store or not settings.archive:
        raise ConfigError(
            "verify: expected store and archive, the directory of a store and the folder of its"
            " archive; `cometmq store verify DIR` compares queues and index with the log"
        )
    place = open_place(settings.store, broker=settings.broker_name or None)
    if dry_run:
        note = f"would compare what is not verified of {settings.archive}"
        return Result(RunRecord("", "verify", 0, status="dry run"), notes=(note,))
    runs = Runs(settings.runs or open_folder(settings.archive).path("_runs"))
    inputs = {"store": settings.store, "archive": settings.archive}
    run = runs.begin_or_resume("verify", inputs, settings.resume)
    findings = Findings()
    with recorded(run):
        counts = check_archive(spark, settings.archive, place, findings, progress)
    notes = () if findings.clean else (f"{len(findings)} findings",)
    record = run.end(outputs=[settings.archive], counts=counts)
    return Result(record, {"findings": findings.table()}, notes, findings.clean)


PIPELINE = Pipeline("verify", "Compare an archive with its log.", VerifySettings, verify)
