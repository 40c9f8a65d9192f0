"""The verification: compares the queues, the index and the archive of a store with its log.

    every record            has its unit, in the right queue, at its offset, with its tags code
    every unit              leads to a record of its own
    every key               has an entry in the index, and every entry a record with such a key
    every slot of the index leads to its entries, newest first
    every archived range    has the rows that the log has, and is then marked as verified

All of it is computed anew from the log and compared. Nothing but marks and run records is written.
What units and entries must be follows from `cometmq.store.queues.dispatch`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from cometmq.model.delay import DEFAULT_LEVELS, DelayLevels
from cometmq.model.errors import ConfigError
from cometmq.spark.logs import LogPlace, open_place, plan
from cometmq.spark.pipelines.findings.report import Report
from cometmq.spark.pipelines.findings.rows import Finding, Findings, Severity
from cometmq.spark.pipelines.running.folders import extended, open_folder
from cometmq.spark.pipelines.running.progress import Progress, silent
from cometmq.spark.pipelines.running.registry import Pipeline, PipelineSettings, Result
from cometmq.spark.pipelines.running.runs import Run, RunRecord, Runs, recorded
from cometmq.spark.pipelines.running.work import waves
from cometmq.spark.pipelines.stores.files import StoreFiles, log_end
from cometmq.spark.pipelines.verify.archive_check import check_archive
from cometmq.spark.pipelines.verify.differences import (
    Checked,
    CheckJob,
    check_chains,
    check_queue,
    check_range,
)
from cometmq.system.settings import setting

_MIB = 1024 * 1024
Task = TypeVar("Task")


@dataclass(frozen=True)
class VerifySettings(PipelineSettings):
    """What is verified."""

    store: str = setting("")
    """The store's directory, or an address."""
    broker_name: str = setting("")
    """The broker's name in the archive."""
    archive: str = setting("")
    """Folder of an archive of the store; its ranges are compared with the log and marked."""
    topics: tuple[str, ...] = setting(())
    """Topics whose queues are compared. Default: all."""
    report: str = setting("")
    """Path of an HTML report."""
    range_bytes: int = setting(64 * _MIB, unit="bytes", low=4096, high=1 << 31)
    """Maximum bytes of the log per task."""
    closed: bool = setting(False)
    """Whether the broker crashed and does not run."""
    index: bool = setting(True)
    """Whether the index is verified, if the store has one."""
    index_slots: int = setting(0, low=0, high=2**28)
    """Number of hash slots of an index file; 0 for RocketMQ's ratio."""
    delay_levels: str = setting(DEFAULT_LEVELS)
    """The delay of each level, as in the broker's settings."""


def verify(
    spark: Any,
    settings: VerifySettings,
    *,
    progress: Progress = silent,
    dry_run: bool = False,
) -> Result:
    """Compare a store's queues and index, and an archive of it, with its log.

    Args:
        spark: the session; its executors must see the store.
        settings: what to compare.
        progress: is told of every range, queue and file.
        dry_run: only say how much there is to compare.

    Returns:
        The run's record and a table ``findings``; ``good`` if there is none worse than a note.

    Raises:
        ConfigError: no store is named, or the delay levels are none.
        PlaceError: there is none.
    """
    if not settings.store:
        raise ConfigError("verify: expected store, the directory of a store")
    DelayLevels.parse(settings.delay_levels)
    place = open_place(settings.store, broker=settings.broker_name or None)
    job = _job(settings, place)
    if job is None and not settings.archive:
        raise ConfigError(f"verify: {settings.store} has a log and nothing to compare with it")
    if dry_run:
        return _foretold(job, settings)
    runs = Runs(settings.runs or _runs_of(settings))
    run = runs.begin_or_resume("verify", _inputs(settings, job), settings.resume)
    with recorded(run):
        findings, counts = _compared(spark, settings, job, run, progress)
        outputs = [settings.archive] if settings.archive else []
        if settings.report:
            outputs.append(_report(settings, counts, findings))
    notes = () if findings.clean else (f"{len(findings)} findings",)
    record = run.end(outputs=outputs, counts=counts)
    return Result(record, {"findings": findings.table()}, notes, findings.clean)


def _report(settings: VerifySettings, counts: Mapping[str, int], findings: Findings) -> str:
    """Write a page about the run; return where it is."""
    report = Report("Store and log", settings.store)
    summary = (
        "Everything agrees with the log."
        if findings.clean
        else "Not everything agrees with the log."
    )
    compared = {name.replace("_", " "): f"{count:,}" for name, count in counts.items()}
    report.section("Compared", summary).figures(compared)
    report.section("Findings").findings(findings)
    return report.write(settings.report)


def _compared(
    spark: Any, settings: VerifySettings, job: CheckJob | None, run: Run, progress: Progress
) -> tuple[Findings, dict[str, int]]:
    findings, counts = Findings(), {}
    if job is not None:
        found = _Comparing(spark, job, run, progress)
        counts = found.all(settings.range_bytes)
        findings = found.findings
    if settings.archive:
        place = open_place(settings.store, broker=settings.broker_name or None)
        counts |= check_archive(spark, settings.archive, place, findings, progress)
    return findings, counts


class _Comparing:
    """One run's comparison of a store with its log, step by step.

    Args:
        spark: the session.
        job: the store.
        run: what is noted in it is not done again.
        progress: is told of every task.
    """

    def __init__(self, spark: Any, job: CheckJob, run: Run, progress: Progress) -> None:
        self._spark = spark
        self._job = job
        self._run = run
        self._progress = progress
        self.findings = Findings()

    def all(self, range_bytes: int) -> dict[str, int]:
        """Compare everything and return what was counted."""
        job = self._job
        parts = plan(job.place, job.place.min_offset, job.end, range_bytes)
        ranges = self._phase("ranges", check_range, parts, lambda p: f"{p.start}-{p.end}")
        matched: Counter[tuple[str, int]] = Counter()
        for checked in ranges:
            matched.update(checked.units)
        topics = job.topics
        queues = [
            (queue.topic, queue.queue_id, matched[queue.topic, queue.queue_id])
            for queue in job.store.queues(topics)
        ]
        self._phase("queues", check_queue, queues, lambda q: f"{q[0]}-{q[1]}")
        files = list(range(len(job.index)))
        self._phase("index files", check_chains, files, lambda n: job.index[n][0].path)
        return {
            "rows": sum(checked.rows for checked in ranges),
            "units": sum(matched.values()),
            "keys": sum(checked.keys for checked in ranges),
            "queues": len(queues),
            "index_files": len(files),
            "findings": len(self.findings),
        }

    def _phase(
        self,
        what: str,
        work: Callable[[CheckJob, Task], Checked],
        tasks: Sequence[Task],
        name: Callable[[Task], str],
    ) -> list[Checked]:
        """Do the tasks that the run record does not have; return what all of them found."""
        done = [_from_step(key, step) for key, step in self._steps(what)]
        known = {checked.part for checked in done}
        left = [task for task in tasks if name(task) not in known]
        self._progress.start(len(tasks), what, "verify")
        self._progress.step(len(tasks) - len(left))
        for wave in waves(self._spark, partial(work, self._job), left):
            for checked in wave:
                self._run.step(f"{what}:{checked.part}", **_step(checked))
            self._progress.step(len(wave))
            done += wave
        self._progress.end()
        for checked in done:
            self.findings.add(*checked.findings)
        return done

    def _steps(self, what: str) -> list[tuple[str, dict[str, Any]]]:
        start = f"{what}:"
        return [
            (key.removeprefix(start), step)
            for key, step in self._run.steps.items()
            if key.startswith(start)
        ]


def _job(settings: VerifySettings, place: LogPlace) -> CheckJob | None:
    """What to compare of the store; None if only its segments are there."""
    store = StoreFiles.of(place)
    if store is None:
        return None
    files = store.index_files(settings.index_slots) if settings.index else []
    headers = [(file, file.header()) for file in files]
    storage, root = store.storage, store.root
    return CheckJob(
        place,
        store,
        frozenset(settings.topics),
        settings.delay_levels,
        tuple(each for each in headers if each[1].next_entry > 1),
        log_end(place, closed=settings.closed),
        settings.closed or storage.entry(f"{root}/abort") is None,
    )


def _inputs(settings: VerifySettings, job: CheckJob | None) -> dict[str, Any]:
    names = ("store", "archive", "topics", "range_bytes", "index", "delay_levels")
    known = {name: getattr(settings, name) for name in names}
    return {**known, "end": job.end if job else 0}


def _runs_of(settings: VerifySettings) -> str:
    """Where run records are if nobody says: in the archive, else beside the store."""
    if settings.archive:
        return open_folder(settings.archive).path("_runs")
    return extended(settings.store, ".runs")


def _foretold(job: CheckJob | None, settings: VerifySettings) -> Result:
    if job is None:
        note, counts = "would compare an archive with a log; there are no queues", {}
    else:
        counts = {
            "log_bytes": job.end - job.place.min_offset,
            "queues": len(job.store.queues(job.topics)),
            "index_files": len(job.index),
        }
        note = "would compare " + ", ".join(f"{name} {count:,}" for name, count in counts.items())
    if settings.archive:
        note += f", and what is not verified of {settings.archive}"
    return Result(RunRecord("", "verify", 0, status="dry run", counts=counts), notes=(note,))


def _step(checked: Checked) -> dict[str, Any]:
    return {
        "rows": checked.rows,
        "keys": checked.keys,
        "units": [[topic, queue, count] for (topic, queue), count in checked.units.items()],
        "findings": [asdict(finding) for finding in checked.findings],
    }


def _from_step(part: str, step: dict[str, Any]) -> Checked:
    return Checked(
        part,
        step["rows"],
        {(topic, queue): count for topic, queue, count in step["units"]},
        step["keys"],
        [
            Finding(**{**finding, "severity": Severity(finding["severity"])})
            for finding in step["findings"]
        ],
    )


PIPELINE = Pipeline(
    "verify",
    "Compare a store's consume queues, index and archive with its log.",
    VerifySettings,
    verify,
)
