"""Messages and bytes by topic, tag, day and producer add up."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.model.topic import is_system_topic
from cometmq.spark.pipelines.findings.rows import Findings
from cometmq.spark.pipelines.usage import WAYS, UsageSettings, usage
from support.spark.message_frames import START, message, write
from support.wire.recorded import STORES, unpack_store

pytestmark = pytest.mark.long_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def messages() -> list[dict[str, Any]]:
    """Two days, two topics, two tags and none, three producers, one large message."""
    rows = [
        message(
            n,
            topic="orders" if n % 3 else "bills",
            tags=("paid", "sent", None)[n % 3],
            store_timestamp=START + timedelta(hours=n),
            store_size=100 + n,
            born_host=f"10.0.0.{n % 2}:{5000 + n}",
        )
        for n in range(24)
    ]
    rows[5] |= {"born_host": None, "msg_id": "0A000309" + "0" * 24}
    rows[6] |= {"store_size": 2 << 20}
    rows.append(message(99, topic="SCHEDULE_TOPIC_XXXX"))
    return rows


@pytest.fixture(scope="module")
def counted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The messages above, counted once."""
    folder = tmp_path_factory.mktemp("usage")
    settings = UsageSettings(source=write(folder / "m", messages()), output=str(folder / "out"))
    result = usage(spark, settings)
    rows = {name: table.to_pylist() for name, table in result.tables.items()}
    return {**rows, "result": result, "folder": folder}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_divide_adds_up_to_the_same(counted: dict[str, Any], way: str) -> None:
    expected = [row for row in messages() if row["topic"] != "SCHEDULE_TOPIC_XXXX"]

    assert sum(row["messages"] for row in counted[way]) == len(expected) == 24
    assert sum(row["bytes"] for row in counted[way]) == sum(row["store_size"] for row in expected)


def test_days_end_at_midnight_in_utc(counted: dict[str, Any]) -> None:
    assert [(row["day"], row["messages"]) for row in counted["by_day"]] == [
        (date(2026, 11, 21), 12),
        (date(2026, 11, 22), 12),
    ]


def test_days_are_those_of_utc_in_any_time_zone_of_the_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = "spark.sql.session.timeZone"
    settings = UsageSettings(source=write(tmp_path / "m", messages()), output=str(tmp_path / "out"))
    spark.conf.set(zone, "America/New_York")
    try:
        days = usage(spark, settings).tables["by_day"].to_pylist()
    finally:
        spark.conf.set(zone, "UTC")

    assert [(row["day"], row["messages"]) for row in days] == [
        (date(2026, 11, 21), 12),
        (date(2026, 11, 22), 12),
    ]


def test_a_producer_is_known_by_its_host_or_else_by_its_ids(counted: dict[str, Any]) -> None:
    counts: Counter[str] = Counter()
    for row in counted["by_producer"]:
        counts[row["producer"]] += row["messages"]

    assert counts == {"10.0.0.0": 12, "10.0.0.1": 11, "10.0.3.9": 1}


def test_tags_are_counted_within_their_topic(counted: dict[str, Any]) -> None:
    assert {(row["topic"], row["tags"]): row["messages"] for row in counted["by_tag"]} == {
        ("bills", "paid"): 8,
        ("orders", "sent"): 8,
        ("orders", "(none)"): 8,
    }


def test_topics_with_large_messages_are_noted(counted: dict[str, Any]) -> None:
    [found] = Findings.from_table(counted["result"].tables["findings"])

    assert (found.finding, found.topic, found.count) == ("large-messages", "bills", 1)
    assert counted["result"].good, "a note is no reason to worry"
    page = (counted["folder"] / "out" / "report.html").read_text()
    assert "Bytes per day" in page
    assert "10.0.3.9" in page


def test_only_messages_of_the_span_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    settings = UsageSettings(
        source=write(tmp_path / "m", messages()),
        output=str(tmp_path / "out"),
        since="2026-11-21T14:00",
        until=str(int(datetime(2026, 11, 21, 17, tzinfo=UTC).timestamp() * 1000)),
    )

    result = usage(spark, settings)

    assert result.run.counts["messages"] == 3, "of 14, 15 and 16 o'clock"


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_log_of_a_real_broker_is_counted_whole(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    store = unpack_store(f"{version}-main", tmp_path)
    known = json.loads((STORES / f"{version}-main.json").read_text())["messages"]
    settings = UsageSettings(source=f"log:{store}", output=str(tmp_path / "out"))

    result = usage(spark, settings)

    expected: Counter[str] = Counter()
    for row in known:
        if not is_system_topic(row["topic"]):
            expected[row["topic"]] += row["size"]
    found = {row["topic"]: row["bytes"] for row in result.tables["by_topic"].to_pylist()}
    assert found == expected
    assert {row["producer"] for row in result.tables["by_producer"].to_pylist()} == {
        row["born_host"].rpartition(":")[0] for row in known if not is_system_topic(row["topic"])
    }
