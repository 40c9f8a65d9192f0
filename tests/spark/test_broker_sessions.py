"""Sessions of readers and writers, on clusters of ours and of RocketMQ."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from servers import Cluster

from cometmq.client import Message, MessageQueue
from cometmq.client.blocking import Producer
from cometmq.client.filters import Filter
from cometmq.client.library import ClientConnection
from cometmq.protocol.record import decode_messages
from cometmq.spark.brokers import Bounds, BrokerSession, StoreTimes, connect, disconnect_all
from cometmq.spark.errors import GoneError, SourceError, UnreachableError
from cometmq.spark.offsets import QueueKey, QueueRange
from cometmq.spark.options.connection import ConnectionOptions
from cometmq.spark.options.meta import MetaOptions
from cometmq.spark.options.parsing import parse_options
from support.checks.waiting import wait_until

pytestmark = pytest.mark.long_elsewhere


def options(name_servers: str, **given: str) -> ConnectionOptions:
    return parse_options(ConnectionOptions, {"nameserver": name_servers} | given)


@pytest.fixture
def session(name_servers: str) -> Iterator[BrokerSession]:
    yield connect(options(name_servers))
    disconnect_all()


def send(name_servers: str, topic: str, queue_id: int, bodies: list[bytes], tag: str = "") -> None:
    """Send to one queue, and return once readers see it all."""
    key = QueueKey(topic, broker_of(name_servers, topic), queue_id)
    end = connect(options(name_servers)).bounds([key])[key].max + len(bodies)
    with Producer(name_servers, group="g-session") as producer:
        for begin in range(0, len(bodies), 200):
            producer.send_batch(
                [Message(topic, body, tags=tag) for body in bodies[begin : begin + 200]],
                queue=MessageQueue(*key),
            )
    bounds = connect(options(name_servers)).bounds
    wait_until(lambda: bounds([key])[key].max == end, f"{len(bodies)} messages in {key}")


def broker_of(name_servers: str, topic: str) -> str:
    return connect(options(name_servers)).queues([topic])[0].broker


def bodies_of(session: BrokerSession, each: QueueRange, **how: object) -> list[bytes]:
    pieces = session.read(each, **how)  # type: ignore[arg-type]
    return [message.body for piece in pieces for message in decode_messages(piece)]


# --- what there is ---------------------------------------------------------------------------


def test_topics_and_queues_are_found(session: BrokerSession, topic: str) -> None:
    assert topic in session.topics()
    assert session.topics_matching(topic[:-1] + ".") == [topic]
    assert session.topics_matching(topic[:-1]) == []
    keys = session.queues([topic])
    assert [(key.topic, key.queue_id) for key in keys] == [(topic, number) for number in range(4)]
    assert {key.broker for key in keys} <= session.brokers().keys()


def test_a_topic_that_is_not_there_is_an_error_or_told(session: BrokerSession, topic: str) -> None:
    with pytest.raises(GoneError, match="no-such-topic"):
        session.queues([topic, "no-such-topic"])
    gone: set[str] = set()
    assert len(session.queues([topic, "no-such-topic"], gone=gone)) == 4
    assert gone == {"no-such-topic"}


def test_bounds_times_and_statistics_are_told(
    session: BrokerSession, name_servers: str, topic: str
) -> None:
    keys = session.queues([topic])
    assert session.bounds(keys) == dict.fromkeys(keys, Bounds(0, 0))
    send(name_servers, topic, 1, [b"x"] * 30)
    before_ms = session.bounds(keys)[keys[1]].newest_ms
    assert abs(time.time() * 1_000 - before_ms) < 60_000
    assert session.bounds(keys)[keys[1]] == Bounds(0, 30)

    wait_until(lambda: time.time() * 1_000 > before_ms + 50, "a later time")
    send(name_servers, topic, 1, [b"y"] * 20)
    assert session.bounds(keys)[keys[1]] == Bounds(0, 50)
    newest_ms = session.bounds(keys)[keys[1]].newest_ms
    assert session.store_times({keys[1]: 49, keys[0]: 0}) == {keys[1]: StoreTimes(newest_ms, 0)}
    (times,) = session.store_times({keys[1]: 29}).values()
    assert times.at == before_ms
    assert times.following > before_ms + 50
    assert session.store_times({keys[1]: 50}) == {}
    assert session.at_time({keys[1]: before_ms + 25, keys[0]: 0}) == {keys[1]: 30, keys[0]: 0}
    assert session.at_time({keys[1]: 0})[keys[1]] == 0
    assert session.at_time({keys[1]: before_ms + 10_000_000})[keys[1]] == 50


def test_a_queue_too_many_is_gone(session: BrokerSession, name_servers: str, topic: str) -> None:
    keys = [*session.queues([topic])[:1], QueueKey(topic, broker_of(name_servers, topic), 99)]
    with pytest.raises(GoneError, match=f"topic {topic}, queue 99"):
        session.bounds(keys)
    gone: set[QueueKey] = set()
    assert list(session.bounds(keys, gone=gone)) == keys[:1]
    assert gone == {keys[1]}


def test_a_broker_that_is_not_registered_is_asked_for_again_and_again(
    name_servers: str, topic: str
) -> None:
    given = {"fetchoffset.numretries": "2", "fetchoffset.retryintervalms": "1"}
    with pytest.raises(UnreachableError, match=f"{topic}.*after 3 tries.*nobody is not registered"):
        connect(options(name_servers, **given)).bounds([QueueKey(topic, "nobody", 0)])
    disconnect_all()


def test_a_name_server_that_is_not_there_is_an_error_in_time() -> None:
    given = {"fetchoffset.numretries": "1", "fetchoffset.retryintervalms": "1"}
    with pytest.raises(UnreachableError, match="topics: no response after 2 tries"):
        connect(options("127.0.0.1:1", **given)).topics()
    disconnect_all()


# --- groups ----------------------------------------------------------------------------------


def test_offsets_of_a_group_are_kept(
    session: BrokerSession, name_servers: str, topic: str, group: str
) -> None:
    """Also of a group that the broker has not heard of before."""
    keys = session.queues([topic])
    send(name_servers, topic, keys[0].queue_id, [b"1", b"2", b"3"])
    assert session.committed(group, keys) == {}
    session.commit(group, {keys[0]: 3, keys[2]: 0})
    assert session.committed(group, keys) == {keys[0]: 3, keys[2]: 0}
    assert session.group_offsets(keys[0].broker)[topic, group] == {0: 3, 2: 0}


# --- messages --------------------------------------------------------------------------------


def test_a_range_comes_whole_and_in_order(
    session: BrokerSession, name_servers: str, topic: str
) -> None:
    bodies = [b"%d " % number * (1 + number % 50) for number in range(2_000)]
    send(name_servers, topic, 0, bodies)
    key = session.queues([topic])[0]
    assert bodies_of(session, QueueRange(key, 0, 2_000)) == bodies
    assert bodies_of(session, QueueRange(key, 700, 1_203)) == bodies[700:1_203]
    assert bodies_of(session, QueueRange(key, 700, 1_203), batch_size=3) == bodies[700:1_203]


def test_a_filter_is_the_brokers(session: BrokerSession, name_servers: str, topic: str) -> None:
    send(name_servers, topic, 0, [b"a"] * 100, tag="a")
    send(name_servers, topic, 0, [b"b"] * 100, tag="b")
    send(name_servers, topic, 0, [b"c"] * 100, tag="c")
    key = session.queues([topic])[0]
    found = bodies_of(session, QueueRange(key, 0, 300), filter=Filter.tags("a || c"))
    assert found == [b"a"] * 100 + [b"c"] * 100


def test_a_range_of_which_nothing_is_wanted_is_empty(
    session: BrokerSession, name_servers: str, topic: str
) -> None:
    send(name_servers, topic, 0, [b"a"] * 100, tag="a")
    key = session.queues([topic])[0]
    assert bodies_of(session, QueueRange(key, 0, 100), filter=Filter.tags("z")) == []


def test_a_reader_may_stop_half_way(session: BrokerSession, name_servers: str, topic: str) -> None:
    """Spark drops readers of a query with a limit."""
    send(name_servers, topic, 0, [b"x" * 4_000] * 1_500)
    key = session.queues([topic])[0]
    pieces = session.read(QueueRange(key, 0, 1_500))
    assert len(next(pieces)) > 4_000
    pieces.close()  # type: ignore[attr-defined]
    assert len(bodies_of(session, QueueRange(key, 0, 1_500))) == 1_500


def test_several_threads_read_at_a_time(
    session: BrokerSession, name_servers: str, topic: str
) -> None:
    for queue_id in range(4):
        send(name_servers, topic, queue_id, [b"%d-%d" % (queue_id, n) for n in range(500)])
    found: dict[int, list[bytes]] = {}

    def read(key: QueueKey) -> None:
        found[key.queue_id] = bodies_of(session, QueueRange(key, 0, 500))

    threads = [threading.Thread(target=read, args=(key,)) for key in session.queues([topic])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {q: [b"%d-%d" % (q, n) for n in range(500)] for q in range(4)}


def test_a_broker_that_restarts_under_a_reader_loses_and_doubles_nothing(
    own_cluster: Cluster,
) -> None:
    names = own_cluster.namesrv
    session = connect(options(names))
    bodies = [b"%d " % number + b"x" * 4_000 for number in range(4_000)]
    topic = "restarting"
    with Producer(names, group="g") as producer:
        producer.send(Message(topic, b"first"))
    key = session.queues([topic])[0]
    begin = session.bounds([key])[key].max
    send(names, topic, key.queue_id, bodies)
    pieces = session.read(QueueRange(key, begin, begin + 4_000))
    found = [next(pieces)]
    own_cluster.kill_broker()
    quick = connect(options(names, **{"fetchoffset.numretries": "0", "request.timeoutms": "500"}))
    with pytest.raises(UnreachableError):
        quick.bounds([key])
    own_cluster.start_broker()
    found += pieces
    assert [m.body for piece in found for m in decode_messages(piece)] == bodies
    assert session.bounds([key])[key].max == begin + 4_000
    disconnect_all()


# --- the life of a session -------------------------------------------------------------------


def test_equal_options_share_a_session(name_servers: str) -> None:
    meta = parse_options(MetaOptions, {"nameserver": name_servers, "subscribe": "x"})
    assert connect(meta) is connect(options(name_servers))
    assert connect(meta) is not connect(options(name_servers, **{"request.timeoutms": "1000"}))


def test_a_session_stays_where_it_is(name_servers: str) -> None:
    with pytest.raises(TypeError, match="send its options"):
        pickle.dumps(connect(options(name_servers)))


def connection_of(session: BrokerSession) -> ClientConnection:
    with session.use() as (_, connection):
        return connection


def test_an_idle_session_closes_its_connections_and_opens_them_again(
    name_servers: str, topic: str
) -> None:
    session = BrokerSession(options(name_servers), idle_s=0.2)
    try:
        session.queues([topic])
        before = connection_of(session)
        wait_until(lambda: before.closed, "the idle client is closed")
        assert len(session.queues([topic])) == 4
        assert connection_of(session) is not before
    finally:
        session.close()


def test_a_session_in_use_is_not_idle(name_servers: str, topic: str) -> None:
    send(name_servers, topic, 0, [b"x" * 4_000] * 1_500)
    session = BrokerSession(options(name_servers), idle_s=0.05)
    try:
        key = session.queues([topic])[0]
        pieces = session.read(QueueRange(key, 0, 1_500))
        next(pieces)
        connection = connection_of(session)
        other = BrokerSession(options(name_servers), idle_s=0.05)
        unused = connection_of(other)
        wait_until(lambda: unused.closed, "the unused client is closed")
        assert not connection.closed
        assert sum(1 for _ in pieces) >= 1
        wait_until(lambda: connection.closed, "the client is closed once it is idle")
    finally:
        session.close()
        other.close()


def test_a_closed_session_opens_again(session: BrokerSession, topic: str) -> None:
    session.queues([topic])
    disconnect_all()
    assert not [each for each in threading.enumerate() if each.name == "cometmq-blocking"]
    assert len(session.queues([topic])) == 4
    session.close()


def test_closing_a_session_under_a_reader_is_an_error_and_no_silence(
    session: BrokerSession, name_servers: str, topic: str
) -> None:
    send(name_servers, topic, 0, [b"x" * 4_000] * 6_000)
    key = session.queues([topic])[0]
    pieces = session.read(QueueRange(key, 0, 6_000))
    next(pieces)
    session.close()
    with pytest.raises(SourceError, match=f"topic {topic}, queue 0"):
        list(pieces)


FORKED = """
import json, os, sys
from cometmq.spark.brokers import connect
from cometmq.spark.options.connection import ConnectionOptions

options = ConnectionOptions(name_servers=sys.argv[1])
session = connect(options)
before = len(session.queues([sys.argv[2]]))
reading, writing = os.pipe()
if os.fork() == 0:
    told = {"kept": len(session.queues([sys.argv[2]])), "new": connect(options) is not session}
    told["found"] = len(connect(options).queues([sys.argv[2]]))
    os.write(writing, json.dumps(told).encode())
    os._exit(0)
os.wait()
told = json.loads(os.read(reading, 4096)) | {"before": before}
print(json.dumps(told | {"after": len(session.queues([sys.argv[2]]))}))
"""


def test_a_forked_child_opens_connections_of_its_own(name_servers: str, topic: str) -> None:
    """Spark's workers are forked from a daemon."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, name_servers, topic],
        capture_output=True,
        timeout=300,
        check=True,
        env=os.environ,
    )
    assert json.loads(done.stdout) == {
        "before": 4,
        "kept": 4,
        "new": True,
        "found": 4,
        "after": 4,
    }
