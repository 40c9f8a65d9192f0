"""Writes with ``exactly-once``: repeated attempts, zombies and lost responses, without Spark."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from servers import Cluster, connect, new_topic

from cometmq.spark.brokers import connect as session_of
from cometmq.spark.errors import FencedError, NotExactlyOnceError, RowError, SourceError
from cometmq.spark.options.writing import TopicWriteOptions
from cometmq.spark.sink import Origin, Sent, TopicWriter
from support.controllers.elected_processes import COMET, running_elected
from support.controllers.failover_load import TOPIC, create_topic
from support.runner.tiers import new_seed, rounds
from support.spark.attempts import Attempt, bodies_of
from support.spark.topic_audit import stored

pytestmark = [pytest.mark.long_elsewhere, pytest.mark.only_on("comet")]

ORIGIN = Origin("job", 4, 1)
SMALL = {"batch_bytes": 1024, "pending_bytes": 1 << 20}
ROWS = 100
LIMIT_S = 60.0


def write(
    batches: Iterator[pa.RecordBatch],
    name_servers: str,
    topic: str,
    origin: Origin = ORIGIN,
    **options: Any,
) -> Sent:
    values = {"delivery": "exactly-once", "topic": topic, **SMALL, **options}
    parsed = TopicWriteOptions(name_servers=name_servers, **values)
    return TopicWriter(session_of(parsed), parsed, origin).write(batches)


def rows(numbers: range, *, keys: int = 0) -> pa.RecordBatch:
    columns: dict[str, list[str]] = {"body": [str(number) for number in numbers]}
    if keys:
        columns["sharding_key"] = [f"k{number % keys}" for number in numbers]
    return pa.record_batch(columns)


def numbered(count: int, *, backwards: bool = False, keys: int = 0) -> Iterator[pa.RecordBatch]:
    starts = range(0, count, ROWS)
    for start in reversed(starts) if backwards else starts:
        yield rows(range(start, start + ROWS), keys=keys)


def bodies(name_servers: str, topic: str, count: int) -> list[int]:
    """The rows of a topic, sorted; waits until there are this many."""
    found = stored(name_servers, topic, count=count)
    return sorted(int(message.body) for queue in found.values() for message in queue)


def dying(batches: Iterator[pa.RecordBatch], after: int) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(batches):
        if number == after:
            raise OSError("the task dies")
        yield batch


@pytest.mark.parametrize("keys", [0, 5])
def test_a_repeated_task_stores_the_rest_in_any_order(
    name_servers: str, topic: str, keys: int
) -> None:
    for after in (5, 12):
        with pytest.raises(OSError, match="the task dies"):
            write(
                dying(numbered(3_000, backwards=after > 5, keys=keys), after), name_servers, topic
            )

    sent = write(numbered(3_000, backwards=True, keys=keys), name_servers, topic)
    again = write(numbered(3_000, keys=keys), name_servers, topic)

    assert bodies(name_servers, topic, 3_000) == list(range(3_000))
    assert sent.rows == again.rows == 3_000
    assert again.requests == 0


def test_equal_rows_are_stored_as_often_as_they_are_there(name_servers: str, topic: str) -> None:
    batch = pa.record_batch({"body": ["7"] * 5})
    with pytest.raises(OSError, match="the task dies"):
        write(dying(iter([batch, batch, batch]), 1), name_servers, topic, pending_max=1)

    write(iter([batch, batch, batch]), name_servers, topic)

    assert bodies(name_servers, topic, 15) == [7] * 15


def test_the_next_batch_and_other_partitions_are_written(name_servers: str, topic: str) -> None:
    for origin in (ORIGIN, ORIGIN._replace(batch=5), ORIGIN._replace(partition=2)):
        write(numbered(200), name_servers, topic, origin)
    assert bodies(name_servers, topic, 600) == sorted([*range(200)] * 3)

    with pytest.raises(FencedError, match="batch 4 is older than batch 5"):
        write(numbered(200), name_servers, topic, delivery_timeout_ms=100)


def test_a_zombie_stores_nothing_after_the_next_attempt_began(
    name_servers: str, topic: str
) -> None:
    under_way, goes_on = threading.Event(), threading.Event()

    def paused() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(numbered(4_000)):
            if number == 20:
                under_way.set()
                assert goes_on.wait(LIMIT_S)
            yield batch

    with ThreadPoolExecutor(1) as thread:
        zombie = thread.submit(write, paused(), name_servers, topic, delivery_timeout_ms=2_000)
        assert under_way.wait(LIMIT_S)
        write(numbered(4_000, backwards=True), name_servers, topic)
        goes_on.set()
        with pytest.raises(FencedError, match="partition 1, batch 4 of job job"):
            zombie.result(LIMIT_S)

    assert bodies(name_servers, topic, 4_000) == list(range(4_000))


def test_attempts_that_run_at_the_same_time_store_each_row_once(
    name_servers: str, topic: str
) -> None:
    at_once = threading.Barrier(4)

    def attempt(backwards: bool) -> Sent:
        at_once.wait(LIMIT_S)
        batches = numbered(2_000, backwards=backwards)
        return write(batches, name_servers, topic, delivery_timeout_ms=3_000)

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(attempt, number % 2 == 0) for number in range(4)]
        errors = [each.exception(LIMIT_S) for each in running]

    assert None in errors
    assert all(isinstance(error, FencedError) for error in errors if error is not None), errors
    assert bodies(name_servers, topic, 2_000) == list(range(2_000))


def test_killed_brokers_lose_and_repeat_nothing(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    connection = connect(cluster.broker)
    topic = new_topic(cluster, connection)
    connection.close()
    kills = (15, 30, 45)
    under_way = {number: threading.Event() for number in kills}

    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(numbered(6_000)):
            if number in under_way:
                under_way[number].set()
            yield batch

    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(write, batches(), cluster.namesrv, topic, try_timeout_ms=2_000)
        for number in kills:
            assert under_way[number].wait(LIMIT_S)
            cluster.kill_broker()
            cluster.start_broker()
        sent = writing.result(2 * LIMIT_S)

    assert sent.rows == 6_000
    assert bodies(cluster.namesrv, topic, 6_000) == list(range(6_000))


def test_attempts_that_are_killed_stopped_and_doubled_store_each_row_once(
    make_cluster: Callable[..., Cluster],
) -> None:
    """Each run is one task; the moments of the signals and the orders of the rows are random."""
    cluster = make_cluster()
    connection = connect(cluster.broker)
    topic = new_topic(cluster, connection)
    connection.close()
    seed = new_seed()
    choice = random.Random(seed)
    acts = ("kill", "stop", "double", "broker")
    tasks = rounds(test=len(acts), long=200)
    met: Counter[object] = Counter()
    for task in range(tasks):
        attempts = [_start(cluster, topic, task, choice)]
        time.sleep(choice.uniform(0, 0.5))  # the moment is what is random
        act = acts[task % len(acts)]
        if act == "kill":
            attempts[0].send(signal.SIGKILL)
        elif act == "stop":
            attempts[0].send(signal.SIGSTOP)
        elif act == "broker" and task % 20 == 3:
            cluster.kill_broker()
            cluster.start_broker()
        attempts.append(_start(cluster, topic, task, choice))
        if act == "double":
            time.sleep(choice.uniform(0, 0.1))
            attempts.append(_start(cluster, topic, task, choice))
        last = attempts[-1].join()
        if act == "stop":
            attempts[0].send(signal.SIGCONT)
        while last:  # an older attempt may have opened the session after it
            last = _start(cluster, topic, task, choice).join()
            met["repeated"] += 1
        met.update((act, attempt.join()) for attempt in attempts)
    wanted = [body for task in range(tasks) for body in bodies_of(task)]
    found = stored(cluster.namesrv, topic, rows=wanted)
    print(f"seed={seed} tasks={tasks} {dict(met)}")
    assert sorted(m.body.decode() for queue in found.values() for m in queue) == sorted(wanted)


def _start(cluster: Cluster, topic: str, task: int, choice: random.Random) -> Attempt:
    return Attempt(cluster.namesrv, topic, task, choice.randrange(1 << 30))


@pytest.mark.needs("etcd")
def test_elected_masters_store_each_row_once_when_they_are_killed(tmp_path: Path) -> None:
    settings = {"allAckInSyncStateSet": True}
    with running_elected(COMET, (COMET, COMET), tmp_path, **settings) as cluster:
        cluster.await_in_sync(2)
        create_topic(cluster)
        under_way = {number: threading.Event() for number in (15, 40)}

        def batches() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(numbered(6_000)):
                if number in under_way:
                    under_way[number].set()
                yield batch

        options = {"try_timeout_ms": 2_000, "pending_max": 2}
        with ThreadPoolExecutor(1) as thread:
            writing = thread.submit(write, batches(), cluster.namesrv, TOPIC, **options)
            for event in under_way.values():
                assert event.wait(LIMIT_S)
                master = cluster.master()
                assert master is not None
                master.kill()
                cluster.await_master(other_than=master)
                master.start()
                cluster.await_in_sync(2)
            writing.result(2 * LIMIT_S)

        assert bodies(cluster.namesrv, TOPIC, 6_000) == list(range(6_000))


def test_what_cannot_be_written_exactly_once_is_refused(name_servers: str, topic: str) -> None:
    with pytest.raises(NotExactlyOnceError, match="does not exist yet"):
        write(numbered(100), name_servers, f"{topic}-unknown")
    delayed = pa.record_batch({"body": ["1"], "delay_level": pa.array([3], pa.int32())})
    with pytest.raises(RowError, match="a delayed row cannot be written with exactly-once"):
        write(iter([delayed]), name_servers, topic)


def test_auto_writes_at_least_once_where_rows_cannot_be_read_back(
    name_servers: str, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    from cometmq.spark.brokers.session import BrokerSession

    write(numbered(300), name_servers, topic)

    def refuse(*args: Any, **named: Any) -> Iterator[bytes]:
        raise SourceError("the account may not read")

    monkeypatch.setattr(BrokerSession, "read", refuse)
    with pytest.raises(NotExactlyOnceError, match=r"may not read.*delivery=at-least-once"):
        write(numbered(300), name_servers, topic)
    write(numbered(300), name_servers, topic, delivery="auto")
    monkeypatch.undo()

    assert "a repeated task may store rows twice" in caplog.text
    assert bodies(name_servers, topic, 600) == sorted([*range(300)] * 2)
