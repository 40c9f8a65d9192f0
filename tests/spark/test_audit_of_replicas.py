"""A replica that follows its master is audited against it: equal, behind, and equal again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.spark import checks
from support.brokers.replicas import Pair, running_pair
from support.runner.versions import VERSIONS
from support.spark.spark_kills import topic_of
from support.spark.spark_topics import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    """Comparisons of a master with its replica, while both run.

    Args:
        spark: the session.
        pair: the master and the replica.
        topics: the topics to compare.
    """

    def __init__(self, spark: SparkSession, pair: Pair, *topics: str) -> None:
        self._spark = spark
        self._pair = pair
        self._topics = ",".join(topics)

    def by_log(self) -> set[tuple[Any, ...]]:
        """What is found where both are read through their files."""
        return self._of(self._log(self._pair.master.store))

    def by_broker(self) -> set[tuple[Any, ...]]:
        """What is found where the master is asked."""
        reader = self._spark.read.format("rocketmq").option("includeProperties", True)
        reader = reader.option("nameServer", self._pair.master.namesrv)
        return self._of(reader.option("subscribe", self._topics).load())

    def _of(self, here: DataFrame) -> set[tuple[Any, ...]]:
        there = self._log(self._pair.replica.store)
        found = checks.compare(here, there).select("finding", "topic", "queue_id", "queue_offset")
        return {tuple(row) for row in found.collect()}

    def _log(self, store: Path) -> DataFrame:
        reader = self._spark.read.format("rocketmq-log").option("includeProperties", True)
        return reader.option("subscribe", self._topics).load(str(store))


def expected(finding: str, topic: str, queue_id: int, offsets: range) -> set[tuple[Any, ...]]:
    return {(finding, topic, queue_id, offset) for offset in offsets}


def test_a_replica_is_behind_while_it_is_away_and_equal_when_it_has_caught_up(
    spark: SparkSession, pair: Pair
) -> None:
    orders, late = topic_of(pair.master), topic_of(pair.master)
    audits = Audits(spark, pair, orders, late)
    fill(pair.master.namesrv, orders, {0: 40, 1: 25, 3: 5})
    pair.await_copy([orders, late])
    assert audits.by_log() == set()

    pair.replica.kill()
    fill(pair.master.namesrv, orders, {0: 7, 2: 4})
    fill(pair.master.namesrv, late, {1: 3})
    assert audits.by_broker() == (
        expected("behind-there", orders, 0, range(40, 47))
        | expected("behind-there", orders, 2, range(4))
        | expected("behind-there", late, 1, range(3))
    )

    pair.replica.start()
    pair.await_copy([orders, late])
    assert audits.by_log() == set()
