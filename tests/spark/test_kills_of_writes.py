"""A stream into a topic, while its workers, its driver and the broker are killed at random."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from servers import Cluster

from support.spark.spark_kills import ON_EVERY_SPARK, kill_at_random, newest_batch, topic_of
from support.spark.topic_audit import Audit, first_ones, order_by_key, stored

LINES, KEYS, AHEAD = 600, 12, 3


class Source:
    """Text files whose lines are numbered, a few more than the stream has read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checkpoint = folder.parent / "checkpoint" / "commits"
        self._files = 0
        self._first_s = int(time.time()) - 3600
        folder.mkdir(parents=True)

    @property
    def lines(self) -> list[str]:
        """All lines of all files."""
        return [line for number in range(self._files) for line in self._lines(number)]

    def feed(self) -> None:
        """Add files until the stream has enough ahead of it."""
        done = newest_batch(self._checkpoint) + 1
        while self._files < done + AHEAD:
            ready = self._folder / f".{self._files}"
            ready.write_text("".join(f"{line}\n" for line in self._lines(self._files)))
            os.utime(ready, (self._first_s + self._files,) * 2)  # Spark reads the oldest first
            ready.rename(self._folder / f"{self._files:06}.txt")
            self._files += 1

    def batches(self) -> dict[int, int]:
        """The micro-batch of each file, as the checkpoint has it.

        It is one file a batch. But if the driver is killed when Spark has noted the file of the
        next batch, and not the batch, Spark takes that file and the one after it together.
        """
        files: dict[int, int] = {}
        for path in sorted((self._checkpoint.parent / "sources" / "0").glob("[0-9]*")):
            for line in path.read_text().splitlines()[1:]:
                entry = json.loads(line)
                files[entry["batchId"]] = int(Path(entry["path"]).stem)
        found: dict[int, int] = {}
        first = 0
        for path in sorted(self._checkpoint.with_name("offsets").glob("[0-9]*"), key=_number):
            last = json.loads(path.read_text().splitlines()[2])["logOffset"]
            found |= {files[noted]: _number(path) for noted in range(first, last + 1)}
            first = last + 1
        return found

    @staticmethod
    def _lines(number: int) -> list[str]:
        first = number * LINES
        return [f"k{row % KEYS},{row}" for row in range(first, first + LINES)]


@pytest.mark.long
@pytest.mark.long_elsewhere
@ON_EVERY_SPARK
def test_nothing_is_lost_and_twins_have_one_key_however_a_stream_is_killed(
    where: str, make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster()
    topic = topic_of(cluster)
    source = Source(tmp_path / "stream" / "source")
    count = kill_at_random("to-topic", tmp_path / "stream", where, cluster, topic, source.feed)

    queues = stored(cluster.namesrv, topic, rows=source.lines)
    messages = [message for found in queues.values() for message in found]
    audit = Audit.of(source.lines, messages)
    print(f"{len(messages)} messages, {audit.repeated} of them repeated")
    audit.check()
    assert audit.repeated or count < 15, "no kill hit anything that was under way"
    without_twins = {queue: first_ones(found) for queue, found in queues.items()}
    order = order_by_key(without_twins, lambda message: message.properties["__SHARDINGKEY"])
    batch_of = source.batches()
    for key, bodies in order.items():
        numbers = [int(body.partition(",")[2]) for body in bodies]
        batches = [batch_of[number // LINES] for number in numbers]
        assert batches == sorted(batches), f"{key} is out of order"
        for file in batch_of:  # files of one batch are written side by side
            own = [number for number in numbers if number // LINES == file]
            assert own == sorted(own), f"{key} is out of order in file {file}"


TWO_HOSTS = pytest.mark.parametrize(
    "where", [pytest.param("two hosts", marks=pytest.mark.standalone_only)]
)


@pytest.mark.long
@pytest.mark.long_elsewhere
@pytest.mark.only_on("comet")
@TWO_HOSTS
def test_each_row_is_stored_once_however_a_shuffled_stream_is_killed(
    where: str, make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    """With speculation, and without a reader that drops duplicates."""
    assert _killed("once", where, make_cluster(), tmp_path).repeated == 0


@pytest.mark.long
@pytest.mark.long_elsewhere
@TWO_HOSTS
def test_at_least_once_a_killed_shuffled_stream_repeats_rows_and_loses_none(
    where: str, make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    """What is printed measures what exactly once is worth, also on brokers of RocketMQ."""
    _killed("again", where, make_cluster(), tmp_path)


def _killed(program: str, where: str, cluster: Cluster, tmp_path: Path) -> Audit:
    topic, folder = topic_of(cluster), tmp_path / "stream"
    source = Source(folder / "source")
    kills = int(os.environ.get("COMETMQ_ONCE_KILLS", "20"))
    kill_at_random(program, folder, where, cluster, topic, source.feed, kills=kills)
    queues = stored(cluster.namesrv, topic, rows=source.lines)
    messages = [message for found in queues.values() for message in found]
    audit = Audit.of(source.lines, messages)
    logs = "".join(log.read_text(errors="replace") for log in folder.rglob("stderr"))
    fenced = logs.count("waiting to be killed")
    print(f"{len(messages)} messages, {audit.repeated} repeated, {fenced} attempts fenced")
    audit.check()
    return audit


def _number(path: Path) -> int:
    return int(path.name)
