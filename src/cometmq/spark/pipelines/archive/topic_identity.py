"""Checks that topics are the ones that an archive's manifest is about.

A checkpoint names a queue by topic, broker and number, and another cluster may have a queue of that
name: the stream would skip what that cluster holds below the archived offsets, and archive the
rest. So the manifest records the cluster of each broker, and every micro-batch records its newest
message of each queue. A run is refused if

- a broker of its topics belongs to another cluster than before, or to one that was not recorded;
- none of the recorded brokers is registered;
- none of the archived queues exists;
- a queue ends before the newest archived message, or holds another message at its offset. This
  recognizes another cluster of the same name, and a topic that was created again.

A broker may be added to a recorded cluster, and may leave it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

import pyarrow as pa

from cometmq.model.errors import ConfigError
from cometmq.spark.errors import DataLossError
from cometmq.spark.offsets import QueueKey, QueueRange
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.pipelines.archive.manifest import CLUSTERS, LastRecord, Manifest
from cometmq.spark.pipelines.archive.parquet import IDENTITY, last_records
from cometmq.spark.schema import CORE, arrow_schema, chosen
from cometmq.spark.sources.ranges import Connect, RangeReader

log = logging.getLogger(__name__)

_COLUMNS = chosen(CORE, IDENTITY)


def check_cluster(
    manifest: Manifest, options: TopicReadOptions, topics: Collection[str], connect: Connect
) -> None:
    """Refuse another cluster than the recorded one; record the cluster if none is.

    Args:
        manifest: of the archive.
        options: of the query that reads the topics.
        topics: the topics.
        connect: gives the session with the brokers.

    Raises:
        ConfigError: it is another one; says what is recorded and what was met.
        RunError: another run records it at the same time, or was killed while it did.
        UnreachableError: no name server answered.
    """
    session = connect(options)
    registered = session.brokers()
    queues = session.queues(topics, gone=set())
    served = {key.broker for key in queues}
    met = {name: cluster for name, cluster in registered.items() if name in served}
    if queues and not met:  # queues of static topics name no broker
        met = registered
    known = manifest.clusters()
    if not known:
        if not met:
            return
        known = manifest.record_clusters(met)
    other = {
        name: cluster
        for name, cluster in met.items()
        if cluster != known.get(name, cluster) or cluster not in known.values()
    }
    if other:
        raise _another_cluster(manifest, options, known, other)
    if registered and not known.keys() & registered.keys():
        raise _another_cluster(manifest, options, known, registered)
    if met.keys() - known.keys():
        manifest.replace_clusters({**known, **met})


def check_queues(
    manifest: Manifest, name: str, options: TopicReadOptions, connect: Connect
) -> None:
    """Refuse queues that do not hold the newest messages that a stream has archived.

    Queues whose newest archived message has expired are not compared, nor are removed queues while
    others exist. If none exists, the stream would forget them, also with ``failOnDataLoss=false``,
    and a later run would archive the right cluster's messages a second time.

    Args:
        manifest: of the archive.
        name: of the stream.
        options: of the query that reads the topics.
        connect: gives the session with the brokers.

    Raises:
        ConfigError: none of the queues exists, or one ends before the message or holds another one
            at its offset.
        UnreachableError: servers did not answer.
    """
    newest = {
        QueueKey(each.topic, each.broker, each.queue_id): each
        for entry in manifest.entries(name)
        for each in entry.last_records
    }
    if not newest:
        return
    bounds = connect(options).bounds(newest, gone=set())
    if not bounds:
        raise _no_queue(manifest, name, options, newest)
    compared = 0
    for key, limits in sorted(bounds.items()):
        wanted = newest[key]
        if wanted.offset >= limits.max and limits.master:
            raise _another_queue(
                manifest, name, key, wanted, f"the queue holds offsets {limits.min} to {limits.max}"
            )
        if not limits.min <= wanted.offset < limits.max:
            continue
        met = _record_at(QueueRange(key, wanted.offset, wanted.offset + 1), options, connect)
        if met is None:
            continue
        if met != wanted:
            raise _another_queue(manifest, name, key, wanted, f"the queue holds {_shown(met)}")
        compared += 1
    if not compared:
        log.warning(
            "the topics cannot be compared with the archive stream=%s: no queue holds the newest"
            " archived message any more",
            name,
        )


def _record_at(each: QueueRange, options: TopicReadOptions, connect: Connect) -> LastRecord | None:
    """Return what identifies the message at an offset, None if there is none any more."""
    unfiltered = replace(
        options, filter_tags=None, filter_sql=None, filter_keys=None, fail_on_data_loss=True
    )
    reader = RangeReader(unfiltered, _COLUMNS, connect)
    try:
        table = pa.Table.from_batches(reader.read(each), arrow_schema(_COLUMNS))
    except DataLossError:
        return None
    return next(iter(last_records(table)), None)


def _another_cluster(
    manifest: Manifest,
    options: TopicReadOptions,
    known: Mapping[str, str],
    met: Mapping[str, str],
) -> ConfigError:
    return ConfigError(
        f"{manifest.folder.place} is an archive of {_listed(known)}; met {_listed(met)} at name"
        f" servers {options.name_servers}: use the name servers of the archived cluster, or archive"
        " this cluster into another folder; if it is the archived cluster, renamed or with other"
        f" brokers, remove {manifest.folder.path(CLUSTERS)}"
    )


def _no_queue(
    manifest: Manifest, name: str, options: TopicReadOptions, newest: Mapping[QueueKey, LastRecord]
) -> ConfigError:
    key = min(newest)
    topics = ", ".join(sorted({each.topic for each in newest}))
    return ConfigError(
        f"{key}: stream {name} in {manifest.folder.place} has archived it up to offset"
        f" {newest[key].offset}; it does not exist at name servers {options.name_servers}, nor does"
        f" any other archived queue of {topics}: this is another cluster, or the topics were"
        " deleted; use the name servers of the archived cluster, or archive this cluster into"
        " another folder"
    )


def _another_queue(
    manifest: Manifest, name: str, key: QueueKey, wanted: LastRecord, met: str
) -> ConfigError:
    return ConfigError(
        f"{key}: the newest message that stream {name} in {manifest.folder.place} has archived is"
        f" {_shown(wanted)}; {met}: these are the topics of another cluster, or the topic was"
        " created again, or the broker lost the end of its log; use the name servers of the"
        " archived cluster, archive another cluster into another folder, or archive the new"
        " messages under another name, with startingOffsets among the options"
    )


def _listed(brokers: Mapping[str, str]) -> str:
    return ", ".join(f"{name} of cluster {brokers[name]}" for name in sorted(brokers))


def _shown(record: LastRecord) -> str:
    return (
        f"offset {record.offset}, stored at {record.store_ms} ms, sent at {record.born_ms} ms, with"
        f" CRC-32 {(record.body_crc or 0) & 0xFFFFFFFF:08x} of the body"
    )
