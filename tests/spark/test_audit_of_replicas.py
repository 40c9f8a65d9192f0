"""A replica that follows its master is audited against it: equal, behind, and equal again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.spark.pipelines.audit import AuditSettings, audit
from support.brokers.replicas import Pair, running_pair
from support.runner.versions import VERSIONS
from support.spark.spark_kills import topic_of
from support.spark.spark_topics import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cometmq.spark.pipelines.running.registry import Result

pytestmark = [
    pytest.mark.only_on(*VERSIONS),
    pytest.mark.long_on("5.3.3"),
    pytest.mark.local_only,
]


@pytest.fixture
def pair(target: str, tmp_path: Path) -> Iterator[Pair]:
    with running_pair(target, tmp_path) as running:
        yield running


class Audits:
    """Audits of a master against its replica, while both run."""

    def __init__(self, spark: SparkSession, pair: Pair, folder: Path) -> None:
        self._spark = spark
        self._pair = pair
        self._folder = folder
        self._count = 0

    def by_log(self, *topics: str) -> Result:
        """What is found where both are read through their files."""
        return self._of(f"log:{self._pair.master.store}", topics)

    def by_broker(self, *topics: str) -> Result:
        """What is found where the master is asked."""
        return self._of(f"brokers:{self._pair.master.namesrv}", topics)

    def _of(self, source: str, topics: tuple[str, ...]) -> Result:
        self._count += 1
        settings = AuditSettings(
            source=source,
            other=f"log:{self._pair.replica.store}",
            topics=topics,
            checks=(),
            output=str(self._folder / f"audit-{self._count}"),
        )
        return audit(self._spark, settings)


def told(result: Result) -> set[tuple[Any, ...]]:
    names = ("finding", "severity", "topic", "queue_id", "first", "last", "count")
    return {tuple(row[name] for name in names) for row in result.tables["findings"].to_pylist()}


def sizes(result: Result) -> list[tuple[int, int]]:
    """How many messages there are of each queue, here and there."""
    rows = result.tables["compared"].to_pylist()
    return sorted((row["messages_here"], row["messages_there"]) for row in rows)


def test_a_replica_is_behind_while_it_is_away_and_equal_when_it_has_caught_up(
    spark: SparkSession, pair: Pair, tmp_path: Path
) -> None:
    audits = Audits(spark, pair, tmp_path)
    orders, late = topic_of(pair.master), topic_of(pair.master)
    fill(pair.master.namesrv, orders, {0: 40, 1: 25, 3: 5})
    pair.await_copy([orders, late])
    equal = audits.by_log(orders, late)
    assert (told(equal), equal.good) == (set(), True)
    assert sizes(equal) == [(5, 5), (25, 25), (40, 40)]

    pair.replica.kill()
    fill(pair.master.namesrv, orders, {0: 7, 2: 4})
    fill(pair.master.namesrv, late, {1: 3})
    behind = audits.by_broker(orders, late)
    assert told(behind) == {
        ("behind-there", "warning", orders, 0, 40, 46, 7),
        ("missing-there", "error", orders, 2, 0, 3, 4),
        ("missing-there", "error", late, 1, 0, 2, 3),
    }
    assert not behind.good

    pair.replica.start()
    pair.await_copy([orders, late])
    again = audits.by_log(orders, late)
    assert (told(again), again.good) == (set(), True)
    assert sizes(again) == [(3, 3), (4, 4), (5, 5), (25, 25), (47, 47)]
