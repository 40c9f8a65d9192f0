"""The Spark benchmark gives no rate for a query that returns or writes another number of rows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import kit
import pytest
from wire import Connection

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import spark_subjects
from spark_data import TOPICS, make_parquet, make_store, messages_of
from spark_subjects import CPU_LOADS, OF_BROKERS, OF_FILES, Bench, CountError, Subject, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.local_only

COUNT = 2000
QUEUES = 4
RATES_OF_FILES = [each for each in OF_FILES if each.unit != "ms"]
NAMES = ("topic", "topic-properties", "topic-cpu", "topic-cpu-properties")
SCANS_OF_TOPICS = [each for each in OF_BROKERS if each.name in NAMES]
WRITE = next(each for each in OF_BROKERS if each.name == "write")
EVENTS = next(each for each in OF_BROKERS if each.name == "topic-events")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log and its Parquet copy."""
    folder = tmp_path_factory.mktemp("bench")
    make_store(folder / "store", COUNT)
    make_store(folder / "json-store", COUNT, json_bodies=True)
    make_parquet(folder / "parquet", folder / "store")
    return folder


@pytest.fixture
def bench(spark: SparkSession, made: Path) -> Bench:
    return Bench(spark, made, COUNT)


@pytest.fixture
def served(
    bench: Bench, name_servers: str, broker: Connection, make_topic: Callable[..., str]
) -> Bench:
    """The same with two topics of a broker."""
    return replace(
        bench,
        name_servers=name_servers,
        topic=make_topic(queues=QUEUES),
        writes=make_topic(queues=QUEUES),
        topic_count=lambda topic: sum(
            kit.max_offset(broker, topic, queue) for queue in range(QUEUES)
        ),
    )


def measured(subject: Subject, bench: Bench) -> float:
    assert subject.measure is not None
    return subject.measure(bench)


def test_the_topics_share_the_messages() -> None:
    assert sum(messages_of(topic, COUNT) for topic in TOPICS) == COUNT


@pytest.mark.long
@pytest.mark.parametrize("subject", RATES_OF_FILES, ids=lambda subject: subject.name)
def test_a_rate_of_files_counts_the_rows(subject: Subject, bench: Bench) -> None:
    assert measured(subject, bench) > 0
    with pytest.raises(CountError, match="rows returned or written"):
        measured(subject, replace(bench, messages=2 * COUNT))


def test_a_rate_of_a_topic_counts_the_rows(served: Bench) -> None:
    fill(served)
    for subject in SCANS_OF_TOPICS:
        assert measured(subject, served) > 0
        with pytest.raises(CountError, match=f"met ({COUNT}|{CPU_LOADS * COUNT}) rows"):
            measured(subject, replace(served, messages=COUNT + 1))


def test_a_topic_that_has_another_message_is_not_read(served: Bench, broker: Connection) -> None:
    kit.store_many(broker, served.topic, 1)
    with pytest.raises(CountError, match=f"met {COUNT + 1} messages in topic"):
        fill(served)


def test_a_rate_of_a_write_counts_the_messages(
    served: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measured(WRITE, served) > 0
    assert served.topic_count(served.writes) == COUNT
    monkeypatch.setattr(spark_subjects, "QUEUES_FILLED_WITHIN_S", 0.0)
    with pytest.raises(CountError, match="rows returned or written"):
        measured(WRITE, replace(served, numbers={"some": COUNT + 1}))


@pytest.mark.long
def test_events_are_timed_until_their_rows_are_written(
    served: Bench, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("EVENT_GAPS_S", (0.0, 0.1)), ("WARM_BATCHES", 2), ("BATCHES", 3)):
        monkeypatch.setattr(spark_subjects, name, value)

    assert measured(EVENTS, replace(served, events=make_topic(queues=1))) > 0
