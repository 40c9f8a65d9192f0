"""Latencies and losses by the traces of our client and of Java's clients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.client.handlers import LocalState
from cometmq.client.hooks import ConsumeEnd, SendKind
from cometmq.client.trace import (
    ConsumeAfter,
    ConsumeBefore,
    EndTransaction,
    Publish,
    Recall,
    Record,
    decode_records,
    encode_trace_record,
)
from cometmq.model.topic import TRACE_TOPIC
from cometmq.protocol.headers.send import SendMessageV2Request
from support.spark.message_frames import START, frame
from support.spark.recipes import recipe
from support.spark.traces import PRODUCER, at, handled, published, trace_messages
from support.wire.recorded import VERSIONS, frames

pytestmark = pytest.mark.long_elsewhere
traces = recipe("14_latency_from_traces")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, path: Path, *texts: str) -> DataFrame:
    return traces.records(frame(spark, path, trace_messages(*texts)))


def rows(found: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in found.collect()]


def java_bodies(version: str) -> list[bytes]:
    """The bodies of the trace messages that a Java client sent."""
    return [
        command.body
        for name, command in frames(version, "trace")
        if name == "SEND_MESSAGE_V2" and command.header(SendMessageV2Request).topic == TRACE_TOPIC
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_traces_of_java_clients_are_read_as_our_own_reader_reads_them(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    bodies = [body.decode() for body in java_bodies(version)]
    assert bodies, "the recording has no traces"

    found = rows(read(spark, tmp_path / "m", *bodies))

    assert all(row["problem"] is None for row in found)
    expected = [record for body in bodies for record in decode_records(body)]
    assert sorted(map(comparable, found)) == sorted(map(comparable_record, expected))
    assert {row["client"].partition("@")[0] for row in found} <= {"127.0.0.1", "10.0.0.1"}


def comparable(row: dict[str, Any]) -> tuple[str, ...]:
    time = milliseconds(row["time"]) if row["kind"] != "SubAfter" or row["group"] else 0
    values = (row["kind"], time, row["group"], row["msg_id"], row["topic"], row["keys"])
    return tuple(map(str, (*values, row["cost_ms"], row["success"], row["end"], row["retries"])))


def comparable_record(record: Record) -> tuple[str, ...]:
    kinds = {Publish: "Pub", ConsumeBefore: "SubBefore", ConsumeAfter: "SubAfter"}
    topic, cost_ms = getattr(record, "topic", None), getattr(record, "cost_ms", None)
    success = getattr(record, "success", None)
    end = record.end.name if isinstance(record, ConsumeAfter) else None
    retries = getattr(record, "retries", None)
    values = (kinds[type(record)], record.time_ms, record.group, record.message_id, topic)
    return tuple(map(str, (*values, record.keys, cost_ms, success, end, retries)))


def milliseconds(moment: datetime) -> int:
    return round(moment.replace(tzinfo=UTC).timestamp() * 1000)


def test_records_are_read_whatever_their_form(spark: SparkSession, tmp_path: Path) -> None:
    """Publish records of all lengths, the cloud form, a batch, an IPv6 client, damaged records."""
    whole = encode_trace_record(published(1)).rstrip("\x02").split("\x01")
    lengths = [[*whole[:12], "false"], whole, [*whole, "10.9.9.9:1234"]]
    ipv6 = "20010DB8000000000000000000000001" + "00FF" + "0" * 20
    texts = [
        *("\x01".join(fields) + "\x02" for fields in lengths),
        encode_trace_record(handled(1, 5)[1], cloud=True),
        encode_trace_record(published(1, message_id="A,B")),
        encode_trace_record(published(1, message_id=ipv6)),
        "\x01".join(["Pub", "1", "r", "g"]) + "\x02",
        encode_trace_record(published(1)).replace("\x014\x01", "\x01four\x01"),
    ]

    found = rows(read(spark, tmp_path / "m", *texts).orderBy("trace_offset", "msg_id"))

    short, full, named, after, one, two, address, cut, no_number = found
    sends = (short, full, named)
    assert [row["success"] for row in sends] == [False, True, True]
    assert [row["offset_msg_id"] for row in sends] == [None, "7F", "7F"]
    assert [row["client"] for row in sends] == ["10.0.0.1@4660", "10.0.0.1@4660", "10.9.9.9:1234"]
    assert after["time"] == (START + timedelta(seconds=3)).replace(tzinfo=None), "its message's"
    assert (after["group"], after["cost_ms"], after["end"]) == (None, 20, "SUCCESS")
    assert (one["msg_id"], two["msg_id"]) == ("A", "B")
    assert address["client"] == "2001:0db8:0000:0000:0000:0000:0000:0001@255"
    assert cut["problem"] == "a Pub record of 4 fields: at least 13 expected"
    assert no_number["problem"] == "a Pub record whose cost_ms is no number"
    assert [row["problem"] for row in found[:7]] == [None] * 7


def planted() -> list[str]:
    """Ten messages: 1 never delivered, 2 fails always, 3 handled twice, 4 fails once, 5 unended."""
    found: list[Record] = [published(number, number) for number in range(10)]
    for number in (0, 3, 6, 7, 8, 9):
        found += handled(number, number + 1)
    found += handled(3, 30, turn=1)
    for turn in range(2):
        found += handled(2, 5 + turn, turn=turn, end=ConsumeEnd.EXCEPTION)
    found += [*handled(4, 6, end=ConsumeEnd.TIMEOUT), *handled(4, 9, turn=1)]
    found += handled(5, 6)[:1]
    rolled_back = published(20, 3, kind=SendKind.TRANSACTION_HALF)
    found += [rolled_back, published(21, 3, kind=SendKind.TRANSACTION_HALF), published(22, 199)]
    found.append(
        EndTransaction(
            at(4), "r", "senders", "orders", f"{PRODUCER}{21:016X}", None, None,
            "127.0.0.1:10911", SendKind.TRANSACTION_COMMIT, "t", LocalState.COMMIT, True,
        )
    )  # fmt: skip
    found += [Recall(at(200), "r", "senders", "orders", "x", True)]
    return [encode_trace_record(record) for record in found]


def test_losses_and_doubles_that_were_planted_are_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All records twice, as after a repeated send."""
    found = read(spark, tmp_path / "m", *planted(), *planted())

    missing = {row["msg_id"][-2:]: row["reason"] for row in rows(traces.unconsumed(found))}
    [twice] = rows(traces.consumed_twice(found))

    assert missing == {
        "01": "never delivered",
        "02": "every delivery failed",
        "05": "no end recorded",
        "15": "never delivered",
    }, "21 was committed; 20 was not, and 22 is too young"
    assert (twice["msg_id"][-2:], twice["times"], twice["group"]) == ("03", 2, "shippers")


def test_latencies_are_told_by_topic_group_and_client(spark: SparkSession, tmp_path: Path) -> None:
    sends = [published(n, n, cost_ms=10 * (n + 1)) for n in range(10)]
    calls = [record for n in range(10) for record in handled(n, n + 0.5, cost_ms=n)]
    delayed = [published(20, 0, cost_ms=50, kind=SendKind.DELAYED), *handled(20, 90, cost_ms=4)]
    records = map(encode_trace_record, [*sends, *calls, *delayed])

    found = rows(traces.latencies(read(spark, tmp_path / "m", *records)))

    steps = {row["step"]: row for row in found}
    assert len(found) == len(steps) == 3
    send, wait, handle = (steps[name] for name in ("send", "wait", "handle"))
    assert (send["topic"], send["group"], send["client"]) == ("orders", "senders", "10.0.0.1@4660")
    assert (send["count"], send["failed"], send["p90"], send["max"]) == (11, 0, 90, 100)
    assert (wait["group"], wait["client"]) == ("shippers", "10.0.0.2@22136")
    assert (wait["count"], wait["min"], wait["p50"], wait["max"]) == (10, 450, 470, 495)
    assert (handle["count"], handle["p50"], handle["max"]) == (11, 4, 9)


def test_a_group_is_not_expected_to_get_tags_it_never_got(
    spark: SparkSession, tmp_path: Path
) -> None:
    paid = [published(n, n, tags="paid") for n in (1, 2)]
    found = [*paid, published(3, 3, tags="sent"), *handled(1, 2), published(4, 200)]

    missing = rows(traces.unconsumed(read(spark, tmp_path, *map(encode_trace_record, found))))

    assert {(row["msg_id"][-2:], row["reason"]) for row in missing} == {
        ("02", "never delivered"),
        ("03", "no group consumes it"),
    }
