"""Archives the new messages of some topics as Parquet, read from brokers.

For whoever cannot reach the brokers' disks: slower than an archive of the log, and without the
addresses of senders. It is a stream that ends when it has all there is; a scheduler starts it again
and again. Where it stands is in the stream's checkpoint. Layout and promise are those of
`cometmq.spark.pipelines.archive.manifest`, with a micro-batch in the place of a range.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from cometmq.model.errors import ConfigError
from cometmq.spark.brokers import connect
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.pipelines.archive.manifest import Entry, Manifest, encoded
from cometmq.spark.pipelines.archive.reading import COLUMNS
from cometmq.spark.pipelines.archive.topic_identity import check_cluster, check_queues
from cometmq.spark.pipelines.running.command import main
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.pipelines.running.progress import Progress, silent
from cometmq.spark.pipelines.running.registry import Pipeline, PipelineSettings, Result
from cometmq.spark.pipelines.running.runs import RunRecord, Runs, recorded
from cometmq.spark.sources.ranges import Connect
from cometmq.system.settings import setting

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class ArchiveTopicsSettings(PipelineSettings):
    """What is archived, where to and how."""

    name_servers: str = setting("")
    """Name servers of the source: ``host:port;host:port``."""
    topics: tuple[str, ...] = setting(())
    """Topics to archive."""
    to: str = setting("")
    """Folder of the archive: a directory that all executors see."""
    name: str = setting("topics")
    """Name of this stream in the manifest; use another name for other topics in the same folder."""
    batch_rows: int = setting(1_000_000, unit="rows", low=1, high=1 << 40)
    """Maximum messages of a micro-batch."""
    codec: str = setting("zstd", choices=("zstd", "snappy", "none"))
    """Compression of the files."""
    fail_on_data_loss: bool = setting(True)
    """Whether to fail if messages were deleted before they were archived."""
    options: tuple[str, ...] = setting(())
    """Options of the format ``rocketmq``, each ``name=value``, for example of an account."""


def archive_topics(
    spark: Any,
    settings: ArchiveTopicsSettings,
    *,
    progress: Progress = silent,
    dry_run: bool = False,
    connect: Connect = connect,
) -> Result:
    """Archive what topics have beyond the archive.

    Args:
        spark: the session.
        settings: what, where to and how.
        progress: is told of archived rows.
        dry_run: only count what topics hold, archived or not.
        connect: gives the session with the brokers that the archive is compared with.

    Returns:
        The run's record; ``counts`` has rows, files and their bytes.

    Raises:
        ConfigError: a setting is missing, the folder is an archive of another kind or cluster,
            the stream archived other topics, or its checkpoint is lost.
        UnreachableError: servers did not answer.
        RunError: another run begins the archive at the same time, or was killed while it did.
        pyspark.errors.StreamingQueryException: brokers or disk failed; the next run goes on.
    """
    if not (settings.name_servers and settings.topics and settings.to):
        raise ConfigError("archive-topics: expected name_servers, topics and to")
    if dry_run:
        return _foretold(spark, settings)
    folder = open_folder(settings.to)
    manifest = Manifest(folder)
    manifest.settle({"columns": [column.name for column in COLUMNS], "table": "topics"})
    manifest.settle_stream(settings.name, {"topics": sorted(set(settings.topics))})
    _check_checkpoint(manifest, settings.name)
    options = parse_options(TopicReadOptions, _options(settings))
    check_cluster(manifest, options, settings.topics, connect)
    check_queues(manifest, settings.name, options, connect)
    runs = Runs(settings.runs or folder.path("_runs"))
    run = runs.begin_or_resume("archive-topics", _inputs(settings), settings.resume)
    known = {entry.start for entry in manifest.entries(settings.name)}
    with recorded(run):
        progress.start(0, "rows", "archive topics")
        _stream(spark, settings, folder.path(_checkpoint(settings.name)), progress)
        progress.end()
    new = [entry for entry in manifest.entries(settings.name) if entry.start not in known]
    return Result(run.end(outputs=[folder.place], counts=_counts(new)))


def _checkpoint(name: str) -> str:
    return f"_checkpoint/{encoded(name)}"


def _check_checkpoint(manifest: Manifest, name: str) -> None:
    """Make sure that the checkpoint is the one of the batches that are archived.

    Raises:
        ConfigError: it is not, so that batches would be counted and archived from the begin again.
    """
    folder, metadata = manifest.folder, f"{_checkpoint(name)}/metadata"
    met = folder.read(metadata)
    query = None if met is None else str(json.loads(met)["id"])
    queries = {entry.query for entry in manifest.entries(name)}
    others = sorted(queries - {query, ""})  # entries of older versions name no query
    if others or (queries and query is None):
        by = f"query {others[0]}" if others else "a query"
        found = "there is none" if query is None else f"it is of query {query}"
        raise ConfigError(
            f"archive-topics: the manifest in {folder.place} has batches of stream {name} by {by},"
            f" expected its checkpoint at {folder.path(metadata)}: {found}; a new one"
            " would archive the same messages again: restore it, or use another name, with"
            " startingOffsets among the options"
        )


def _stream(
    spark: Any, settings: ArchiveTopicsSettings, checkpoint: str, progress: Progress
) -> None:
    """Run the stream until it has all there is."""
    from cometmq.spark.pipelines.archive.sink import FORMAT, ArchiveSink

    spark.dataSource.register(ArchiveSink)
    source = spark.readStream.format("rocketmq").options(**_options(settings))
    query = (
        source.load()
        .writeStream.format(FORMAT)
        .options(to=settings.to, name=settings.name, codec=settings.codec)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    seen = -1
    try:
        while not query.awaitTermination(_POLL_SECONDS):
            for told in query.recentProgress:
                if told["batchId"] > seen:
                    seen = told["batchId"]
                    progress.step(told["numInputRows"])
    finally:
        query.stop()


def _options(settings: ArchiveTopicsSettings) -> dict[str, str]:
    given = dict(pair.partition("=")[::2] for pair in settings.options)
    return {
        "startingOffsets": "earliest",
        **given,
        "rocketmq.namesrv.addr": settings.name_servers,
        "subscribe": ",".join(settings.topics),
        "includeProperties": "true",
        "maxOffsetsPerTrigger": str(settings.batch_rows),
        "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
    }


def _inputs(settings: ArchiveTopicsSettings) -> dict[str, Any]:
    names = ("name_servers", "topics", "to", "name")
    return {name: getattr(settings, name) for name in names}


def _counts(entries: list[Entry]) -> dict[str, int]:
    files = [file for entry in entries for file in entry.files]
    return {
        "batches": len(entries),
        "rows": sum(entry.rows for entry in entries),
        "files": len(files),
        "file_bytes": sum(file.bytes for file in files),
    }


def _foretold(spark: Any, settings: ArchiveTopicsSettings) -> Result:
    options = _options(settings)
    del options["maxOffsetsPerTrigger"]
    source = spark.read.format("rocketmq").options(**options).schema("queue_offset BIGINT")
    rows = source.load().count()
    note = f"{', '.join(settings.topics)} hold {rows:,} messages, archived ones included"
    record = RunRecord("", "archive-topics", 0, status="dry run", counts={"rows": rows})
    return Result(record, notes=(note,))


PIPELINE = Pipeline(
    "archive-topics",
    "Archive the new messages of topics as Parquet, through the brokers.",
    ArchiveTopicsSettings,
    archive_topics,
)

if __name__ == "__main__":
    sys.exit(main("archive-topics"))
