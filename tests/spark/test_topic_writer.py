"""The writer of one partition, without Spark, on real clusters."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from servers import Cluster, connect, new_topic

from cometmq.client.blocking import AdminClient
from cometmq.model.message import StoredMessage
from cometmq.spark.brokers import connect as session_of
from cometmq.spark.errors import RowError
from cometmq.spark.options.writing import TopicWriteOptions
from cometmq.spark.sink import Origin, Sent, TopicWriter
from support.runner.tiers import new_seed, rounds
from support.spark.attempts import ROWS, Attempt, bodies_of
from support.spark.topic_audit import Audit, first_ones, order_by_key, stored, unique_key_of
from support.wire.unique_ids import unique_id_time_ms

pytestmark = pytest.mark.long_elsewhere

ORIGIN = Origin("job", 4, 1)
MIB = 1 << 20


def batches_of(*columns: dict[str, list[Any]]) -> Iterator[pa.RecordBatch]:
    for each in columns:
        yield pa.record_batch(each)


def write(
    batches: Iterator[pa.RecordBatch], name_servers: str, topic: str = "", **options: Any
) -> Sent:
    parsed = TopicWriteOptions(name_servers=name_servers, topic=topic, **options)
    return TopicWriter(session_of(parsed), parsed, ORIGIN).write(batches)


def numbered(count: int, *, size: int = 100, keys: int = 16) -> Iterator[pa.RecordBatch]:
    for batch in range(count):
        rows = range(batch * size, (batch + 1) * size)
        yield pa.record_batch(
            {"body": [str(row) for row in rows], "sharding_key": [f"k{row % keys}" for row in rows]}
        )


def all_of(queues: dict[Any, list[StoredMessage]]) -> list[StoredMessage]:
    return [message for found in queues.values() for message in found]


def audited(name_servers: str, topic: str, count: int) -> Audit:
    """Look for the numbers below ``count``."""
    rows = list(map(str, range(count)))
    return Audit.of(rows, all_of(stored(name_servers, topic, rows=rows)))


def test_record_batches_share_requests(name_servers: str, topic: str) -> None:
    sent = write(numbered(50), name_servers, topic)
    assert (sent.rows, sent.retries) == (5000, 0)
    assert sent.requests <= 4, "one for each queue"
    audited(name_servers, topic, 5000).check()


def test_small_requests_and_little_room_lose_and_reorder_nothing(
    name_servers: str, topic: str
) -> None:
    options = {"batch_bytes": 2048, "pending_bytes": MIB, "pending_max": 2}
    sent = write(numbered(60), name_servers, topic, **options)
    assert sent.requests > 100
    queues = stored(name_servers, topic, count=6000)
    Audit.of(map(str, range(6000)), all_of(queues)).check()
    for bodies in order_by_key(queues, lambda m: m.properties["__SHARDINGKEY"]).values():
        assert [int(body) for body in bodies] == sorted(map(int, bodies))


def test_rows_without_a_key_are_spread_over_queues_and_brokers(
    name_servers: str, topic: str
) -> None:
    batches = (batch.select(["body"]) for batch in numbered(40))
    write(batches, name_servers, topic, batch_bytes=4096)
    queues = stored(name_servers, topic, count=4000)
    assert all(queues.values()), "no queue is left out"
    Audit.of(map(str, range(4000)), all_of(queues)).check()


def test_a_body_of_four_mebibytes_is_taken(name_servers: str, topic: str) -> None:
    bodies = [b"small", b"x" * 4 * MIB, b"behind"]
    keys = ["k"] * 3
    write(batches_of({"body": bodies, "sharding_key": keys}), name_servers, topic)
    (found,) = [found for found in stored(name_servers, topic, count=3).values() if found]
    assert [message.body for message in found] == bodies


def test_a_topic_that_does_not_exist_is_made_where_brokers_do_that(
    cluster: Cluster, name_servers: str
) -> None:
    topic = f"made-{id(object()):x}"
    write(numbered(1), name_servers, topic)
    audited(name_servers, topic, 100).check()


def test_what_came_before_a_bad_row_may_be_stored_and_nothing_behind_it(
    name_servers: str, topic: str
) -> None:
    batches = batches_of({"body": ["a"]}, {"body": ["b", None]}, {"body": ["c"]})
    with pytest.raises(RowError, match="row 2 of partition 1, batch 4 of job job: body is null"):
        write(batches, name_servers, topic)
    assert {message.body for message in all_of(stored(name_servers, topic))} <= {b"a"}


def test_a_task_that_is_repeated_after_half_of_it_repeats_the_keys(
    name_servers: str, topic: str
) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from numbered(20)
        raise OSError("the task dies")

    with pytest.raises(OSError, match="the task dies"):
        write(broken(), name_servers, topic, batch_bytes=1024, delivery="at-least-once")
    write(numbered(40), name_servers, topic, delivery="at-least-once")
    audit = audited(name_servers, topic, 4000)
    audit.check()
    assert audit.repeated > 0


def test_an_attempt_that_is_killed_leaves_at_most_its_rows_a_second_time(
    name_servers: str, topic: str
) -> None:
    """What is printed measures how many rows a killed task repeats without a producer session."""
    choice = random.Random(new_seed())
    tasks = rounds(test=2, long=50)
    for task in range(tasks):
        seeds = choice.randrange(1 << 30), choice.randrange(1 << 30)
        killed = Attempt(name_servers, topic, task, seeds[0], "at-least-once")
        time.sleep(choice.uniform(0, 0.5))  # the moment is what is random
        killed.send(signal.SIGKILL)
        killed.join()
        assert Attempt(name_servers, topic, task, seeds[1], "at-least-once").join() == 0
    wanted = [body for task in range(tasks) for body in bodies_of(task)]
    audit = Audit.of(wanted, all_of(stored(name_servers, topic, rows=wanted)))
    print(f"{tasks} tasks of {ROWS} rows, each killed once: {audit.repeated} rows repeated")
    audit.check()
    assert audit.repeated <= len(wanted)


def test_a_write_outlives_the_death_of_its_broker(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster()
    connection = connect(cluster.broker)
    topic = new_topic(cluster, connection)
    connection.close()
    under_way = threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(numbered(60)):
            if number == 20:
                under_way.set()
            yield batch

    small = {"batch_bytes": 1024, "pending_bytes": MIB}
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(write, batches(), cluster.namesrv, topic, **small)
        assert under_way.wait(20)
        cluster.kill_broker()
        cluster.start_broker()
        sent = writing.result(60)
    rows = list(map(str, range(6000)))
    queues = stored(cluster.namesrv, topic, rows=rows)
    assert sent.rows == 6000
    Audit.of(rows, all_of(queues)).check()
    careful = {queue: first_ones(found) for queue, found in queues.items()}
    for bodies in order_by_key(careful, lambda m: m.properties["__SHARDINGKEY"]).values():
        assert [int(body) for body in bodies] == sorted(map(int, bodies))


def test_a_row_can_be_found_by_its_made_key_as_tools_look_for_it(
    name_servers: str, topic: str
) -> None:
    """Tools search from the time in an id on; a made key says the first of the month."""
    write(numbered(1, size=3), name_servers, topic)
    messages = all_of(stored(name_servers, topic, count=3))
    assert len(messages) == 3
    (key,) = (unique_key_of(message) for message in messages if message.body == b"2")
    now_ms = time.time_ns() // 1_000_000
    begin_ms = unique_id_time_ms(key, now_ms=now_ms) - 1000
    with AdminClient(name_servers) as admin:
        deadline = time.monotonic() + 10
        found: list[StoredMessage] = []
        while not found and time.monotonic() < deadline:  # RocketMQ's index is filled behind
            found = admin.messages_by_key(topic, key, begin=begin_ms, unique_id=True)
    assert [(message.body, unique_key_of(message)) for message in found] == [(b"2", key)]
