"""The replay: sends archived messages again, to the same topics or to others.

What came from one queue goes to one queue, in its order. A message has a unique id made of the job
and its origin, so that a replay that was killed and gone on with, or done twice under one job, is
recognizable and removable; its old id is in the property ORIGIN_MSG_ID. Executors read the files
and send; the driver records the begin and the end of each portion. So a run that goes on knows
which portion was interrupted: up to all of its messages are in the topic twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cometmq.model.errors import ConfigError
from cometmq.model.topic import is_system_topic
from cometmq.spark.brokers import connect
from cometmq.spark.options.connection import check_references
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.writing import TopicWriteOptions
from cometmq.spark.pipelines.archive.manifest import Entry, Manifest
from cometmq.spark.pipelines.replay.pace import Pace
from cometmq.spark.pipelines.replay.rows import NEEDED, Choice, Rewriting
from cometmq.spark.pipelines.running.folders import Folder, open_folder
from cometmq.spark.pipelines.running.instants import instant_ms
from cometmq.spark.pipelines.running.progress import Progress, silent
from cometmq.spark.pipelines.running.registry import Pipeline, PipelineSettings, Result
from cometmq.spark.pipelines.running.runs import Run, RunRecord, Runs, recorded
from cometmq.spark.pipelines.running.work import cores_of, run
from cometmq.spark.writing import Origin, TopicWriter
from cometmq.system.settings import setting

log = logging.getLogger(__name__)

_BATCH_BYTES_MIN = 1024
_BATCH_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class ReplaySettings(PipelineSettings):
    """What is replayed, where to, and how fast."""

    archive: str = setting("")
    """Folder of the archive."""
    name_servers: str = setting("")
    """Name servers of the target: ``host:port;host:port``."""
    topics: tuple[str, ...] = setting(())
    """Archived topics to replay. Default: all except system topics."""
    topic_map: tuple[str, ...] = setting(())
    """Other target topics: ``old=new``, and ``*=new`` for all others."""
    tags: tuple[str, ...] = setting(())
    """Only messages with one of these tags."""
    keys: tuple[str, ...] = setting(())
    """Only messages with one of these keys."""
    since: str = setting("")
    """Only messages stored at or after this time: ``2026-11-21T18:00``, local without a zone."""
    until: str = setting("")
    """Only messages stored before this time."""
    queues: str = setting("ordered", choices=("ordered", "same"))
    """Target queues: ``ordered`` sends each source queue to one target queue; ``same`` sends to the
    queue with the same number, which must exist.
    """
    rate: float = setting(0.0, unit="messages per second", low=0)
    """Maximum rate of all tasks together; 0 for no limit."""
    job: str = setting("")
    """Job name in the unique ids. Default: the run's id. A second replay with the same job has
    equal keys.
    """
    portion_rows: int = setting(500_000, unit="rows", low=1, high=1 << 40)
    """Minimum archived rows of a portion. Progress is recorded after each portion. It consists of
    whole ranges (``--range-bytes`` of the log) or micro-batches (``--batch-rows``) of the archive.
    """
    options: tuple[str, ...] = setting(())
    """Options of the format ``rocketmq``, each ``name=value``, for example of an account."""


@dataclass(frozen=True)
class ReplayJob:
    """What every task needs."""

    archive: str
    options: TopicWriteOptions
    choice: Choice
    rewriting: Rewriting
    dry_run: bool


class Share(NamedTuple):
    """What one task sends: some queues of a topic, in one portion."""

    number: int
    broker: str
    topic: str
    queues: frozenset[int]
    files: tuple[str, ...]
    """In the order of the log."""
    rate: float


class Sending(NamedTuple):
    """What one task sent, or would send."""

    archived: int
    rows: int
    retries: int
    """Requests that the writer sent again, because brokers did not acknowledge them."""
    by_topic: tuple[str, int]
    resent: int = 0
    """Rows that an interrupted attempt may have sent before."""


def replay(
    spark: Any,
    settings: ReplaySettings,
    *,
    progress: Progress = silent,
    dry_run: bool = False,
) -> Result:
    """Send archived messages again.

    Args:
        spark: the session; its executors must see the archive and the brokers.
        settings: what, where to and how fast.
        progress: is told of archived rows that are done.
        dry_run: only count what would be sent.

    Returns:
        The run's record, with ``sent`` among the counts; and a table ``topics`` of what went
        where.

    Raises:
        ConfigError: a setting is missing or no such topic is archived.
        PlaceError: there is no archive.
        SourceError: brokers do not take a message; what was sent stays sent, and is sent again,
            with equal keys, by a run that goes on with this one.
    """
    _check(settings)
    entries = _entries(settings)
    if dry_run:
        run_record = RunRecord("", "replay", 0, status="dry run")
        sendings = list(_send_all(spark, settings, "dry-run", entries, None, progress))
        return _result(replace(run_record, counts=_counts(sendings)), sendings, "would send")
    runs = Runs(settings.runs or open_folder(settings.archive).path("_runs"))
    begun = runs.begin_or_resume("replay", _inputs(settings), settings.resume)
    with recorded(begun):
        entries = _planned(begun, entries)
        job = settings.job or begun.record.id
        sendings = list(_send_all(spark, settings, job, entries, begun, progress))
    targets = sorted({sending.by_topic[0] for sending in sendings if sending.rows})
    return _result(begun.end(outputs=targets, counts=_counts(sendings)), sendings, "sent")


def _send_all(
    spark: Any,
    settings: ReplaySettings,
    name: str,
    entries: Sequence[Entry],
    begun: Run | None,
    progress: Progress,
) -> Iterator[Sending]:
    """Send portion by portion; a portion begins when the one before is acknowledged."""
    job = _job(settings, name, dry_run=begun is None)
    progress.start(sum(entry.rows for entry in entries), "rows", "replay")
    for number, portion in enumerate(portions(entries, settings.portion_rows)):
        key = f"portion:{number}"
        if begun is not None and key in begun.steps:
            done = [
                Sending(archived, rows, retries, (topic, sent), *resent)
                for archived, rows, retries, (topic, sent), *resent in begun.steps[key]["sendings"]
            ]
        else:
            interrupted = begun is not None and _begin(begun, number, portion)
            divided = list(shares(settings, number, portion, cores_of(spark)))
            done = run(spark, partial(send_share, job), divided)
            if interrupted:
                done = [sending._replace(resent=sending.rows) for sending in done]
            if begun is not None:
                begun.step(key, sendings=done)
        progress.step(sum(entry.rows for entry in portion))
        yield from done
    progress.end()


def _begin(begun: Run, number: int, portion: Sequence[Entry]) -> bool:
    """Record that a portion begins; return whether an interrupted attempt has begun it before."""
    key, rows = f"begun:{number}", sum(entry.rows for entry in portion)
    interrupted = key in begun.steps
    if interrupted:
        log.warning(
            "replay sends an interrupted portion again: messages may be in the topic twice"
            " run=%s portion=%d rows=%d",
            begun.record.id,
            number,
            rows,
        )
    begun.step(key, rows=rows)
    return interrupted


def send_share(job: ReplayJob, share: Share) -> Sending:
    """Send what a share names and return when all of it is acknowledged; on an executor."""
    folder = open_folder(job.archive)
    met = [0, 0]
    batches = _batches(job, share, folder, met)
    target = job.rewriting.target(share.topic)
    if job.dry_run:
        met[1] = sum(batch.num_rows for batch in batches)
        return Sending(met[0], met[1], 0, (target, met[1]))
    pace = Pace(share.rate)
    options = replace(job.options, batch_bytes=_batch_bytes(job.options, pace))
    origin = Origin(job.rewriting.job, share.number, min(share.queues))
    sent = TopicWriter(connect(options.connection()), options, origin).write(pace.paced(batches))
    return Sending(met[0], sent.rows, sent.repeated, (target, sent.rows))


def _batches(
    job: ReplayJob, share: Share, folder: Folder, met: list[int]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows to write; counts those that are archived."""
    queues = pa.array(sorted(share.queues), pa.int32())
    for name in share.files:
        with folder.reading(name) as source:
            rows = pq.ParquetFile(source).read(columns=list(NEEDED))
        rows = rows.filter(pc.is_in(rows["queue_id"], queues))
        met[0] += rows.num_rows
        chosen = job.choice.of(rows)
        if chosen.num_rows:
            yield from job.rewriting.rows(share.broker, share.topic, chosen).to_batches()


def _batch_bytes(options: TopicWriteOptions, pace: Pace) -> int:
    """Small requests at a small rate, lest messages wait for others to travel with."""
    if not pace.slice_rows:
        return options.batch_bytes
    return min(options.batch_bytes, max(_BATCH_BYTES_MIN, pace.slice_rows * 256))


def portions(entries: Sequence[Entry], rows_max: int) -> Iterator[list[Entry]]:
    """Divide entries, in their order, into portions of at least so many rows, except the last."""
    portion: list[Entry] = []
    for entry in entries:
        portion.append(entry)
        if sum(each.rows for each in portion) >= rows_max:
            yield portion
            portion = []
    if portion:
        yield portion


def shares(
    settings: ReplaySettings, number: int, portion: Sequence[Entry], cores: int
) -> Iterator[Share]:
    """Divide a portion by topic and queue, so that each queue is in one share alone."""
    found = [*_grouped(settings, portion)]
    groups = [
        (broker, topic, queues[at::cores], files)
        for broker, topic, queues, files in found
        for at in range(min(cores, len(queues)))
    ]
    together = max(1, min(cores, len(groups)))
    for broker, topic, queues, files in groups:
        yield Share(number, broker, topic, frozenset(queues), files, settings.rate / together)


def _grouped(
    settings: ReplaySettings, portion: Sequence[Entry]
) -> Iterator[tuple[str, str, list[int], tuple[str, ...]]]:
    for broker in sorted({entry.broker for entry in portion}):
        mine = [entry for entry in portion if entry.broker == broker]
        topics = sorted({file.topic for entry in mine for file in entry.files})
        for topic in topics:
            if _wanted(settings, topic):
                numbers = {q.queue_id for entry in mine for q in entry.queues if q.topic == topic}
                files = [f for entry in mine for f in entry.files if f.topic == topic]
                yield broker, topic, sorted(numbers), tuple(file.name for file in files)


def _wanted(settings: ReplaySettings, topic: str) -> bool:
    if settings.topics:
        return topic in settings.topics
    return not is_system_topic(topic)


def _check(settings: ReplaySettings) -> None:
    if not settings.archive or not settings.name_servers:
        raise ConfigError("replay: expected archive and name_servers, from where and to where")
    for pair in settings.topic_map:
        if not all(pair.partition("=")[::2]):
            raise ConfigError(f"topic_map={pair}: expected old=new")
    for pair in settings.options:
        if not pair.partition("=")[1]:
            raise ConfigError(f"options={pair}: expected name=value")


def _entries(settings: ReplaySettings) -> list[Entry]:
    manifest = Manifest(open_folder(settings.archive))
    manifest.kind()
    entries = manifest.entries()
    there = {file.topic for entry in entries for file in entry.files}
    missing = [topic for topic in settings.topics if topic not in there]
    if missing:
        raise ConfigError(f"{settings.archive} has no topic {', '.join(missing)}")
    return entries


def _planned(begun: Run, entries: Sequence[Entry]) -> list[Entry]:
    """Return what the run set out to replay, although the archive may have grown since."""
    names = [[entry.broker, entry.start, entry.end] for entry in entries]
    if "plan" not in begun.steps:
        begun.step("plan", entries=names)
    planned = {tuple(name) for name in begun.steps["plan"]["entries"]}
    return [e for e in entries if (e.broker, e.start, e.end) in planned]


def _job(settings: ReplaySettings, name: str, *, dry_run: bool) -> ReplayJob:
    given = dict(pair.partition("=")[::2] for pair in settings.options)
    given |= {"rocketmq.namesrv.addr": settings.name_servers, "reservedProperties": "drop"}
    options = parse_options(TopicWriteOptions, given)
    check_references(options)
    since, until = (instant_ms(each, getattr(settings, each)) for each in ("since", "until"))
    choice = Choice(frozenset(settings.tags), frozenset(settings.keys), since, until)
    topics = dict(pair.partition("=")[::2] for pair in settings.topic_map)
    rewriting = Rewriting(name, topics, same_queue=settings.queues == "same")
    return ReplayJob(settings.archive, options, choice, rewriting, dry_run)


def _inputs(settings: ReplaySettings) -> dict[str, Any]:
    left_out = ("runs", "resume", "rate", "options")
    return {name: value for name, value in settings.__dict__.items() if name not in left_out}


def _counts(sendings: Iterable[Sending]) -> dict[str, int]:
    found = list(sendings)
    return {
        "archived": sum(sending.archived for sending in found),
        "sent": sum(sending.rows for sending in found),
        "resent": sum(sending.resent for sending in found),
        "retries": sum(sending.retries for sending in found),
    }


def _result(record: RunRecord, sendings: Sequence[Sending], verb: str) -> Result:
    by_topic: dict[str, int] = {}
    for topic, rows in (sending.by_topic for sending in sendings):
        by_topic[topic] = by_topic.get(topic, 0) + rows
    names = sorted(by_topic)
    table = pa.table(
        {
            "topic": pa.array(names, pa.string()),
            "messages": pa.array([by_topic[name] for name in names], pa.int64()),
        }
    )
    counts = record.counts
    notes = [f"{verb} {counts['sent']:,} of {counts['archived']:,} archived messages"]
    if counts["resent"]:
        notes.append(
            f"up to {counts['resent']:,} of them are there twice: they are of portions that were"
            " interrupted and sent again; equal messages have equal unique ids"
        )
    return Result(record, {"topics": table}, tuple(notes))


PIPELINE = Pipeline(
    "replay",
    "Send archived messages again, in order, at a rate, to the same topics or others.",
    ReplaySettings,
    replay,
)
