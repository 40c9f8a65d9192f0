"""Rebuilds the consume queues and the index of a store from its log.

    <to>/consumequeue/…  <to>/consumequeue_ext/…  <to>/index/…     as a broker takes them
    <to>/_rebuild/<from>-<to>.units and .keys                      what a range gives; temporary

First each range of the log is decoded and what follows from it is kept, divided by queue. Then each
queue and each index file is written by one task, through the store's own code, so that the files
are those a broker would have written. The target is a directory that all executors see; nothing is
changed in the store. Put the directories in the place of the store's own while no broker runs.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cometmq.model.delay import DEFAULT_LEVELS, DelayLevels
from cometmq.model.errors import ConfigError
from cometmq.spark.logs import ByteRange, LogPlace, open_place, plan
from cometmq.spark.pipelines.running.command import main
from cometmq.spark.pipelines.running.progress import Progress, silent
from cometmq.spark.pipelines.running.registry import Pipeline, PipelineSettings, Result
from cometmq.spark.pipelines.running.runs import Run, RunRecord, Runs, recorded
from cometmq.spark.pipelines.running.work import waves
from cometmq.spark.pipelines.stores.dispatched import RUN, dispatch
from cometmq.spark.pipelines.stores.files import log_end
from cometmq.spark.pipelines.stores.writing import KeySlice, RunSlice, write_index_file, write_queue
from cometmq.store.config import StoreSettings
from cometmq.store.paths import index_name
from cometmq.system.settings import setting

_MIB = 1024 * 1024
_WORK = "_rebuild"
Task = TypeVar("Task")


@dataclass(frozen=True)
class RebuildSettings(PipelineSettings):
    """What is rebuilt, where to, and how large its files are."""

    store: str = setting("")
    """The log: a store's directory, its ``commitlog``, or an address."""
    to: str = setting("")
    """Output directory that all executors see; it must not contain consume queues or an index."""
    topics: tuple[str, ...] = setting(())
    """Topics whose queues are rebuilt. Default: all. The index always has all topics."""
    index: bool = setting(True)
    """Whether the index is rebuilt."""
    range_bytes: int = setting(64 * _MIB, unit="bytes", low=4096, high=1 << 31)
    """Maximum bytes of the log per task."""
    closed: bool = setting(False)
    """Whether the broker crashed and does not run."""
    consume_queue_file_bytes: int = setting(
        6_000_000, key="mappedFileSizeConsumeQueue", unit="bytes", low=20, high=1 << 31
    )
    """Size of a consume-queue file, as in the broker's settings."""
    consume_queue_ext_enabled: bool = setting(False, key="enableConsumeQueueExt")
    """Whether units get extension units; their bit maps stay empty."""
    consume_queue_ext_file_bytes: int = setting(
        48 * _MIB, key="mappedFileSizeConsumeQueueExt", unit="bytes", low=24, high=1 << 31
    )
    """Size of a file of extension units, as in the broker's settings."""
    index_slots: int = setting(5_000_000, key="maxHashSlotNum", low=1, high=2**28)
    """Number of hash slots of an index file, as in the broker's settings."""
    index_entries: int = setting(20_000_000, key="maxIndexNum", low=2, high=2**26)
    """Number of entries of an index file, as in the broker's settings."""
    delay_levels: str = setting(DEFAULT_LEVELS, key="messageDelayLevel")
    """The delay of each level, as in the broker's settings."""


@dataclass(frozen=True)
class RebuildJob:
    """What a task needs."""

    place: LogPlace
    to: str
    topics: frozenset[str]
    index: bool
    delay_levels: str

    @property
    def work(self) -> Path:
        """Where what ranges give is kept until queues and index are written."""
        return Path(self.to) / _WORK


@dataclass(frozen=True)
class Scanned:
    """What a range gave."""

    name: str
    rows: int
    queues: tuple[tuple[str, int, int, int], ...]
    """Topic, queue, number of its first unit in the file, how many."""
    keys: int


def rebuild(
    spark: Any,
    settings: RebuildSettings,
    *,
    progress: Progress = silent,
    dry_run: bool = False,
) -> Result:
    """Write a store's queues and index anew.

    Args:
        spark: the session; its executors must see the log and the target.
        settings: what, where to, and how large files are.
        progress: is told of every range, queue and file.
        dry_run: only say how much there is to do.

    Returns:
        The run's record; ``counts`` has rows, units, keys, queues and index files.

    Raises:
        ConfigError: a setting is missing or bad, or the target has queues already.
        BadRecordError: what stands in the log is no record.
    """
    if not settings.store or not settings.to:
        raise ConfigError("rebuild: expected store and to, the log and where queues are written")
    DelayLevels.parse(settings.delay_levels)
    place = open_place(settings.store)
    end = log_end(place, closed=settings.closed)
    if dry_run:
        return _foretold(place, end)
    if not settings.resume:
        _check_empty(Path(settings.to))
    runs = Runs(settings.runs or Path(settings.to) / "_runs")
    run = runs.begin_or_resume("rebuild", _inputs(settings, end), settings.resume)
    job = RebuildJob(
        place,
        str(Path(settings.to).absolute()),
        frozenset(settings.topics),
        settings.index,
        settings.delay_levels,
    )
    with recorded(run):
        counts = _Rebuilding(spark, settings, job, run, progress).all(end)
    return Result(run.end(outputs=[job.to], counts=counts))


class _Rebuilding:
    """One run, step by step; what the run record has is not done again."""

    def __init__(
        self,
        spark: Any,
        settings: RebuildSettings,
        job: RebuildJob,
        run: Run,
        progress: Progress,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._job = job
        self._run = run
        self._progress = progress

    def all(self, end: int) -> dict[str, int]:
        """Do everything and return what was counted."""
        scanned = self._scan(end)
        store = store_settings(self._settings)
        queues = _queue_tasks(self._job, scanned)
        units = self._phase(
            "queues",
            partial(_write_queue, store),
            list(queues.items()),
            lambda task: f"{task[0][0]}-{task[0][1]}",
        )
        files = _index_tasks(self._job, scanned, self._settings.index_entries)
        begins = self._phase(
            "index files",
            partial(_write_index_file, store, str(self._job.work)),
            list(enumerate(files)),
            lambda task: str(task[0]),
        )
        _name_index_files(self._job, begins)
        shutil.rmtree(self._job.work, ignore_errors=True)
        return {
            "rows": sum(each.rows for each in scanned),
            "units": sum(units),
            "keys": sum(each.keys for each in scanned),
            "queues": len(queues),
            "index_files": len(files),
        }

    def _scan(self, end: int) -> list[Scanned]:
        place = self._job.place
        parts = plan(place, place.min_offset, end, self._settings.range_bytes)
        found = self._phase(
            "ranges",
            partial(scan_range, self._job),
            parts,
            lambda part: f"{part.start}-{part.end}",
        )
        return [
            Scanned(name, rows, tuple((t, q, at, count) for t, q, at, count in queues), keys)
            for name, rows, queues, keys in found
        ]

    def _phase(
        self,
        what: str,
        work: Callable[[Task], Any],
        tasks: Sequence[Task],
        name: Callable[[Task], str],
    ) -> list[Any]:
        """Do the tasks that are not done yet; return the answers of all, in order."""
        done = {
            key: step["answer"]
            for key, step in self._run.steps.items()
            if key.startswith(f"{what}:")
        }
        left = [task for task in tasks if f"{what}:{name(task)}" not in done]
        self._progress.start(len(tasks), what, "rebuild")
        self._progress.step(len(tasks) - len(left))
        names = iter([f"{what}:{name(task)}" for task in left])
        for wave in waves(self._spark, work, left):
            for answer, key in zip(wave, names, strict=False):
                self._run.step(key, answer=answer)
                done[key] = answer
            self._progress.step(len(wave))
        self._progress.end()
        return [done[f"{what}:{name(task)}"] for task in tasks]


def scan_range(job: RebuildJob, part: ByteRange) -> tuple[Any, ...]:
    """Keep what follows from a range; return its name, rows, queues and keys; on an executor."""
    found = dispatch(job.place, part, job.delay_levels, with_keys=job.index)
    name = f"{part.start:020d}-{part.end:020d}"
    job.work.mkdir(parents=True, exist_ok=True)
    queues, runs, at = [], [], 0
    for (topic, queue_id), run in sorted(found.units.items()):
        if not job.topics or topic in job.topics:
            queues.append((topic, queue_id, at, len(run)))
            runs.append(run)
            at += len(run)
    units = np.concatenate(runs) if runs else np.zeros(0, RUN)
    units.tofile(job.work / f"{name}.units")
    found.keys.tofile(job.work / f"{name}.keys")
    return name, found.rows, tuple(queues), len(found.keys)


def store_settings(settings: RebuildSettings) -> StoreSettings:
    """Return the settings of the store that the files are for."""
    return StoreSettings(
        root=Path(settings.to).absolute(),
        consume_queue_file_bytes=settings.consume_queue_file_bytes,
        consume_queue_ext_enabled=settings.consume_queue_ext_enabled,
        consume_queue_ext_file_bytes=settings.consume_queue_ext_file_bytes,
        index_slots=settings.index_slots,
        index_entries=settings.index_entries,
        delay_levels=settings.delay_levels,
    )


def _write_queue(store: StoreSettings, task: tuple[tuple[str, int], tuple[RunSlice, ...]]) -> int:
    (topic, queue_id), slices = task
    return write_queue(store, topic, queue_id, slices)


def _write_index_file(
    store: StoreSettings, work: str, task: tuple[int, tuple[KeySlice, ...]]
) -> int:
    number, slices = task
    return write_index_file(store, Path(work) / f"{number}.index", slices)


def _queue_tasks(
    job: RebuildJob, scanned: Iterable[Scanned]
) -> dict[tuple[str, int], tuple[RunSlice, ...]]:
    """Which parts of which files hold each queue's units, in the order of the log."""
    found: dict[tuple[str, int], tuple[RunSlice, ...]] = {}
    for each in scanned:
        path = str(job.work / f"{each.name}.units")
        for topic, queue_id, first, count in each.queues:
            key = (topic, queue_id)
            found[key] = (*found.get(key, ()), RunSlice(path, first, count))
    return found


def _index_tasks(
    job: RebuildJob, scanned: Iterable[Scanned], room: int
) -> list[tuple[KeySlice, ...]]:
    """Which parts of which files hold each index file's entries; entry 0 is never used.

    A file takes over where the one before ended, so its first slice also has that one's last entry.
    """
    files: list[list[KeySlice]] = []
    left = 0
    last: KeySlice | None = None
    for each in scanned:
        path = str(job.work / f"{each.name}.keys")
        first = 0
        while first < each.keys:
            if left == 0:
                files.append([] if last is None else [last._replace(before=True)])
                left = room - 1
            count = min(left, each.keys - first)
            files[-1].append(KeySlice(path, first, count))
            first, left = first + count, left - count
            last = KeySlice(path, first - 1, 1)
    return [tuple(slices) for slices in files]


def _name_index_files(job: RebuildJob, begins_ms: Sequence[int]) -> None:
    """Give each index file the name of its first entry's time; names rise."""
    folder = Path(job.to) / "index"
    newest = 0
    for number, begin_ms in enumerate(begins_ms):
        newest = max(newest + 1, int(index_name(begin_ms)))
        made = job.work / f"{number}.index"
        if made.exists():  # else a run that was killed here has named it
            folder.mkdir(parents=True, exist_ok=True)
            made.replace(folder / str(newest))


def _check_empty(to: Path) -> None:
    for name in ("consumequeue", "consumequeue_ext", "index"):
        if (to / name).exists():
            raise ConfigError(f"{to / name} exists already: rebuild into a new directory")


def _inputs(settings: RebuildSettings, end: int) -> dict[str, Any]:
    left_out = ("runs", "resume")
    known = {name: value for name, value in settings.__dict__.items() if name not in left_out}
    return {**known, "end": end}


def _foretold(place: LogPlace, end: int) -> Result:
    size = end - place.min_offset
    note = f"would rebuild queues and index from {size:,} bytes of log"
    return Result(
        RunRecord("", "rebuild", 0, status="dry run", counts={"log_bytes": size}), notes=(note,)
    )


PIPELINE = Pipeline(
    "rebuild",
    "Rebuild a store's consume queues and index from its log.",
    RebuildSettings,
    rebuild,
)

__all__ = ["PIPELINE", "RebuildSettings", "rebuild"]

if __name__ == "__main__":
    sys.exit(main("rebuild"))
