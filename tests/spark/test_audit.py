"""Faults planted in queues, transactions, groups and copies are found, and nothing else is."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import compress, crc32

import pytest

from cometmq.model.errors import ConfigError
from cometmq.model.topic import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.spark.pipelines.archive import ArchiveSettings, archive
from cometmq.spark.pipelines.archive.manifest import Manifest
from cometmq.spark.pipelines.audit import AuditSettings, audit
from cometmq.spark.pipelines.findings.rows import Finding, Findings, Severity
from cometmq.spark.pipelines.running.folders import open_folder
from support.spark.message_frames import START, message, write
from support.wire.recorded import STORES, unpack_store

pytestmark = pytest.mark.long_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, path: Path, rows: list[dict[str, Any]], **more: Any) -> Findings:
    """What an audit finds in these messages."""
    source = write(path / "here", rows)
    result = audit(spark, AuditSettings(source=source, output=str(path / "out"), **more))
    assert result.run.status == "done"
    found = Findings.from_table(result.tables["findings"])
    assert result.good == found.clean
    return found


def compared(
    spark: SparkSession, path: Path, here: list[dict[str, Any]], there: list[dict[str, Any]],
    **more: Any,
) -> Findings:  # fmt: skip
    """What an audit finds that compares two sources, and checks nothing else."""
    other = write(path / "there", there)
    return run(spark, path, here, checks=(), other=other, **more)


def told(found: Findings) -> list[tuple[Any, ...]]:
    return [(f.finding, f.queue_id, f.first, f.last, f.count) for f in found]


def queue(count: int, queue_id: int = 0, **more: Any) -> list[dict[str, Any]]:
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


def test_nothing_is_found_in_queues_that_are_whole(spark: SparkSession, tmp_path: Path) -> None:
    packed = compress(b"a body that was sent compressed" * 9)
    rows = [*queue(20), *queue(20, 1), message(500, packed, queue_id=2, sys_flag=0x301)]
    for row in queue(3, 3):
        rows.append(row | {"queue_offset": row["queue_offset"] + 1_000})

    found = run(spark, tmp_path, rows)

    assert list(found) == []
    assert "Everything is as it should be" in (tmp_path / "out" / "report.html").read_text()


def test_faults_of_queues_are_found_with_their_ranges(spark: SparkSession, tmp_path: Path) -> None:
    whole, gap, twice, back, crc, order = (queue(10, number) for number in range(6))
    del gap[3:6]
    twice.append(twice[4] | {"body": b"another", "body_crc": crc32(b"another") & 0x7FFFFFFF})
    back[5]["store_timestamp"] = START - timedelta(seconds=7)
    crc[6]["body_crc"] += 1
    order[8]["phy_offset"] = 100
    rows = [*whole, *gap, *twice, *back, *crc, *order]

    found = run(spark, tmp_path, rows)

    assert sorted(told(found)) == [
        ("checksum", 4, 6, 6, 1),
        ("clock-back", 3, 5, 5, 1),
        ("gap", 1, 3, 5, 3),
        ("log-order", 5, 8, 8, 1),
        ("repeated-offset", 2, 4, 4, 1),
    ]
    [gap_found] = found.of("gap")
    assert (gap_found.severity, gap_found.topic) == (Severity.ERROR, "orders")
    assert json.loads(gap_found.evidence or "")["queue_offset_before"] == 2


def test_a_message_that_is_there_twice_is_told_from_a_batch_with_one_id(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = queue(10)
    rows[7] |= {"msg_id": rows[2]["msg_id"], "body": rows[2]["body"]}
    rows[7]["body_crc"] = rows[2]["body_crc"]
    for number in (4, 5):
        rows[number]["msg_id"] = "ONE ID OF A BATCH"
    rows += [row | {"topic": "%RETRY%g", "msg_id": "tried again"} for row in queue(2)]

    found = run(spark, tmp_path, rows)

    [copy] = found
    assert (copy.finding, copy.count, copy.first) == ("duplicate", 2, 2)
    assert json.loads(copy.evidence or "")["last_offset"] == 7


def transactional() -> list[dict[str, Any]]:
    """Six half messages; 1 is open and old, 5 is open and young; 9 is ended and never was."""
    now = datetime.now(UTC)
    halves = [
        message(n, topic=HALF_TOPIC, store_timestamp=now - timedelta(hours=1))
        | {"properties": {"PGROUP": "payers", "REAL_TOPIC": "orders"}}
        for n in range(1, 7)
    ]
    halves[4]["store_timestamp"] = now
    bodies = [b"2", b"3,4,", b"6", b"9", b"0"]
    ends = [message(n, body, topic=OP_HALF_TOPIC, tags="d") for n, body in enumerate(bodies)]
    return [*halves, *ends]


def test_half_messages_without_an_end_and_ends_without_a_half_are_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = run(spark, tmp_path, transactional())

    assert {(f.finding, f.severity, f.first, f.topic) for f in found} == {
        ("half-without-end", Severity.WARNING, 1, "orders"),
        ("half-without-end", Severity.NOTE, 5, "orders"),
        ("end-without-half", Severity.ERROR, 9, HALF_TOPIC),
    }, "0 was ended long ago and has expired"
    assert "payers" in found.of("half-without-end")[0].text


def test_a_transaction_that_was_committed_twice_is_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [row | {"sys_flag": 8, "prepared_offset": 900 + n} for n, row in enumerate(queue(4))]
    rows[3]["prepared_offset"] = 901

    found = run(spark, tmp_path, rows)

    assert told(found) == [("committed-twice", 0, 1, 1, 2)]


def test_a_replica_is_the_same_lags_behind_or_has_lost_something(
    spark: SparkSession, tmp_path: Path
) -> None:
    same, lagging, expired, lost, changed, gone = (queue(20, number) for number in range(6))
    there = [dict(row) for row in (*same, *lagging[:15], *expired[4:], *lost, *changed)]
    there = [r for r in there if not (r["queue_id"] == 3 and 8 <= r["queue_offset"] <= 10)]
    for row in there:
        if row["queue_id"] == 4 and row["queue_offset"] == 6:
            row |= {"body": b"tampered", "properties": {"a": "1"}}
    here = [*same, *lagging, *expired, *lost, *changed, *gone]

    found = compared(spark, tmp_path, here, there)

    assert {(f.finding, f.severity, f.queue_id, f.first, f.last, f.count) for f in found} == {
        ("behind-there", Severity.WARNING, 1, 15, 19, 5),
        ("expired-there", Severity.NOTE, 2, 0, 3, 4),
        ("missing-there", Severity.ERROR, 3, 8, 10, 3),
        ("differs", Severity.ERROR, 4, 6, 6, 1),
        ("missing-there", Severity.ERROR, 5, 0, 19, 20),
    }
    assert "body, properties" in found.of("differs")[0].text


def test_equal_sources_are_equal_whatever_the_name_of_their_only_broker(
    spark: SparkSession, tmp_path: Path
) -> None:
    here = [*queue(20), *queue(20, 1)]
    there = [row | {"broker_name": None} for row in reversed(here)]

    assert list(compared(spark, tmp_path, here, there)) == []


def test_columns_that_may_differ_are_left_out_of_the_comparison(
    spark: SparkSession, tmp_path: Path
) -> None:
    here = queue(5)
    there = [row | {"store_timestamp": START + timedelta(days=1)} for row in here]

    strict = compared(spark, tmp_path / "strict", here, there)
    lenient = compared(spark, tmp_path / "lenient", here, there, ignore=("store_timestamp",))

    assert told(strict) == [("differs", 0, 0, 4, 5)]
    assert list(lenient) == []


def test_a_null_is_not_taken_for_the_same_value_in_the_next_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    here = [row | {"tags": "x", "keys": None} for row in queue(3)]
    there = [row | {"tags": None, "keys": "x"} for row in here]

    assert told(compared(spark, tmp_path, here, there)) == [("differs", 0, 0, 2, 3)]


def test_another_cluster_is_compared_by_what_messages_were_at_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    """There, messages have other places, new ids, and properties that say where they are from."""
    told = {"color": "red", "WAIT": "true", "PGROUP": "payers", "__SHARDINGKEY": "a buyer"}
    here = [row | {"properties": told} for row in queue(30)]
    there = []
    for row in reversed(here):
        again = {"ORIGIN_MSG_ID": row["msg_id"], "REPLAY_JOB": "j", "color": "red"}
        again["__SHARDINGKEY"] = "b-b-0"
        there.append(
            row
            | {"topic": "copies", "queue_id": 3, "msg_id": "NEW" + row["msg_id"]}
            | {"properties": again, "queue_offset": 100 - row["queue_offset"]}
        )
    whole = compared(
        spark, tmp_path / "a", here, there, compare="key", map_topics=("orders=copies",)
    )
    there[0] |= {"body": b"tampered"}
    del there[5]
    there += [dict(there[9]), there[10] | {"properties": {}, "msg_id": "a stranger"}]

    found = compared(
        spark, tmp_path / "b", here, there, compare="key", map_topics=("orders=copies",)
    )

    assert list(whole) == []
    assert {(f.finding, f.topic, f.count) for f in found} == {
        ("differs", "copies", 1),
        ("missing-there", "copies", 1),
        ("missing-here", "copies", 1),
        ("more-often-there", "copies", 1),
    }


def test_settings_that_contradict_each_other_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    def refused(text: str, **settings: Any) -> None:
        with pytest.raises(ConfigError, match=text):
            audit(spark, AuditSettings(**{"source": "log:x", "output": str(tmp_path), **settings}))

    refused("checks=spelling: expected some of queues", checks=("spelling",))
    refused("map_topics=a: expected here=there", map_topics=("a",), compare="key")
    refused("by key only", map_topics=("a=b",))
    refused("expected brokers:HOST:PORT", source="kafka:x")
    refused("no output", output="")
    assert not list(tmp_path.iterdir()), "nothing was begun"


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_log_of_a_real_broker_is_whole_and_equal_to_its_copy(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    for name in ("here", "there"):
        unpack_store(f"{version}-main", tmp_path / name)
    expected = json.loads((STORES / f"{version}-main.json").read_text())["messages"]
    settings = AuditSettings(
        source=f"log:{tmp_path / 'here' / 'store'}",
        other=f"log:{tmp_path / 'there' / 'store'}",
        output=str(tmp_path / "out"),
    )

    result = audit(spark, settings)

    found = Counter(f.finding for f in Findings.from_table(result.tables["findings"]))
    assert set(found) <= {"half-without-end"}, found
    assert found["half-without-end"] == 1, "one transaction was left open"
    queues = {(q["topic"], q["queue_id"]): q for q in result.tables["queues"].to_pylist()}
    normal = [row for row in expected if row["topic"] == "TopicNormal"]
    assert sum(q["messages"] for (topic, _), q in queues.items() if topic == "TopicNormal") == len(
        normal
    )
    assert result.run.counts["different"] == 0


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_an_archive_is_equal_to_its_log_until_a_range_is_lost(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    store, kept = str(unpack_store(f"{version}-main", tmp_path)), str(tmp_path / "archive")
    archive(None, ArchiveSettings(store=store, to=kept, range_bytes=100_000, closed=True))
    settings = AuditSettings(
        source=f"log:{store}", other=f"archive:{kept}", output=str(tmp_path / "out"), checks=()
    )

    whole = audit(spark, settings)
    manifest = Manifest(open_folder(kept))
    lost = next(e for e in manifest.entries() if {f.topic for f in e.files} == {"TopicNormal"})
    [entry] = (tmp_path / "archive" / "_manifest").rglob(f"{lost.start:020d}-*.json")
    entry.unlink()
    holed = audit(spark, settings)

    assert whole.run.counts["different"] == 0
    assert whole.run.counts["compared"] > 10
    assert whole.good
    found = Findings.from_table(holed.tables["findings"])
    assert sum(f.count for f in found) == lost.rows
    assert {f.topic for f in found} == {"TopicNormal"}
    assert {f.finding for f in found} <= {"missing-there", "expired-there", "behind-there"}


def test_a_byte_that_flipped_in_a_log_is_found(spark: SparkSession, tmp_path: Path) -> None:
    unpack_store("5.3.3-main", tmp_path)
    expected = json.loads((STORES / "5.3.3-main.json").read_text())["messages"]
    row = expected[100]
    [first, *_] = sorted((tmp_path / "store" / "commitlog").iterdir())
    with first.open("r+b") as file:
        file.seek(row["physical_offset"] + 88 + 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0xFF]))

    result = audit(
        spark, AuditSettings(source=f"log:{tmp_path / 'store'}", output=str(tmp_path / "out"))
    )

    found = Findings.from_table(result.tables["findings"])
    [damaged] = [f for f in found if f.finding in ("damaged-record", "checksum")]
    assert json.loads(damaged.evidence or "")["phy_offset"] == row["physical_offset"]
    assert not result.good


def test_findings_beyond_the_limit_are_still_counted(spark: SparkSession, tmp_path: Path) -> None:
    rows = [row for row in queue(60) if row["queue_offset"] % 2]

    source = write(tmp_path / "here", rows)
    result = audit(spark, AuditSettings(source=source, output=str(tmp_path / "out"), rows_max=10))

    assert len(Findings.from_table(result.tables["findings"]).of("gap")) == 10
    assert result.run.counts["missing"] == 29
    assert isinstance(next(iter(Findings.from_table(result.tables["findings"]))), Finding)
