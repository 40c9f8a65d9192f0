"""Kombu on our broker: what its own tests of transports do not cover."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import kombu
import pytest

import cometmq.kombu
import cometmq.kombu.calls as calls_module
import cometmq.kombu.channel as channel_module
import cometmq.kombu.link as link_module
from cometmq.client import ClientError, Message, TopicNotFoundError
from cometmq.kombu.link import ETA, EXPIRES
from cometmq.testing import ThreadedCluster
from support.checks.waiting import wait_until

IN_TIME_S = 20.0
OTHER_PROCESS = {"idle_s": 119}
"""A setting of the client with which connections share nothing, as if of another process."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(settings={"recallMessageEnable": "true"}) as cluster:
        yield cluster


Connect = Callable[..., kombu.Connection]


@pytest.fixture
def connect(cluster: ThreadedCluster) -> Iterator[Connect]:
    opened: list[kombu.Connection] = []
    host = uuid.uuid4().hex

    def connect(**options: Any) -> kombu.Connection:
        url = f"cometmq://{cluster.name_servers}/{host}"
        opened.append(kombu.Connection(url, transport_options=options))
        opened[-1].connect()
        return opened[-1]

    yield connect
    for each in opened:
        each.release()


def received(
    connection: kombu.Connection, queue: kombu.Queue, count: int, quiet_s: float = 0.05
) -> list[Any]:
    """Wait for so many messages of a queue, acknowledge and return them and those that follow."""
    found: list[Any] = []

    def callback(body: Any, message: Any) -> None:
        message.ack()
        found.append(body)

    with connection.Consumer(queue, callbacks=[callback]):
        while True:
            try:
                connection.drain_events(timeout=IN_TIME_S if len(found) < count else quiet_s)
            except TimeoutError:
                return found


def test_a_message_is_acknowledged_whatever_becomes_of_those_before_it(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("per-message")
    producer = connection.Producer()
    for number in range(3):
        producer.publish(number, routing_key="per-message", declare=[queue])
    consumer = queue(connection.channel())
    _, second, third = (consumer.get() for _ in range(3))
    second.ack()
    third.ack()
    connection.release()  # as a cold shutdown does: what is not settled is redelivered soon
    other = connect()
    again: list[Any] = []

    def callback(body: Any, message: Any) -> None:
        message.ack()
        again.append((body, message.delivery_info["redelivered"]))

    with other.Consumer(queue, callbacks=[callback]):
        other.drain_events(timeout=IN_TIME_S)
    assert again == [(0, True)]
    assert received(other, queue, 0) == []


def test_a_held_message_is_not_redelivered_after_its_invisible_time(connect: Connect) -> None:
    connection, queue = connect(visibility_timeout=1), kombu.Queue("held")
    connection.Producer().publish("x", routing_key="held", declare=[queue])
    held = queue(connection.channel()).get()
    other = connect(visibility_timeout=1, client=OTHER_PROCESS)
    assert received(other, queue, 0, quiet_s=2.5) == []
    held.ack()
    assert queue(connection.channel()).get() is None


def test_size_and_purge_count_what_nobody_has_received(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("counted")
    for number in range(5):
        connection.Producer().publish(number, routing_key="counted", declare=[queue])
    bound = queue(connection.channel())
    assert bound.queue_declare(passive=True).message_count == 5
    bound.get().ack()
    assert bound.queue_declare(passive=True).message_count == 4
    assert bound.purge() == 4
    assert bound.get() is None
    assert bound.queue_declare(passive=True).message_count == 0


def test_high_priorities_come_first_and_expired_messages_never(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("urgent", max_priority=9)
    producer = connection.Producer()
    for priority in (0, 3, 9, 3):
        producer.publish(priority, routing_key="urgent", declare=[queue], priority=priority)
    producer.publish("expired", routing_key="urgent", priority=9, expiration=0)
    assert received(connection, queue, 4) == [9, 3, 3, 0]


def test_bindings_of_one_process_route_the_messages_of_another(connect: Connect) -> None:
    here, there = connect(), connect(client=OTHER_PROCESS)
    for kind, key in (("topic", "a.#"), ("direct", "a.b"), ("fanout", "")):
        exchange = kombu.Exchange(f"shared-{kind}", kind)
        stored = kombu.Queue(f"stored-{kind}", exchange, key)
        short = kombu.Queue(f"short-{kind}", exchange, key, auto_delete=True, expires=60)
        for queue in (stored, short):
            queue(here.channel()).declare()
        there.Producer(exchange=exchange).publish(kind, routing_key="a.b")
        there.Producer(exchange=exchange).publish("not bound", routing_key="b.a")
        expected = [kind, "not bound"] if kind == "fanout" else [kind]
        assert received(here, stored, len(expected)) == expected
        assert received(here, short, len(expected)) == expected


def test_short_lived_queues_have_no_topic_of_their_own(connect: Connect) -> None:
    connection = connect()
    exchange = kombu.Exchange("many", "fanout")
    queues = [kombu.Queue(f"many-{each}", exchange, exclusive=True) for each in range(20)]
    for queue in queues:
        queue(connection.channel()).declare()
    connection.Producer(exchange=exchange).publish("all")
    for queue in queues:
        assert received(connection, queue, 1, 0.01) == ["all"]
    topics = connection.transport.run(connection.transport.link.admin.topics())
    assert not [each for each in topics if "many-" in each]


def test_a_batch_is_stored_when_it_ends_and_in_its_order(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("batch")
    producer = connection.Producer()
    with producer.batch(max_size=300) as batch:
        for number in range(400):
            producer.publish(number, routing_key="batch", declare=[queue])
        assert queue(connection.channel()).queue_declare(passive=True).message_count == 300
        batch.flush()
    with contextlib.suppress(kombu.exceptions.EncodeError), producer.batch():
        producer.publish("discarded", routing_key="batch")
        producer.publish(object(), routing_key="batch")
    assert received(connection, queue, 400) == list(range(400))


def test_rejected_messages_are_dead_letters_and_odd_headers_are_text(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("rejected")
    headers = {"at": datetime(2026, 1, 2, tzinfo=UTC), "odd": kombu.Queue}
    connection.Producer().publish("x", routing_key="rejected", declare=[queue], headers=headers)
    message = queue(connection.channel()).get()
    assert message.headers["at"] == "2026-01-02T00:00:00Z"
    assert "Queue" in message.headers["odd"]
    message.reject()
    group = connection.transport.link.names.queue("rejected")
    wait_until(lambda: dead_count(connection, group) == 1)
    assert queue(connection.channel()).get() is None


def test_messages_of_other_forms_are_dead_letters_and_hold_up_no_others(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("foreign")
    queue(connection.channel()).declare()
    link, run = connection.transport.link, connection.transport.run
    topic = link.names.queue("foreign")
    stored = b'{"body": "", "headers": {}, "properties": {"delivery_info": {}}}'
    bodies = [b"plain text", b"[]", b'{"properties": 1}', b"[" * 10_000]
    sent = [Message(topic=topic, body=each) for each in bodies]
    sent += [
        Message(topic=topic, body=stored, properties={name: "soon"}) for name in (ETA, EXPIRES)
    ]
    for each in sent:
        run(link.put(each))
    assert queue(connection.channel()).get() is None
    for each in sent:
        run(link.put(each))
    connection.Producer().publish("fine", routing_key="foreign")
    assert received(connection, queue, 1) == ["fine"]

    wait_until(lambda: dead_count(connection, topic) == 2 * len(sent))


def dead_count(connection: kombu.Connection, group: str) -> int:
    transport = connection.transport
    with contextlib.suppress(TopicNotFoundError):
        stats = transport.run(transport.link.admin.topic_stats(f"%DLQ%{group}"))
        return sum(each.max_offset for each in stats.values())
    return 0


def test_a_message_of_another_form_ends_no_reader_of_an_exchange(connect: Connect) -> None:
    connection = connect()
    exchange = kombu.Exchange("watched", "fanout")
    queue = kombu.Queue("watching", exchange, exclusive=True)
    queue(connection.channel()).declare()
    link, run = connection.transport.link, connection.transport.run
    for body in (b"x", b"[]", b'{"key": 1, "message": {}}', b'{"key": "", "message": 1}'):
        run(link.put(Message(topic=link.names.exchange("watched"), body=body)))
    odd = {"at": datetime(2026, 1, 2, tzinfo=UTC)}
    connection.Producer(exchange=exchange).publish("fine", headers=odd, priority="high")
    assert received(connection, queue, 1) == ["fine"]


def test_records_of_another_form_do_not_stop_publishers(connect: Connect) -> None:
    connection = connect()
    link, run = connection.transport.link, connection.transport.run
    for record in (
        b"{}",
        b'{"key": [], "at": 1, "value": 1}',
        b'{"key": [[]], "at": 1, "value": 1}',
    ):
        run(link.put(Message(topic=link.names.bindings(), body=record)))
    queue = kombu.Queue("after-records", kombu.Exchange("after-records"), "k")
    connect(client=OTHER_PROCESS).Producer(exchange=queue.exchange).publish(
        "fine", routing_key="k", declare=[queue]
    )
    assert received(connection, queue, 1) == ["fine"]


def test_the_default_exchange_finds_a_queue_that_another_process_declared(connect: Connect) -> None:
    here, there = connect(), connect(client=OTHER_PROCESS)
    kombu.Queue("replies", exclusive=True)(here.channel()).declare()
    stored = kombu.Queue("stored")
    there.Producer().publish("unknown", routing_key="nowhere")  # it reads the bindings
    stored(here.channel()).declare()
    there.Producer().publish("x", routing_key="stored")
    assert received(here, stored, 1) == ["x"]


def test_another_process_unbinds_and_deletes_what_it_has_not_declared(connect: Connect) -> None:
    here = connect()
    exchange = kombu.Exchange("unbound")
    kept, deleted = (kombu.Queue(name, exchange, "k") for name in ("kept", "deleted"))
    for queue in (kept, deleted):
        queue(here.channel()).declare()
    there = connect(client=OTHER_PROCESS)
    channel = there.channel()
    exchange(channel).declare()
    channel.queue_unbind("kept", "unbound", "k")
    channel.queue_delete("deleted")
    third = connect(client={"idle_s": 118})
    third.Producer(exchange=exchange).publish("nowhere", routing_key="k")
    assert kept(third.channel()).queue_declare(passive=True).message_count == 0
    with pytest.raises(kombu.exceptions.ChannelError):
        deleted(third.channel()).queue_declare(passive=True)
    here.Producer().publish("again", routing_key="deleted")  # its topic is gone
    assert received(here, deleted, 1) == ["again"]


def test_two_consumers_of_a_queue_on_one_connection_acknowledge_and_outlive_each_other(
    connect: Connect,
) -> None:
    connection, queue = connect(visibility_timeout=1), kombu.Queue("twice")
    found: list[Any] = []

    def callback(body: Any, message: Any) -> None:
        message.ack()
        found.append(body)

    first = connection.Consumer(queue, callbacks=[callback], channel=connection.channel())
    second = connection.Consumer(queue, callbacks=[callback], channel=connection.channel())
    first.consume()
    second.consume()
    producer = connection.Producer(channel=connection.channel())
    for number in range(20):
        producer.publish(number, routing_key="twice")
    while len(found) < 20:
        connection.drain_events(timeout=IN_TIME_S)
    second.cancel()
    producer.publish("last", routing_key="twice")
    while len(found) < 21:
        connection.drain_events(timeout=IN_TIME_S)
    assert sorted(map(str, found)) == sorted([*map(str, range(20)), "last"])
    wait_until(lambda: not connection.transport.unsettled)
    sessions = connection.transport.session._consumers.values()
    wait_until(lambda: not any(each.in_flight for each in sessions))


def test_the_loop_of_a_worker_has_its_turn_between_slow_deliveries(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "PUMP_S", -1.0)
    connection, queue = connect(), kombu.Queue("slow")
    for number in range(3):
        connection.Producer().publish(number, routing_key="slow", declare=[queue])
    found: list[Any] = []
    with connection.Consumer(queue, callbacks=[lambda body, _: found.append(body)], no_ack=True):
        for count in (1, 2, 3):
            connection.drain_events(timeout=IN_TIME_S)
            assert len(found) == count


def test_a_priority_whose_topic_fails_holds_up_no_other(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("partly", max_priority=1)
    connection.Producer().publish("high", routing_key="partly", declare=[queue], priority=1)
    link, run = connection.transport.link, connection.transport.run
    run(link.admin.delete_topic(link.names.queue("partly")))
    assert received(connection, queue, 1) == ["high"]


def test_a_failed_requeue_leaves_the_message_to_be_settled(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, queue = connect(), kombu.Queue("requeued")
    connection.Producer().publish("x", routing_key="requeued", declare=[queue])
    message = queue(connection.channel()).get()
    link = connection.transport.link
    with monkeypatch.context() as patched:
        patched.setattr(link._producer, "send", _refuse)
        with pytest.raises(ClientError):
            message.requeue()
    message.channel.basic_reject(message.delivery_tag, requeue=True)
    assert received(connection, queue, 1) == ["x"]


async def _refuse(message: object) -> None:
    raise ClientError("the broker is away")


def test_a_recall_leaves_the_timers_of_others_alone(connect: Connect) -> None:
    connection = connect()
    link, run = connection.transport.link, connection.transport.run
    due = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)
    run(link.put(Message(topic="orders", body=b"x", keys=["order-1"], deliver_at=due)))
    mine = {"id": "order-1", "eta": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}
    connection.Producer().publish("x", routing_key="mine", headers=mine)
    assert connection.transport.recall("order-1") == 1
    recalled, failures = connection.transport.recall_all(
        [f"order-{each}" for each in range(2, 200)]
    )
    assert (recalled, failures) == ({}, [])


def test_a_short_lived_queue_whose_binding_failed_is_bound_by_the_next_declaration(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    queue = kombu.Queue("bound-late", exclusive=True)
    bindings = connection.transport.link._bindings
    with monkeypatch.context() as patched:
        patched.setattr(bindings, "_write", _refuse)
        with pytest.raises(ClientError):
            queue(connection.channel()).declare()
    queue(connection.channel()).declare()
    connect(client=OTHER_PROCESS).Producer().publish("x", routing_key="bound-late")
    assert received(connection, queue, 1) == ["x"]


def test_a_short_lived_queue_that_is_declared_again_begins_anew(connect: Connect) -> None:
    connection = connect()
    exchange = kombu.Exchange("again", "fanout")
    queue = kombu.Queue("again", exchange, exclusive=True)
    producer = connection.Producer(exchange=exchange)
    for number in range(20):
        queue(connection.channel()).declare()
        producer.publish(number)
        assert received(connection, queue, 1, 0.0) == [number]
        producer.publish("missed")
    link, run = connection.transport.link, connection.transport.run
    assert link.names.queue("again") not in run(link.admin.topics())


def test_a_consumer_reads_the_priorities_that_another_process_has_added(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "LOOK_S", 0.05)
    monkeypatch.setattr(calls_module, "HOLD_S", 0.1)
    here, there = connect(client={"idle_s": 117}), connect(client=OTHER_PROCESS)
    found: list[Any] = []
    with here.Consumer(kombu.Queue("raised"), callbacks=[lambda body, _: found.append(body)]):
        raised = kombu.Queue("raised", max_priority=3)
        there.Producer().publish("x", routing_key="raised", declare=[raised], priority=3)
        here.drain_events(timeout=IN_TIME_S)
    assert found == ["x"]


def test_bindings_whose_topic_is_lost_are_written_again(connect: Connect) -> None:
    here = connect()
    queue = kombu.Queue("restored", kombu.Exchange("restored"), "k")
    queue(here.channel()).declare()
    link, run = here.transport.link, here.transport.run
    run(link.admin.delete_topic(link.names.bindings()))
    run(link.declare_queue("another", 0))
    connect(client=OTHER_PROCESS).Producer(exchange=queue.exchange).publish("x", routing_key="k")
    assert received(here, queue, 1) == ["x"]


def test_nothing_is_received_while_too_many_acknowledgements_are_not_sent(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "ACKS_BEHIND_MAX", 5)
    connection, queue = connect(), kombu.Queue("behind")
    producer = connection.Producer()
    with producer.batch() as batch:
        for number in range(100):
            producer.publish(number, routing_key="behind", declare=[queue])
        batch.flush()
    transport = connection.transport
    with monkeypatch.context() as patched:
        patched.setattr(transport.session, "send_acks", lambda: None)
        first = received(connection, queue, 1, quiet_s=0.2)
        assert len(transport.session.acks) == len(first) < 100
    transport.soon(transport.flush)
    assert sorted(first + received(connection, queue, 100 - len(first))) == list(range(100))


def test_a_message_with_an_eta_waits_at_the_broker_in_steps_unless_recalled(
    connect: Connect,
) -> None:
    connection, queue = connect(delay_min=0, delay_step=1), kombu.Queue("later")
    due = datetime.now(UTC) + timedelta(seconds=2.5)
    stays = {"id": "task-1", "eta": due.isoformat()}
    producer = connection.Producer()
    producer.publish("stays", routing_key="later", declare=[queue], headers=stays)
    other = connect(delay_min=0)
    recalled = {"id": "task-2", "eta": due.isoformat()}
    other.Producer().publish("recalled", routing_key="later", headers=recalled)
    assert other.transport.recall("task-2") == 1
    assert other.transport.recall("no-such-task") == 0
    times = []

    def callback(body: Any, message: Any) -> None:
        message.ack()
        times.append((body, datetime.now(UTC)))

    with connection.Consumer(queue, callbacks=[callback]):
        connection.drain_events(timeout=IN_TIME_S)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=1)
    [(body, time)] = times
    assert body == "stays"
    assert time >= due - timedelta(seconds=1.0)


def test_a_cluster_without_a_broker_is_a_lost_connection_which_workers_retry() -> None:
    with kombu.Connection("cometmq://") as connection:
        assert issubclass(ClientError, connection.connection_errors)


def test_the_scheme_is_known_and_kombus_own_rocketmq_would_win() -> None:
    assert kombu.Connection("cometmq://").transport_cls == "cometmq"
    assert issubclass(cometmq.kombu.Transport, kombu.transport.virtual.Transport)


def test_bindings_are_on_each_master_so_that_any_of_them_may_be_away() -> None:
    with ThreadedCluster(brokers=2) as cluster:
        url, exchange = f"cometmq://{cluster.name_servers}", kombu.Exchange("both", "topic")
        queue = kombu.Queue("both", exchange, "a.#")
        with kombu.Connection(url) as here:
            queue(here.channel()).declare()
            link = here.transport.link
            topic = link.names.bindings()

            async def counts() -> dict[str, int]:
                queues = await link._puller.fetch_queues(topic)
                return {each.broker_name: (await link._puller.bounds(each)).max_offset
                        for each in queues}  # fmt: skip

            assert here.transport.run(counts()) == {"broker-0": 2, "broker-1": 2}
            assert cluster._loop is not None
            stopped = cluster._cluster.brokers[0].stop()
            asyncio.run_coroutine_threadsafe(stopped, cluster._loop).result(IN_TIME_S)
            options = {"client": OTHER_PROCESS}
            with kombu.Connection(url, transport_options=options) as there:
                there.Producer(exchange=exchange).publish("found", routing_key="a.b")
            assert received(here, queue, 1) == ["found"]
            kombu.Queue("later", exchange, "b.#")(here.channel()).declare()
            link._complete = {"broker-0"}  # as if this master had been away until now
            here.transport.run(link._look())
            assert here.transport.run(counts()) == {"broker-1": 8}


def test_a_requeue_after_the_invisible_time_stores_no_second_copy(connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("expired")
    connection.Producer().publish("once", routing_key="expired", declare=[queue])
    channel = connection.channel()
    message = queue(channel).get()
    held = channel._unsettled[message.delivery_tag]
    connection.transport.call(held.consumer._deliveries.remove, held.message)  # as a pause does
    message.reject(requeue=True)
    assert channel._size("expired") == 0, "the broker redelivers it by itself"
