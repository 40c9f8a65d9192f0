"""A query continues only with the topics, the table and the checkpoint that it began with."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cometmq.model.errors import ConfigError
from cometmq.spark.archive import ArchiveTopicsSettings, archive_topics, topics
from cometmq.spark.archive.log import application_of
from cometmq.spark.archive.tables import ArchiveTable, open_table
from cometmq.spark.errors import ConflictError, PlaceError
from cometmq.spark.offsets import Bounds, Positions, QueueKey, QueueRange, to_json
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.schema import CORE
from cometmq.spark.sources.ranges import RangeReader
from support.spark.archives import bodies_of, maintain, rows_of
from support.spark.memory_brokers import MemoryBrokers

OPTIONS = TopicReadOptions(name_servers="n:1", subscribe="orders")
ARCHIVED = 50
KEY = QueueKey("orders", "broker-a", 0)


@pytest.fixture(params=["delta", "iceberg"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveTopicsSettings:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[request.param])
    return ArchiveTopicsSettings(
        name_servers="n:1", topics=("orders",), to=str(tmp_path / "archive"), table=request.param
    )


def table_of(settings: ArchiveTopicsSettings) -> ArchiveTable:
    return open_table(settings, create=True)


def filled(*counts: int, time_ms: int = 1_000, tags: str = "") -> MemoryBrokers:
    """A cluster with the topic ``orders`` and that many messages in each of its queues."""
    brokers = MemoryBrokers()
    for key, count in zip(brokers.create("orders", len(counts)), counts, strict=True):
        brokers.send(key, count, time_ms=time_ms, tags=tags)
    return brokers


class MicroBatch:
    """The rows of queues from some offsets to their ends, as the workers of Spark write them."""

    def __init__(self, brokers: MemoryBrokers, starts: Positions) -> None:
        reader = RangeReader(OPTIONS, CORE, brokers.connect)
        self.read = 0
        self.batches = [
            part
            for key, limits in brokers.bounds(brokers.held).items()
            for part in reader.read(QueueRange(key, starts.get(key, 0), limits.max))
        ]
        self.ends = {key: limits.max for key, limits in brokers.bounds(brokers.held).items()}

    def mapInArrow(self, write: Any, schema: str) -> MicroBatch:
        self.read += 1
        self._written = [row for each in write(iter(self.batches)) for row in each.to_pylist()]
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self._written


def checkpoint_of(settings: ArchiveTopicsSettings) -> Path:
    return Path(settings.to, "_checkpoint", settings.name)


def note(
    settings: ArchiveTopicsSettings, batch: int, ends: Positions, *, done: bool = True
) -> None:
    """Write what Spark writes to a checkpoint before and after a batch."""
    folder = checkpoint_of(settings)
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": "q"}))
    lines = ("v1", "{}", json.dumps(to_json(ends)))
    (folder / "offsets" / str(batch)).write_text("\n".join(lines))
    if done:
        (folder / "commits" / str(batch)).write_text("v1\n{}")


def archive(
    settings: ArchiveTopicsSettings,
    brokers: MemoryBrokers,
    batch: int = 0,
    starts: Positions | None = None,
    *,
    done: bool = True,
) -> MicroBatch:
    """Archive a micro-batch of all queues."""
    rows = MicroBatch(brokers, starts or {})
    note(settings, batch, rows.ends, done=False)
    topics.archive_batch(settings, "q", rows, batch)
    if done:
        note(settings, batch, rows.ends)
    return rows


def check(settings: ArchiveTopicsSettings, brokers: MemoryBrokers) -> tuple[QueueRange, ...]:
    table = table_of(settings)
    positions = topics.Checkpoint(str(checkpoint_of(settings))).positions(table, settings)
    return topics.check_queues(table, settings, positions, brokers.connect)


def test_a_batch_is_archived_with_all_columns(settings: ArchiveTopicsSettings) -> None:
    brokers = filled(3, 2)
    archive(settings, brokers)
    rows = rows_of(settings)
    places = sorted((row["queue_id"], row["queue_offset"]) for row in rows)
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert {row["broker_name"] for row in rows} == {"broker-a"}
    assert {row["store_host"] for row in rows} == {None}


def test_a_repeated_batch_is_not_read_and_its_rows_stay(settings: ArchiveTopicsSettings) -> None:
    """After a kill between the table's commit and Spark's: its messages have expired since."""
    brokers = filled(ARCHIVED)
    archive(settings, brokers, done=False)
    kept = bodies_of(settings)
    brokers.send(KEY, 1)
    brokers.expire(KEY, ARCHIVED)
    rows = MicroBatch(brokers, {KEY: ARCHIVED})
    assert topics.archive_batch(settings, "q", rows, 0) == []
    assert rows.read == 0
    assert bodies_of(settings) == kept


def test_a_killed_batch_is_written_again_under_other_names(
    settings: ArchiveTopicsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill between files and commit."""
    brokers = filled(ARCHIVED)
    table = type(table_of(settings))
    with monkeypatch.context() as patched:
        patched.setattr(table, "commit", _die)
        with pytest.raises(OSError, match="killed"):
            archive(settings, brokers)
    assert rows_of(settings) == []
    archive(settings, brokers)
    maintain(settings)
    assert len(rows_of(settings)) == ARCHIVED


def _die(*_: object) -> None:
    raise OSError("killed")


def test_two_drivers_of_one_query_archive_a_batch_once(settings: ArchiveTopicsSettings) -> None:
    """As after a network partition: the first driver still runs when Spark starts another."""
    brokers = filled(ARCHIVED)
    rows = MicroBatch(brokers, {})

    class Overtaken(MicroBatch):
        def collect(self) -> list[dict[str, Any]]:
            topics.archive_batch(settings, "q", rows, 0)
            return super().collect()

    with pytest.raises(ConflictError, match="another run has committed"):
        topics.archive_batch(settings, "q", Overtaken(brokers, {}), 0)
    assert len(rows_of(settings)) == ARCHIVED


def test_a_query_continues_with_what_its_queues_have_gained(
    settings: ArchiveTopicsSettings,
) -> None:
    brokers = filled(ARCHIVED, 7, 0)
    ends = archive(settings, brokers).ends
    for batch in (1, 2):
        for key in brokers.held:
            brokers.send(key, 3, time_ms=2_000 + batch)
        maintain(settings)
        assert check(settings, brokers) == ()
        ends = archive(settings, brokers, batch, ends).ends
    assert len(rows_of(settings)) == ARCHIVED + 7 + 3 * 3 * 2


def test_what_expired_before_it_was_archived_is_in_the_result(
    settings: ArchiveTopicsSettings,
) -> None:
    brokers = filled(ARCHIVED, 7)
    archive(settings, brokers)
    brokers.send(KEY, 20)
    brokers.expire(KEY, ARCHIVED + 5)
    assert check(settings, brokers) == (QueueRange(KEY, ARCHIVED, ARCHIVED + 5),)
    note(settings, 1, {KEY: ARCHIVED + 20}, done=False)  # planned, and not archived yet
    assert check(settings, brokers) == (QueueRange(KEY, ARCHIVED, ARCHIVED + 5),)


@pytest.mark.parametrize("held", [ARCHIVED, ARCHIVED + 30])
def test_a_cluster_of_equal_names_with_other_messages_is_refused(
    settings: ArchiveTopicsSettings, held: int
) -> None:
    """The queue reaches as far as the archive, or farther."""
    archive(settings, filled(ARCHIVED))
    met = (
        r"topic orders, queue 0 of broker-a: .* has offset 49, stored at 1970-01-01 00:00:01\+.*"
        r"; at name servers n:1 the queue holds offset 49, stored at 1970-01-01 00:00:09\+.*"
        r" another cluster.* another table"
    )
    maintain(settings)
    with pytest.raises(ConfigError, match=met):
        check(settings, filled(held, time_ms=9_000))


def test_a_queue_that_ends_before_the_archive_is_refused(settings: ArchiveTopicsSettings) -> None:
    archive(settings, filled(ARCHIVED))
    with pytest.raises(ConfigError, match=r"offset 49.*the queue holds offsets 0 to 49: these"):
        check(settings, filled(ARCHIVED - 1))


def test_a_topic_that_was_created_again_is_refused(settings: ArchiveTopicsSettings) -> None:
    brokers = filled(ARCHIVED)
    archive(settings, brokers)
    brokers.make_anew(KEY)
    brokers.send(KEY, 2 * ARCHIVED, time_ms=5_000)
    with pytest.raises(ConfigError, match="the topic was created again"):
        check(replace(settings, fail_on_data_loss=False), brokers)


def test_one_queue_of_many_is_enough(settings: ArchiveTopicsSettings) -> None:
    archive(settings, filled(3, 3, 3))
    brokers = filled(3, 3, 3)
    brokers.make_anew(QueueKey("orders", "broker-a", 2))
    brokers.send(QueueKey("orders", "broker-a", 2), 5, body=b"other")
    with pytest.raises(ConfigError, match="queue 2 of broker-a"):
        check(settings, brokers)


def test_a_filter_hides_no_other_message(settings: ArchiveTopicsSettings) -> None:
    archive(settings, filled(ARCHIVED, tags="paid"))
    filtered = replace(settings, options=("filter.tags=paid",))
    with pytest.raises(ConfigError, match="stored at 1970-01-01 00:00:09"):
        check(filtered, filled(ARCHIVED, tags="sent", time_ms=9_000))


def test_a_replica_that_is_behind_its_master_is_no_other_cluster(
    settings: ArchiveTopicsSettings,
) -> None:
    brokers = filled(ARCHIVED)
    archive(settings, brokers)
    brokers.replicas[KEY] = Bounds(0, ARCHIVED - 1, master=False)
    assert check(settings, brokers) == ()


def test_what_has_expired_is_not_compared(
    settings: ArchiveTopicsSettings, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = filled(ARCHIVED)
    archive(settings, brokers)
    brokers.send(KEY, 5)
    brokers.expire(KEY, ARCHIVED)
    with caplog.at_level(logging.WARNING):
        check(settings, brokers)
    assert "the topics cannot be compared with the archive" in caplog.text


def test_a_queue_that_is_gone_is_not_compared(settings: ArchiveTopicsSettings) -> None:
    brokers = filled(ARCHIVED, 3)
    archive(settings, brokers)
    del brokers.held[QueueKey("orders", "broker-a", 1)]
    assert check(settings, brokers) == ()


def test_a_cluster_without_any_archived_queue_is_refused(settings: ArchiveTopicsSettings) -> None:
    archive(settings, filled(ARCHIVED, 3))
    other = MemoryBrokers()
    other.create("bills")
    met = r"^topic orders, queue 0 of broker-a: .* has offset 49.*there is no such queue"
    with pytest.raises(ConfigError, match=met):
        check(replace(settings, fail_on_data_loss=False), other)


def test_a_lost_checkpoint_is_refused_unless_the_start_is_said(
    settings: ArchiveTopicsSettings,
) -> None:
    brokers = filled(ARCHIVED)
    archive(settings, brokers)
    other = replace(settings, name="again")
    with pytest.raises(
        ConfigError, match=r"has messages of orders, which the checkpoint at .*does"
    ):
        check(other, brokers)
    start = json.dumps(to_json({KEY: ARCHIVED}))
    assert check(replace(other, options=(f"startingOffsets={start}",)), brokers) == ()


def test_an_archived_topic_is_not_added_again(settings: ArchiveTopicsSettings) -> None:
    """Its queues would begin at their first messages."""
    brokers = filled(ARCHIVED)
    archive(settings, brokers)
    brokers.create("bills")
    other = replace(settings, topics=("bills",), name="other")
    note(other, 0, {QueueKey("bills", "broker-a", 0): 0})
    table_of(settings).commit([], application_of("q"), 1, 0)
    note(other, 1, {QueueKey("bills", "broker-a", 0): 0})
    assert check(other, brokers) == ()
    with pytest.raises(ConfigError, match="has messages of orders"):
        check(replace(other, topics=("orders", "bills")), brokers)


@pytest.mark.parametrize(
    ("batches", "what"),
    [
        ((0, 1, 2), r"has batch 0 of query q, expected 2 to 2 "),  # an older table
        ((), r"has batch 0 of query q, expected -1 to -1 "),  # an older checkpoint
    ],
)
def test_a_table_or_a_checkpoint_from_a_copy_is_refused(
    settings: ArchiveTopicsSettings, batches: tuple[int, ...], what: str
) -> None:
    brokers = filled(ARCHIVED)
    archive(settings, brokers)
    folder = checkpoint_of(settings)
    for path in (folder / "offsets" / "0", folder / "commits" / "0"):
        path.unlink()
    for batch in batches:
        note(settings, batch, {KEY: ARCHIVED})
    with pytest.raises(ConfigError, match=what):
        check(settings, brokers)


def test_a_checkpoint_of_another_format_is_named(settings: ArchiveTopicsSettings) -> None:
    archive(settings, filled(1))
    (checkpoint_of(settings) / "offsets" / "0").write_text("v9\n{}\n{}")
    with pytest.raises(PlaceError, match=r"offsets/0: met \['v9'\]"):
        check(settings, filled(1))


def test_rows_of_a_task_are_written_in_several_files(
    settings: ArchiveTopicsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "ROWS_PER_FILE", 10)
    rows = MicroBatch(filled(30, 30), {})
    rows.batches = [each for part in rows.batches for each in _halves(part)]
    files = topics.archive_batch(settings, "q", rows, 0)
    assert len(files) > 1
    assert sum(file.rows for file in files) == len(rows_of(settings)) == 60


def _halves(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    half = batch.num_rows // 2
    return [batch.slice(0, half), batch.slice(half)]


def test_what_is_missing_is_named(settings: ArchiveTopicsSettings) -> None:
    with pytest.raises(ConfigError, match="expected name_servers and topics"):
        archive_topics(None, replace(settings, topics=()))
    for to in ("", "s3://bucket/archive"):
        with pytest.raises(ConfigError, match="expected checkpoint"):
            topics._place_of_checkpoint(replace(settings, to=to))


@pytest.mark.parametrize(
    ("given", "after_ms"), [((), 0), (("brokerAway.failAfterMs=60000",), 60_000)]
)
def test_a_run_fails_if_a_broker_is_away_unless_its_options_say_otherwise(
    given: tuple[str, ...], after_ms: int
) -> None:
    """A run that is done has archived the messages of all queues."""
    settings = ArchiveTopicsSettings(name_servers="n:1", topics=("t",), to="x", options=given)
    options = parse_options(TopicReadOptions, topics._options(settings))

    assert options.broker_away_fail_after_ms == after_ms
