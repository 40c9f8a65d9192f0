"""Faults planted in queues, transactions, groups and copies are found, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import compress, crc32

import pytest

from cometmq.model.errors import ConfigError
from cometmq.model.topic import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.spark import checks
from support.spark.message_frames import START, frame, message
from support.spark.recipes import recipe
from support.wire.recorded import STORES, unpack_store

pytestmark = pytest.mark.long_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[dict[str, Any]]
AUDIT, GROUPS = recipe("15_audit_a_replica"), recipe("28_group_offsets")
LETTERS, CLUSTERS = recipe("13_dead_letters"), recipe("29_compare_clusters")


def queue(count: int, queue_id: int = 0, **more: Any) -> Rows:
    """Messages of one queue, each with a body of its own."""
    return [
        message(
            n,
            f"body {n} of queue {queue_id}".encode(),
            queue_id=queue_id,
            msg_id=f"{queue_id:016X}{n:016X}",
            phy_offset=(n * 8 + queue_id + 1) * 200,
        )
        | more
        for n in range(count)
    ]


def told(found: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """The values of some columns, sorted; lists as tuples."""
    rows = found.select(*names).collect()
    return sorted(
        (tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in rows), key=str
    )


# --- within queues -------------------------------------------------------------------------------


def test_faults_of_queues_are_found_with_their_ranges(spark: SparkSession, tmp_path: Path) -> None:
    whole, gap, twice, back, crc, order = (queue(10, number) for number in range(6))
    packed = message(500, compress(b"a body that was sent compressed" * 9), queue_id=7)
    later = [row | {"queue_offset": row["queue_offset"] + 1_000} for row in queue(3, 8)]
    whole += [packed | {"sys_flag": 0x301, "body_crc": 1}, *later]
    del gap[3:6]
    twice.append(twice[4] | {"body": b"another", "body_crc": crc32(b"another") & 0x7FFFFFFF})
    back[5]["store_timestamp"] = START - timedelta(seconds=7)
    crc[6]["body_crc"] += 1
    order[8]["phy_offset"] = 100
    none = message(-1, topic="", queue_id=-1, record_valid=False, phy_offset=77, store_size=9)
    rows = [*whole, *gap, *twice, *back, *crc, *order, none, none | {"phy_offset": 99}]

    found = checks.gaps(frame(spark, tmp_path, rows))

    assert told(found, "finding", "queue_id", "first", "last", "count", "phy_offset") == [
        ("checksum", 4, 6, 6, 1, (6 * 8 + 5) * 200),
        ("clock-back", 3, 5, 5, 1, (5 * 8 + 4) * 200),
        ("damaged-record", None, -1, -1, 1, 77),
        ("damaged-record", None, -1, -1, 1, 99),
        ("gap", 1, 3, 5, 3, (6 * 8 + 2) * 200),
        ("log-order", 5, 8, 8, 1, 100),
        ("repeated-offset", 2, 4, 4, 1, (4 * 8 + 3) * 200),
    ]
    [back_found] = found.where("finding = 'clock-back'").collect()
    assert (back_found.topic, back_found.detail) == ("orders", "11000 ms")


def test_no_row_is_left_out_however_many_there_are(spark: SparkSession, tmp_path: Path) -> None:
    rows = [message(n, b"", queue_id=n % 2) for n in range(0, 50_000, 2)]

    found = checks.gaps(frame(spark, tmp_path, rows).drop("body", "record_valid", "store_size"))

    total = found.groupBy("finding").agg({"*": "count", "count": "sum"}).collect()
    assert total == [("gap", 24_999, 24_999)]


def test_a_message_that_is_there_twice_is_told_from_a_batch_with_one_id(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = queue(10)
    rows[7] |= {"msg_id": rows[2]["msg_id"], "body": rows[2]["body"]}
    for number in (4, 5):
        rows[number]["msg_id"] = "ONE ID OF A BATCH"
    rows += [row | {"topic": "%RETRY%g", "msg_id": "tried again"} for row in queue(2)]

    found = checks.duplicates(frame(spark, tmp_path, rows))

    assert told(found, "topic", "msg_id", "copies", "first.queue_offset", "last.queue_offset") == [
        ("orders", rows[2]["msg_id"], 2, 2, 7)
    ]


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_log_of_a_real_broker_has_no_fault_until_a_byte_is_flipped(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    store = unpack_store(f"{version}-main", tmp_path)
    messages = json.loads((STORES / f"{version}-main.json").read_text())["messages"]
    reader = spark.read.format("rocketmq-log").option("validate", True)
    log = reader.options(badRecords="permissive", includeProperties="true")
    assert checks.gaps(log.load(str(store))).collect() == []
    assert checks.duplicates(log.load(str(store))).collect() == []
    assert told(AUDIT.transactions(log.load(str(store))), "finding") == [("half-without-end",)]

    place = messages[100]["physical_offset"]
    path = min((store / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[place + 90] ^= 0xFF
    path.write_bytes(data)

    found = told(checks.gaps(log.load(str(store))), "finding", "phy_offset")
    assert found == [("checksum", place)]


# --- transactions and groups ---------------------------------------------------------------------


def test_half_messages_without_an_end_ends_without_a_half_and_double_commits_are_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    """1 is open and old, 5 is open and young; 9 was never there; 0 has expired."""
    now = datetime.now(UTC)
    halves = [
        message(n, topic=HALF_TOPIC, store_timestamp=now - timedelta(hours=1))
        | {"properties": {"PGROUP": "payers", "REAL_TOPIC": "orders"}}
        for n in range(1, 7)
    ]
    halves[4]["store_timestamp"] = now
    bodies = [b"2", b"3,4,", b"6", b"9", b"0"]
    ends = [message(n, body, topic=OP_HALF_TOPIC, tags="d") for n, body in enumerate(bodies)]
    commits = [row | {"sys_flag": 8, "prepared_offset": 900 + n} for n, row in enumerate(queue(4))]
    commits[3]["prepared_offset"] = 901

    found = AUDIT.transactions(frame(spark, tmp_path, [*halves, *ends, *commits]))

    assert told(found, "finding", "topic", "queue_offset", "producer_group") == [
        ("committed-twice", "orders", 1, None),
        ("end-without-half", None, 9, None),
        ("half-without-end", "orders", 1, "payers"),
    ]


def test_groups_outside_of_their_queues_are_found(spark: SparkSession) -> None:
    bounds = [(0, 10, 30, 20), (1, 10, 30, 4), (2, 10, 30, 33), (3, 10, 30, None), (4, 10, 30, 10)]
    rows = [
        ("orders", "a", number, "g", low, high, at, None if at is None else high - at, START)
        for number, low, high, at in bounds
    ]
    queues = spark.createDataFrame(
        rows,
        "topic STRING, broker_name STRING, queue_id INT, consumer_group STRING, min_offset BIGINT,"
        " max_offset BIGINT, committed_offset BIGINT, lag BIGINT, observed_timestamp TIMESTAMP",
    )

    columns = ("finding", "queue_id", "first", "last", "count")
    outside = [("committed-beyond", 2, 30, 32, 3), ("expired-unread", 1, 4, 9, 6)]
    assert told(GROUPS.outside(queues), *columns) == outside
    assert told(GROUPS.outside(queues, lag_max=15), *columns) == [
        *outside,
        ("lag", 4, 10, 29, 20),
    ]


# --- two sources ---------------------------------------------------------------------------------


def frames(
    spark: SparkSession, path: Path, here: Iterable[Any], there: Iterable[Any]
) -> tuple[DataFrame, DataFrame]:
    return frame(spark, path / "here", here), frame(spark, path / "there", there)


def test_a_replica_is_the_same_lags_behind_or_has_lost_something(
    spark: SparkSession, tmp_path: Path
) -> None:
    same, lagging, expired, lost, changed, gone = (queue(6, number) for number in range(6))
    there = [dict(row) for row in (*same, *lagging[:4], *expired[1:], *lost, *changed)]
    there = [row for row in there if (row["queue_id"], row["queue_offset"]) != (3, 2)]
    for row in there:
        row |= {"broker_name": None, "topic": "copies"}
        if row["queue_id"] == 4 and row["queue_offset"] == 3:
            row |= {"body": b"tampered", "properties": {"a": "1"}}
    here = [*same, *lagging, *expired, *lost, *changed, *gone[:2]]

    found = checks.compare(*frames(spark, tmp_path, here, there), topics={"orders": "copies"})

    assert told(found, "finding", "queue_id", "queue_offset", "columns") == [
        ("behind-there", 1, 4, ()),
        ("behind-there", 1, 5, ()),
        ("differs", 4, 3, ("body", "properties")),
        ("expired-there", 2, 0, ()),
        ("missing-there", 3, 2, ()),
        ("missing-there", 5, 0, ()),
        ("missing-there", 5, 1, ()),
    ]
    assert told(found, "topic", "broker_name")[0] == ("copies", None)


def test_a_queue_of_which_a_side_has_nothing_is_behind_if_it_is_newer_and_else_missing(
    spark: SparkSession, tmp_path: Path
) -> None:
    common, lost, late = queue(4), queue(2, 1), queue(2, 2)
    for row in late:
        row["store_timestamp"] = common[-1]["store_timestamp"] + timedelta(seconds=1)
    two = frames(spark, tmp_path, [*common, *lost, *late], common)

    for here, there, side in ((*two, "there"), (two[1], two[0], "here")):
        assert told(checks.compare(here, there), "finding", "queue_id", "queue_offset") == [
            (f"behind-{side}", 2, 0),
            (f"behind-{side}", 2, 1),
            (f"missing-{side}", 1, 0),
            (f"missing-{side}", 1, 1),
        ]
    empty = two[0].where("false")
    found = checks.compare(two[0], empty)
    assert {row.finding for row in found.collect()} == {"missing-there"}


def test_columns_and_brokers_may_differ(spark: SparkSession, tmp_path: Path) -> None:
    """A null is not taken for the same value in the next column."""
    here = [row | {"tags": "x", "keys": None} for row in queue(3)]
    there = [
        row | {"tags": None, "keys": "x", "broker_name": "b", "store_timestamp": START}
        for row in here
    ]
    two = frames(spark, tmp_path, here, there)

    ignored = ("store_timestamp",)
    lenient = checks.compare(*two, ignored=ignored)
    by_broker = checks.compare(*two, match_brokers=True)

    assert told(lenient, "finding", "queue_offset", "columns") == [
        ("differs", number, ("tags", "keys")) for number in range(3)
    ]
    assert checks.compare(two[0], two[1].drop("tags", "keys"), ignored=ignored).collect() == []
    assert sorted(told(by_broker, "finding", "broker_name")) == [
        *[("behind-there", "broker-a")] * 2,
        *[("missing-here", "b")] * 3,
        ("missing-there", "broker-a"),
    ]
    with pytest.raises(ConfigError, match="ignored: met spelling, expected some of msg_id"):
        checks.compare(*two, ignored=("spelling",))


def test_another_cluster_is_compared_by_what_messages_were_at_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    """There, messages have other places, new ids, and properties that say where they are from."""
    own = {"color": "red", "WAIT": "true", "PGROUP": "payers", "__SHARDINGKEY": "a buyer"}
    here = [row | {"properties": own} for row in queue(30)]
    there = []
    for row in reversed(here):
        again = {"ORIGIN_MSG_ID": row["msg_id"], "REPLAY_JOB": "j", "color": "red"}
        there.append(
            row
            | {"topic": "copies", "queue_id": 3, "msg_id": "NEW" + row["msg_id"]}
            | {
                "properties": again | {"__SHARDINGKEY": "b"},
                "queue_offset": 100 - row["queue_offset"],
            }
        )
    whole = CLUSTERS.compare_by_key(*frames(spark, tmp_path / "a", here, there))
    assert whole.collect() == []

    there[0] |= {"body": b"tampered"}
    del there[5]
    there += [dict(there[9]), there[10] | {"properties": {}, "msg_id": "a stranger"}]
    found = CLUSTERS.compare_by_key(*frames(spark, tmp_path / "b", here, there))

    assert told(found, "finding", "msg_id", "copies_here", "copies_there") == [
        ("differs", here[29]["msg_id"], 1, 1),
        ("missing-here", "a stranger", 0, 1),
        ("missing-there", here[24]["msg_id"], 1, 0),
        ("more-often-there", here[19]["msg_id"], 1, 2),
    ]


# --- dead letters --------------------------------------------------------------------------------


def test_dead_letters_say_whose_they_are_when_and_why(spark: SparkSession, tmp_path: Path) -> None:
    properties = {
        "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "7F01", "CONSUME_ERROR": "shop.NoStock: 5",
        "CONSUME_RETRIES": "2", "color": "red",
    }  # fmt: skip
    dead = message(3, topic="%DLQ%shipping", reconsume_times=0, properties=properties)
    dead["born_timestamp"] = START - timedelta(seconds=57)
    of_rocketmq = message(4, topic="%DLQ%billing", reconsume_times=16)
    rows = [*queue(3), dead, of_rocketmq, message(5, topic="%RETRY%shipping")]

    found = LETTERS.dead_letters(frame(spark, tmp_path, rows))

    assert told(found, "group", "origin_topic", "origin_id", "retries", "error") == [
        ("billing", None, None, 16, None),
        ("shipping", "orders", "7F01", 2, "shop.NoStock: 5"),
    ]
    [row] = found.where("group = 'shipping'").collect()
    assert (row.died - row.born, row.properties) == (timedelta(seconds=60), {"color": "red"})


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_dead_letters_in_the_log_of_a_real_broker_are_found(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    messages = json.loads((STORES / f"{version}-main.json").read_text())["messages"]
    dead = [row["properties"] for row in messages if row["topic"] == "%DLQ%CG_retry"]
    reader = spark.read.format("rocketmq-log").option("includeProperties", True)

    found = LETTERS.dead_letters(reader.load(str(unpack_store(f"{version}-main", tmp_path))))

    assert told(found, "group", "origin_topic", "origin_id") == sorted(
        ("CG_retry", each["RETRY_TOPIC"], each["ORIGIN_MESSAGE_ID"]) for each in dead
    )
