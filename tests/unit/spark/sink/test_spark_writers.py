"""The sink as Spark uses it: checked when it is made, pickled, given its task."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cometmq.spark.errors import OptionError, SourceError
from cometmq.spark.sink import Sent, sink_counts
from cometmq.spark.sink.rows import COLUMNS
from cometmq.spark.sink.spark_writers import SentMessage, TopicBatchWriter, TopicStreamWriter

OPTIONS = {"nameserver": "127.0.0.1:9876", "topic": "orders"}
SCHEMA = StructType([StructField("body", BinaryType()), StructField("tags", StringType())])
BOTH = pytest.mark.parametrize("sink", [TopicBatchWriter, TopicStreamWriter])


def test_all_tasks_of_a_batch_write_belong_to_one_job() -> None:
    writer = TopicBatchWriter(OPTIONS, SCHEMA, False)
    one, other = (pickle.loads(pickle.dumps(writer)) for _ in range(2))
    assert vars(one) == vars(other) == vars(writer)


def test_two_batch_writes_are_two_jobs_unless_they_are_named() -> None:
    unnamed = [vars(TopicBatchWriter(OPTIONS, SCHEMA, False))["_job"] for _ in range(2)]
    assert unnamed[0] != unnamed[1]
    named = [
        vars(TopicBatchWriter(OPTIONS | {"jobid": "nightly"}, SCHEMA, False))["_job"]
        for _ in range(2)
    ]
    assert named == ["nightly", "nightly"]


@BOTH
def test_every_column_that_can_be_written_is_taken_as_spark_declares_it(
    sink: Callable[..., object],
) -> None:
    kinds: dict[str, DataType] = {
        "BINARY or STRING": BinaryType(),
        "STRING": StringType(),
        "STRING or ARRAY<STRING>": ArrayType(StringType()),
        "MAP<STRING, STRING>": MapType(StringType(), StringType()),
        "INT": IntegerType(),
        "TIMESTAMP": TimestampType(),
    }
    sink(
        OPTIONS,
        StructType([StructField(name, kinds[text]) for name, (text, _, _) in COLUMNS.items()]),
        False,
    )


@BOTH
def test_a_sink_is_refused_before_any_task(sink: Callable[..., object]) -> None:
    for options, schema, overwrite, why in (
        (OPTIONS, SCHEMA, True, "cannot be overwritten"),
        (
            OPTIONS | {"delivery": "idempotent"},
            SCHEMA,
            False,
            "expected one of auto, at-least-once",
        ),
        (OPTIONS, StructType([StructField("value", BinaryType())]), False, "column value"),
        (OPTIONS | {"rocketmq.acl.secretkey": "x"}, SCHEMA, False, "is a secret"),
    ):
        with pytest.raises(OptionError, match=why):
            sink(options, schema, overwrite)


@BOTH
def test_the_checkpoint_and_the_name_of_a_query_are_no_options_of_the_sink(
    sink: Callable[..., object],
) -> None:
    sink(OPTIONS | {"checkpointlocation": "/somewhere", "queryname": "copy"}, SCHEMA, False)


@BOTH
def test_a_commit_logs_and_adds_up_what_its_tasks_have_sent(
    sink: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = sink(OPTIONS | {"countsfolder": str(tmp_path)}, SCHEMA, False)
    messages = [SentMessage("query-1", 7, Sent(rows, 100, 2, 1)) for rows in (3, 4)]
    more = (7,) if sink is TopicStreamWriter else ()
    with caplog.at_level(logging.INFO):
        writer.commit(pickle.loads(pickle.dumps(messages)), *more)
    assert "job=query-1 batch=7 tasks=2 rows=7 bytes=200 requests=4 retries=2" in caplog.text
    (found,) = sink_counts(tmp_path)
    assert (found.job, found.sent, found.commits) == ("query-1", Sent(7, 200, 4, 2), 1)


def test_commit_and_abort_change_nothing_however_often_they_are_called() -> None:
    """Spark calls abort after a commit that failed, and either again after a restart."""
    batch, stream = (kind(OPTIONS, SCHEMA, False) for kind in (TopicBatchWriter, TopicStreamWriter))
    for _ in range(2):
        batch.commit([None])
        batch.abort([None])
        stream.commit([None], 3)
        stream.abort([None], 3)


@BOTH
def test_rows_are_written_by_tasks_only(
    sink: Callable[..., TopicBatchWriter | TopicStreamWriter],
) -> None:
    with pytest.raises(SourceError, match="written by tasks of Spark"):
        sink(OPTIONS, SCHEMA, False).write(iter(()))
