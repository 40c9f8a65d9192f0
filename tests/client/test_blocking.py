"""The client without an event loop: sending, consuming, administering from plain code."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import wait
from signal import SIGINT, pthread_kill

import pytest

from cometmq.client import (
    ClientClosedError,
    InvalidMessageError,
    LocalState,
    Message,
    MessageQueue,
    ResponseError,
    StartFrom,
    StoredMessage,
    TopicNotFoundError,
)
from cometmq.client.blocking import (
    AdminClient,
    ClientInstance,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from support.clients.consumer_inputs import from_the_first

FOUND_S = 120.0
EXITS = """
import sys

from cometmq.client import StartFrom
from cometmq.client.blocking import Producer, PushConsumer


def handle(message):
    sys.exit(3)


name_servers, topic, group = sys.argv[1:]
with Producer(name_servers, group="shop"):
    PushConsumer(
        name_servers,
        group=group,
        handler=handle,
        subscriptions={topic: "*"},
        start_from=StartFrom.FIRST,
    ).run()
"""


@pytest.fixture
def shared(name_servers: str) -> Iterator[ClientInstance]:
    """Connections that the objects of a test share."""
    with ClientInstance(name_servers) as running:
        yield running


@pytest.fixture
def queue(shared: ClientInstance) -> MessageQueue:
    """The only queue of a new topic."""
    with AdminClient(instance=shared) as admin:
        (queue,) = admin.create_topic(f"t-{uuid.uuid4().hex}", queues=1)
    return queue


def send(shared: ClientInstance, queue: MessageQueue, count: int) -> list[bytes]:
    """Send numbered messages; gives their bodies."""
    bodies = [str(number).encode() for number in range(count)]
    with Producer(instance=shared, group="blocking-tests") as producer:
        for body in bodies:
            producer.send(Message(queue.topic, body))
    return bodies


def take(consumer: PullConsumer, count: int) -> list[bytes]:
    """The bodies of the next messages."""
    found: list[bytes] = []
    ends = time.monotonic() + FOUND_S
    while len(found) < count and time.monotonic() < ends:
        found += [message.body for message in consumer.poll(1.0)]
    return found


def test_what_was_sent_is_read(shared: ClientInstance, queue: MessageQueue, group: str) -> None:
    bodies = send(shared, queue, 5)
    with PullConsumer(instance=shared, group=group, start_from=StartFrom.FIRST) as consumer:
        consumer.assign(consumer.fetch_queues(queue.topic))

        assert [next(consumer).body for _ in range(5)] == bodies
        consumer.commit()
        assert consumer.committed(queue) == 5
        assert consumer.position(queue) == 5
        consumer.seek(queue, 3)
        assert take(consumer, 2) == bodies[3:]


def test_a_subscriber_iterates_until_it_is_closed(
    shared: ClientInstance, queue: MessageQueue, group: str
) -> None:
    bodies = send(shared, queue, 3)
    consumer = PullConsumer(instance=shared, group=group, start_from=StartFrom.FIRST)
    consumer.subscribe(queue.topic)
    seen: list[bytes] = []
    with consumer:
        for message in consumer:
            seen.append(message.body)
            if len(seen) == 3:
                break

    assert seen == bodies
    assert list(consumer) == []
    with pytest.raises(ClientClosedError):
        consumer.poll()


def test_handlers_run_in_threads_and_may_send(
    shared: ClientInstance, queue: MessageQueue, group: str
) -> None:
    """A handler that uses a blocking object must not wait for its own thread."""
    with AdminClient(instance=shared) as admin:
        (answers,) = admin.create_topic(f"{queue.topic}-a", queues=1)
    bodies, done = send(shared, queue, 3), threading.Semaphore(0)
    with Producer(instance=shared, group="blocking-answers") as producer:

        def handle(message: StoredMessage) -> None:
            assert threading.current_thread() is not threading.main_thread()
            producer.send(Message(answers.topic, message.body))
            done.release()

        with PushConsumer(
            instance=shared, handler=handle, **from_the_first(group, queue.topic)
        ) as consumer:
            for _ in bodies:
                assert done.acquire(timeout=FOUND_S)
            assert consumer.queues() == [queue]
    with PullConsumer(instance=shared, group=group, start_from=StartFrom.FIRST) as reader:
        reader.assign([answers])
        assert sorted(take(reader, 3)) == bodies


def test_sends_that_were_begun_end_by_themselves(
    shared: ClientInstance, queue: MessageQueue
) -> None:
    with Producer(instance=shared, group="blocking-tests") as producer:
        begun = [producer.send_nowait(Message(queue.topic, b"x")) for _ in range(20)]
        refused = producer.send_nowait(Message(queue.topic, b""))

        assert not wait([*begun, refused], FOUND_S).not_done
    assert sorted(one.result().queue_offset for one in begun) == list(range(20))
    assert isinstance(refused.exception(), InvalidMessageError)


def test_errors_come_back_as_they_are(name_servers: str) -> None:
    with AdminClient(name_servers) as admin, pytest.raises(TopicNotFoundError):
        admin.topic_stats(f"t-{uuid.uuid4().hex}")


def test_threads_share_a_producer(shared: ClientInstance, queue: MessageQueue) -> None:
    offsets: list[int] = []
    with Producer(instance=shared, group="blocking-tests") as producer:

        def send_some() -> None:
            for _ in range(10):
                offsets.append(producer.send(Message(queue.topic, b"x")).queue_offset)

        threads = [threading.Thread(target=send_some) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(FOUND_S)

    assert sorted(offsets) == list(range(40))


def test_an_interrupted_wait_loses_no_message(
    shared: ClientInstance, queue: MessageQueue, group: str
) -> None:
    with PullConsumer(instance=shared, group=group, start_from=StartFrom.FIRST) as consumer:
        consumer.assign([queue])
        assert consumer.poll(0.05) == []
        main = threading.get_ident()
        timer = threading.Timer(0.1, lambda: pthread_kill(main, SIGINT))

        def interrupted() -> None:
            timer.start()
            next(consumer)

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        timer.join()

        bodies = send(shared, queue, 2)
        assert take(consumer, 2) == bodies


def test_what_was_handed_out_may_be_taken_back(
    shared: ClientInstance, queue: MessageQueue, group: str
) -> None:
    bodies = send(shared, queue, 2)
    with PullConsumer(instance=shared, group=group, start_from=StartFrom.FIRST) as consumer:
        consumer.assign([queue])
        assert next(consumer).body == bodies[0]

        consumer.take_back()

        assert [next(consumer).body for _ in range(2)] == bodies


def test_an_exit_in_a_handler_ends_the_process_with_its_status(
    shared: ClientInstance, name_servers: str, queue: MessageQueue, group: str
) -> None:
    send(shared, queue, 1)
    ended = subprocess.run(
        [sys.executable, "-c", EXITS, name_servers, queue.topic, group],
        capture_output=True, text=True, timeout=FOUND_S, check=False,
    )  # fmt: skip

    assert ended.returncode == 3, ended.stderr
    assert "ClientClosedError" not in ended.stderr


def test_a_transaction_listener_may_close_its_producer(
    shared: ClientInstance, queue: MessageQueue
) -> None:
    class Closing:
        def execute(self, message: Message, argument: object) -> LocalState:
            producer.close()
            return LocalState.COMMIT

        def check(self, message: StoredMessage) -> LocalState:
            return LocalState.COMMIT

    producer = TransactionProducer(
        instance=shared, group="closes-itself", listener=Closing(), timeout_ms=600_000
    )
    producer.start()
    sent = producer.send_in_transaction(Message(topic=queue.topic, body=b"paid"))
    producer.close()

    assert sent.state is LocalState.COMMIT


def test_a_handler_may_close_its_consumer(
    shared: ClientInstance, queue: MessageQueue, group: str
) -> None:
    closed = threading.Event()

    def handle(message: StoredMessage) -> None:
        consumer.close()
        closed.set()

    send(shared, queue, 1)
    consumer = PushConsumer(
        instance=shared, handler=handle, stop_ms=600_000, **from_the_first(group, queue.topic)
    )
    consumer.start()
    assert closed.wait(FOUND_S)
    consumer.close()

    with PullConsumer(instance=shared, group=group) as reader:
        assert reader.committed(queue) == 1


def test_a_consumer_that_is_stopped_at_once_leaves_its_handler_behind(
    shared: ClientInstance, queue: MessageQueue, group: str
) -> None:
    send(shared, queue, 1)
    begun, may_end = threading.Event(), threading.Event()

    def handle(message: StoredMessage) -> None:
        begun.set()
        may_end.wait(FOUND_S)

    consumer = PushConsumer(instance=shared, handler=handle, **from_the_first(group, queue.topic))
    consumer.start()
    try:
        assert begun.wait(FOUND_S)
        since = time.monotonic()
        consumer.abort()
        consumer.abort()
        assert time.monotonic() - since < FOUND_S / 2
        assert not consumer.running
    finally:
        may_end.set()


class Commits:
    """Commits every transaction."""

    def execute(self, message: Message, argument: object) -> LocalState:
        """Do the local part."""
        return LocalState.COMMIT

    def check(self, message: StoredMessage) -> LocalState:
        """Say what became of it."""
        return LocalState.COMMIT


def test_a_transaction_is_committed(
    shared: ClientInstance, target: str, queue: MessageQueue, group: str
) -> None:
    with TransactionProducer(instance=shared, group=f"{group}-tx", listener=Commits()) as producer:
        try:
            receipt = producer.send_in_transaction(Message(queue.topic, b"x"))
        except ResponseError:
            assert target == "comet"
            return
    assert receipt.state is LocalState.COMMIT
    with PullConsumer(instance=shared, group=group, start_from=StartFrom.FIRST) as consumer:
        consumer.assign([queue])
        assert take(consumer, 1) == [b"x"]


def test_an_exception_of_a_local_transaction_is_raised_to_the_caller(
    shared: ClientInstance, queue: MessageQueue, group: str
) -> None:
    class Fails(Commits):
        def execute(self, message: Message, argument: object) -> LocalState:
            raise LookupError(f"no {argument}")

    with TransactionProducer(
        instance=shared, group=f"{group}-tx", listener=Fails(), rollback_on=LookupError
    ) as producer:
        with pytest.raises(LookupError, match="no hats"):
            producer.send_in_transaction(Message(queue.topic, b"x"), "hats")
        sent = producer.send_in_transaction(
            Message(queue.topic, b"x"), "hats", return_exceptions=True
        )

    assert (sent.state, str(sent.error)) == (LocalState.ROLLBACK, "no hats")


def test_an_object_can_be_closed_twice_and_leaves_no_thread(name_servers: str) -> None:
    before = set(threading.enumerate())
    admin = AdminClient(name_servers)
    admin.start()
    assert admin.topics()
    admin.close()
    admin.close()

    assert set(threading.enumerate()) <= before


async def test_a_thread_that_runs_a_loop_itself_may_use_it(name_servers: str) -> None:
    """A notebook's cells run in such a thread."""
    with AdminClient(name_servers) as admin:
        assert admin.topics()
