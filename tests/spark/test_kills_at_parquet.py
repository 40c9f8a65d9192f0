"""A stream from a topic to Parquet, while workers, the driver and the broker are killed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from servers import Cluster

from cometmq.client.blocking import Producer
from cometmq.model.errors import CometError
from cometmq.model.message import Message
from support.spark.spark_kills import ON_EVERY_SPARK, kill_at_random, newest_batch, topic_of
from support.spark.spark_program import ROWS_PER_TRIGGER
from support.spark.topic_audit import stored

BATCH, AHEAD, BODY_BYTES = 250, 3, 2_000


class Sender:
    """Sends numbered messages, some batches more than the stream has read."""

    def __init__(self, producer: Producer, topic: str, checkpoint: Path) -> None:
        self._producer = producer
        self._topic = topic
        self._commits = checkpoint / "commits"
        self._sent = 0

    def feed(self) -> None:
        """Send until the stream has enough ahead of it; what fails may be stored all the same."""
        done = newest_batch(self._commits) + 1
        while self._sent < (done + AHEAD) * ROWS_PER_TRIGGER:
            bodies = [b"%0*d" % (BODY_BYTES, self._sent + number) for number in range(BATCH)]
            messages = [Message(topic=self._topic, body=body) for body in bodies]
            with contextlib.suppress(CometError):
                self._producer.send_batch(messages)
                self._sent += BATCH


@pytest.mark.long_elsewhere
@ON_EVERY_SPARK
def test_every_message_is_in_the_files_exactly_once_however_a_stream_is_killed(
    where: str, make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster()
    topic = topic_of(cluster)
    folder = tmp_path / "stream"
    folder.mkdir()
    with Producer(cluster.namesrv, group="kills") as producer:
        sender = Sender(producer, topic, folder / "checkpoint")
        count = kill_at_random("to-parquet", folder, where, cluster, topic, sender.feed)

    rows = pq.read_table(folder / "seen.parquet").to_pylist()
    seen = Counter((row["queue_id"], row["queue_offset"], row["body"]) for row in rows)
    there = Counter(
        (queue, message.queue_offset, message.body)
        for (_, queue), messages in stored(cluster.namesrv, topic, count=len(rows)).items()
        for message in messages
    )
    print(f"{len(there)} messages, {len(rows)} rows")
    assert len(there) > count * ROWS_PER_TRIGGER, "too few to show anything"
    assert not there - seen, f"not in the files: {list((there - seen).items())[:3]}"
    assert not seen - there, f"there too often: {list((seen - there).items())[:3]}"
