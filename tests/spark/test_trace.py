"""Latencies and losses by the traces of our client and of Java's clients."""

from __future__ import annotations

from datetime import UTC, datetime
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
from cometmq.spark.pipelines.trace.pipeline import TABLES, Traces, TraceSettings, trace
from cometmq.spark.pipelines.trace.records import records, repeated_removed
from cometmq.spark.pipelines.trace.tables import stream_deliveries
from support.spark.message_frames import START, frame, write
from support.spark.spark_topics import ENDS_S
from support.spark.traces import PRODUCER, at, handled, published, trace_messages
from support.wire.recorded import VERSIONS, frames

pytestmark = pytest.mark.long_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, path: Path, *texts: str) -> DataFrame:
    return records(frame(spark, path, trace_messages(*texts)))


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


def test_a_publish_record_is_read_whatever_its_number_of_fields(
    spark: SparkSession, tmp_path: Path
) -> None:
    whole = encode_trace_record(published(1)).rstrip("\x02").split("\x01")
    without_id = [*whole[:12], "false"]
    with_client = [*whole, "10.9.9.9:1234"]
    texts = ["\x01".join(fields) + "\x02" for fields in (without_id, whole, with_client)]

    found = rows(read(spark, tmp_path / "m", *texts).orderBy("trace_offset"))

    assert [row["success"] for row in found] == [False, True, True]
    assert [row["offset_msg_id"] for row in found] == [None, "7F", "7F"]
    assert [row["client"] for row in found] == ["10.0.0.1@4660", "10.0.0.1@4660", "10.9.9.9:1234"]


def test_a_record_in_the_cloud_form_gets_its_message_s_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    after = handled(1, 5)[1]

    [row] = rows(read(spark, tmp_path / "m", encode_trace_record(after, cloud=True)))

    assert row["time"].replace(tzinfo=None) == START.replace(tzinfo=None)
    assert (row["group"], row["cost_ms"], row["end"]) == (None, 20, "SUCCESS")


def test_a_record_that_cannot_be_read_says_what_is_wrong_and_where(
    spark: SparkSession, tmp_path: Path
) -> None:
    cut = "\x01".join(["Pub", "1", "r", "g"]) + "\x02"
    no_number = encode_trace_record(published(1)).replace("\x014\x01", "\x01four\x01")

    found = rows(read(spark, tmp_path / "m", cut, no_number + encode_trace_record(published(2))))

    problems = {row["msg_id"]: row["problem"] for row in found}
    assert problems == {
        None: "a Pub record of 4 fields: at least 13 expected",
        f"{PRODUCER}{1:016X}": "a Pub record whose cost_ms is no number",
        f"{PRODUCER}{2:016X}": None,
    }


def test_a_batch_s_record_counts_for_each_of_its_messages(
    spark: SparkSession, tmp_path: Path
) -> None:
    both = f"{PRODUCER}{1:016X},{PRODUCER}{2:016X}"

    found = rows(read(spark, tmp_path / "m", encode_trace_record(published(1, message_id=both))))

    assert sorted(row["msg_id"] for row in found) == both.split(",")


def test_a_client_with_an_ipv6_address_is_named_by_it(spark: SparkSession, tmp_path: Path) -> None:
    unique = "20010DB8000000000000000000000001" + "00FF" + "0" * 20

    [row] = rows(read(spark, tmp_path / "m", encode_trace_record(published(1, message_id=unique))))

    assert row["client"] == "2001:0db8:0000:0000:0000:0000:0000:0001@255"


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
    traces = Traces(read(spark, tmp_path / "m", *planted()))

    missing = {row["msg_id"][-2:]: row["reason"] for row in rows(traces.table("not_consumed"))}
    [twice] = rows(traces.table("consumed_twice"))

    assert missing == {
        "01": "never delivered",
        "02": "every delivery failed",
        "05": "delivered, no end recorded",
        "15": "never delivered",
    }, "21 was committed; 20 was not, and 22 is too young"
    assert (twice["msg_id"][-2:], twice["times"], twice["group"]) == ("03", 2, "shippers")


def test_latencies_are_told_by_topic_group_and_client(spark: SparkSession, tmp_path: Path) -> None:
    sends = [published(n, n, cost_ms=10 * (n + 1)) for n in range(10)]
    calls = [record for n in range(10) for record in handled(n, n + 0.5, cost_ms=n)]
    traces = Traces(read(spark, tmp_path / "m", *map(encode_trace_record, [*sends, *calls])))

    [sent] = rows(traces.table("sends"))
    [wait] = rows(traces.table("waits"))
    [cost] = rows(traces.table("handlers"))

    assert (sent["topic"], sent["group"], sent["client"]) == ("orders", "senders", "10.0.0.1@4660")
    assert (sent["cost_p50"], sent["cost_p90"], sent["cost_max"]) == (50, 90, 100)
    assert (wait["group"], wait["client"]) == ("shippers", "10.0.0.2@22136")
    assert (wait["wait_max"], wait["wait_p50"], wait["backwards"]) == (495, 470, 0)
    assert (cost["deliveries"], cost["cost_p50"], cost["cost_max"]) == (10, 4, 9)


def test_a_group_is_not_expected_to_get_tags_it_never_got(
    spark: SparkSession, tmp_path: Path
) -> None:
    paid = [published(n, n, tags="paid") for n in (1, 2)]
    found = [*paid, published(3, 3, tags="sent"), *handled(1, 2), published(4, 200)]
    traces = Traces(read(spark, tmp_path / "m", *map(encode_trace_record, found)))

    missing = {(r["msg_id"][-2:], r["reason"]) for r in rows(traces.table("not_consumed"))}

    assert missing == {("02", "never delivered"), ("03", "no group is seen to consume it")}


def test_a_record_that_was_stored_twice_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    texts = [encode_trace_record(record) for record in (published(1), *handled(1, 1))]

    traces = Traces(repeated_removed(read(spark, tmp_path / "m", *texts, *texts)))

    assert rows(traces.table("consumed_twice")) == []
    assert [row["sent"] for row in rows(traces.table("sends"))] == [1]


def test_the_pipeline_writes_tables_a_report_and_its_run_record(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = write(tmp_path / "m", trace_messages(*planted()))
    settings = TraceSettings(source=source, output=str(tmp_path / "out"))

    result = trace(spark, settings)

    assert result.run.status == "done"
    assert set(result.tables) == {"findings", *TABLES}
    assert result.run.counts["not_consumed"] == 4
    assert result.run.counts["consumed_twice"] == 1
    assert not result.good
    page = (tmp_path / "out" / "report.html").read_text()
    assert "consumed-twice" in page
    assert "handled message" in page
    assert not list((tmp_path / "out" / "_steps").rglob("*.parquet"))


def test_a_run_that_was_stopped_goes_on_with_the_tables_it_has(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "m", trace_messages(*planted()))
    settings = TraceSettings(source=source, output=str(tmp_path / "out"))
    whole = trace(spark, TraceSettings(source=source, output=str(tmp_path / "whole")))
    made: list[str] = []
    real = Traces.table

    def table(self: Traces, name: str) -> DataFrame:
        made.append(name)
        if name == "timeline" and made.count(name) == 1:
            raise OSError("the machine went away")
        return real(self, name)

    monkeypatch.setattr(Traces, "table", table)
    with pytest.raises(OSError, match="went away"):
        trace(spark, settings)
    result = trace(
        spark, TraceSettings(source=source, output=str(tmp_path / "out"), resume="latest")
    )

    assert made == [*TABLES[:4], *TABLES[3:]], "tables that were there are not computed again"
    assert result.run.checksum == whole.run.checksum


def test_a_dry_run_reads_and_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    settings = TraceSettings(source="parquet:/nowhere", output=str(tmp_path / "out"))

    result = trace(spark, settings, dry_run=True)

    assert result.run.status == "dry run"
    assert any("would read parquet:/nowhere" in note for note in result.notes)
    assert not (tmp_path / "out").exists()


def test_deliveries_of_a_stream_are_those_of_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The stream gives a call without an end only once the watermark has passed it."""
    source = tmp_path / "m"
    calls = [*handled(1, 0), *handled(2, 1), *handled(3, 2)[:1]]
    late = [published(9, 4000), *handled(9, 4000)]
    frame(spark, source, trace_messages(*map(encode_trace_record, [*calls, *late])))
    stream = records(spark.readStream.schema(spark.read.parquet(str(source)).schema).parquet(
        str(source)))  # fmt: skip
    query = (
        stream_deliveries(stream)
        .writeStream.format("memory")
        .queryName("calls")
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(ENDS_S)
    finally:
        query.stop()

    found = {row["msg_id"][-2:]: row["end"] for row in rows(spark.table("calls"))}

    assert found == {"01": "SUCCESS", "02": "SUCCESS", "03": None, "09": "SUCCESS"}
