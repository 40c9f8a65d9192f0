"""Pull consumers: assigned or subscribed, paused, with automatic commits or commits by hand."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from cometmq.client import (
    AdminClient,
    ClientClosedError,
    ClientError,
    ClientInstance,
    Filter,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    StartFrom,
    StoredMessage,
    TopicNotFoundError,
)
from cometmq.client._connection.instance import acquire_instance, core_of
from cometmq.client._consuming.group_calls import check_filters
from cometmq.client.allocation import AveragelyByCircle
from cometmq.client.errors import NotAssignedError, WrongModeError
from cometmq.client.settings import ClientSettings
from cometmq.model.topic import retry_topic
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.remoting import OutgoingCall, Request, Response
from support.brokers.scripted import ScriptedBroker, ScriptedCluster
from support.checks.waiting import until
from support.wire.recorded import frames

FOUND_S = 120.0
"""Time for what takes a moment: queues that are filled, members that are noticed."""


async def send(
    instance: ClientInstance, queues: Sequence[MessageQueue], count: int, **named: str
) -> list[str]:
    """Send numbered messages to queues in turn; gives their bodies."""
    async with Producer(instance=instance, group="pull-tests") as producer:
        for number in range(count):
            queue = queues[number % len(queues)]
            message = Message(queue.topic, str(number).encode(), **named)
            await producer.send(message, queue=queue)
    return [str(number) for number in range(count)]


async def take(consumer: PullConsumer, count: int) -> list[str]:
    """The bodies of the next messages, one at a time."""
    found: list[str] = []
    async with asyncio.timeout(FOUND_S):
        while len(found) < count:
            found.append((await anext(consumer)).body.decode())
    return found


def reader(instance: ClientInstance, group: str, **named: object) -> PullConsumer:
    """A consumer that starts at the first message."""
    return PullConsumer(instance=instance, group=group, start_from=StartFrom.FIRST, **named)  # type: ignore[arg-type]


# --- exclusive modes -----------------------------------------------------------------------------


async def test_a_consumer_that_is_assigned_queues_does_not_subscribe(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    async with reader(instance, group) as consumer:
        await consumer.assign(queues[:1])

        with pytest.raises(WrongModeError, match="is assigned queues"):
            await consumer.subscribe(queues[0].topic)
        assert consumer.queues() == queues[:1]


async def test_a_new_group_is_known_to_the_brokers_once_its_queues_are_assigned(
    name_servers: str, topic: str, group: str
) -> None:
    """RocketMQ 5 refuses an offset of a group that it has not heard of."""
    queue = MessageQueue(topic, "broker-a", 0)
    async with PullConsumer(name_servers, group=group) as consumer:
        await consumer.assign([queue])
        async with AdminClient(name_servers) as admin:
            connected = await admin.consumer_connections(group)
    assert len(connected.connection_set) == 1


async def test_a_topic_that_is_added_while_filters_are_checked_is_checked_too() -> None:
    asked: list[bytes] = []
    filters = {"t": Filter.sql("a > 1")}
    broker = ScriptedBroker("a")

    def check(request: Request) -> Response:
        asked.append(request.body)
        filters["t"] = Filter.sql("a > 2")
        filters["u"] = Filter("*")
        return Response()

    broker.handlers[RequestCode.CHECK_CLIENT_CONFIG] = check
    async with ScriptedCluster([broker]) as cluster, ClientInstance(cluster.address) as instance:
        await check_filters(core_of(instance), "g", filters)

    assert [b"a > 1" in body for body in asked] == [True, False]
    assert b"a > 2" in asked[1]


async def test_a_consumer_that_subscribes_is_assigned_nothing(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    async with reader(instance, group, subscriptions={queues[0].topic: "*"}) as consumer:
        with pytest.raises(WrongModeError, match="subscribes to topics"):
            await consumer.assign(queues[:1])


async def test_calls_of_a_consumer_that_is_not_running_are_refused(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    consumer = reader(instance, group)
    for call in (lambda: consumer.assign(queues), lambda: consumer.poll(), consumer.commit):
        with pytest.raises(ClientClosedError):
            await call()
    async with consumer:
        await consumer.assign(queues)
    with pytest.raises(ClientClosedError):
        await consumer.poll()


# --- subscribing ---------------------------------------------------------------------------------


async def test_a_subscriber_reads_all_queues_while_it_is_alone(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    bodies = await send(instance, queues, 20)
    async with reader(instance, group) as consumer:
        await consumer.subscribe(queues[0].topic)

        assert sorted(await take(consumer, 20), key=int) == bodies
        assert sorted(consumer.queues()) == sorted(queues)


async def test_two_members_divide_the_queues_and_one_inherits_those_of_the_other(
    name_servers: str, instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    wanted = {queues[0].topic: "*"}
    bodies = await send(instance, queues, 20)
    async with (
        reader(instance, group, subscriptions=wanted, rebalance_ms=1000) as stays,
        PullConsumer(name_servers, group=group, subscriptions=wanted, rebalance_ms=1000) as leaves,
    ):

        async def divided() -> bool:
            return (
                len(stays.queues()) == 2
                and len(leaves.queues()) == 2
                and {*stays.queues(), *leaves.queues()} == set(queues)
            )

        await until(divided)
        await leaves.close()

        assert set(await take(stays, 20)) <= set(bodies)
        assert sorted(stays.queues()) == sorted(queues)


async def test_subscribed_queues_are_divided_as_the_strategy_says(
    name_servers: str, queues: list[MessageQueue], group: str
) -> None:
    """Every second queue each, where the usual strategy gives the first two and the last two."""
    options = {
        "group": group,
        "subscriptions": {queues[0].topic: "*"},
        "strategy": AveragelyByCircle(),
    }
    async with (
        PullConsumer(name_servers, client_ip="10.0.0.1", **options) as one,
        PullConsumer(name_servers, client_ip="10.0.0.2", **options) as two,
    ):

        async def divided() -> bool:
            return [sorted(each.queues()) for each in (one, two)] == [queues[::2], queues[1::2]]

        await until(divided)


async def test_a_subscription_ends_and_what_was_finished_is_committed(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    await send(instance, queues[:1], 3)
    async with reader(instance, group, subscriptions={queues[0].topic: "*"}) as consumer:
        await take(consumer, 3)

        await consumer.unsubscribe(queues[0].topic)

        assert consumer.queues() == []
        assert await consumer.committed(queues[0]) == 2


async def test_a_topic_of_many_queues_is_left_without_a_trace(
    instance: ClientInstance,
    queues: list[MessageQueue],
    group: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each of its queues is being pulled when the subscription ends."""
    await send(instance, queues, 4)
    async with reader(instance, group, subscriptions={queues[0].topic: "*"}) as consumer:
        await take(consumer, 4)
        await send(instance, queues, 8)
        await consumer.unsubscribe(queues[0].topic)
        await send(instance, queues, 8)

        with pytest.raises(ClientError, match="has no topics and no queues"):
            await consumer.poll()
        assert consumer.queues() == []
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_other_queues_are_assigned_and_what_was_finished_stays_so(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    first, second = queues[:2]
    await send(instance, [first], 4)
    await send(instance, [second], 1, tags="b")
    async with reader(instance, group, auto_commit_ms=60_000) as consumer:
        await consumer.assign([first])
        await take(consumer, 3)
        await consumer.assign([second], filter="b")
        assert await consumer.committed(first) == 2

        assert await take(consumer, 1) == ["0"]
        await consumer.assign([second], filter="b || c")
        await send(instance, [second], 1, tags="c")
        messages = await consumer.poll(FOUND_S)
        assert [(message.tags, message.queue_offset) for message in messages] == [("c", 1)]


async def test_only_wanted_tags_are_handed_out(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    await send(instance, queues[:1], 2, tags="other")
    await send(instance, queues[:1], 2, tags="mine")
    async with reader(instance, group) as consumer:
        await consumer.subscribe(queues[0].topic, "mine || nobody's")
        assert await take(consumer, 2) == ["0", "1"]

        await consumer.subscribe(queues[0].topic, "other")
        await consumer.seek_to_begin(queues[0])
        messages = await consumer.poll(FOUND_S)
        assert {message.tags for message in messages} == {"other"}


async def test_a_new_group_may_start_at_a_time(
    instance: ClientInstance, target: str, queues: list[MessageQueue], group: str
) -> None:
    await send(instance, queues[:1], 3)
    async with reader(instance, f"{group}-look") as consumer:
        await consumer.assign(queues[:1])
        async with asyncio.timeout(FOUND_S):
            stored = [await anext(consumer) for _ in range(3)]
    start = datetime.fromtimestamp(stored[1].store_time_ms / 1000, UTC)
    first = next(m for m in stored if m.store_time_ms >= stored[1].store_time_ms)

    async with PullConsumer(instance=instance, group=group, start_from=start) as consumer:
        # Brokers give 0 to a group they do not know while a queue's first message is in memory.
        known = await consumer.committed(queues[0])
        await consumer.assign(queues[:1])
        expected = first.body.decode() if known is None else "0"
        assert await take(consumer, 1) == [expected]
        later = start + timedelta(days=1)
        # A broker of 4.9 gives the last message for a time behind it.
        assert await consumer.offset_at_time(queues[0], later) == (2 if target == "4.9.7" else 3)


# --- pausing -------------------------------------------------------------------------------------


async def test_a_paused_queue_hands_out_nothing_and_goes_on_where_it_was(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    first, second = queues[:2]
    await send(instance, [first], 4)
    async with reader(instance, group) as consumer:
        await consumer.assign([first, second])
        assert await take(consumer, 2) == ["0", "1"]

        consumer.pause(first)
        assert consumer.paused() == {first}
        await send(instance, [second], 2)
        await send(instance, [first], 1)
        assert await take(consumer, 2) == ["0", "1"]
        assert await consumer.poll(timeout=0.3) == []

        consumer.resume(first)
        assert await take(consumer, 3) == ["2", "3", "0"]


async def test_a_queue_that_is_not_ones_own_is_not_paused_or_sought(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    async with reader(instance, group) as consumer:
        await consumer.assign(queues[:1])

        with pytest.raises(NotAssignedError):
            consumer.pause(queues[0], queues[1])
        assert consumer.paused() == set()
        with pytest.raises(NotAssignedError):
            await consumer.seek(queues[1], 0)
        with pytest.raises(NotAssignedError):
            await consumer.commit({queues[1]: 0})


# --- committing ----------------------------------------------------------------------------------

KILLED = """
import asyncio, sys
from cometmq.client import MessageQueue, PullConsumer, StartFrom

async def main():
    address, group, topic, broker = sys.argv[1:]
    consumer = PullConsumer(
        address, group=group, start_from=StartFrom.FIRST, auto_commit_ms=20, pull_batch=32
    )
    async with consumer:
        await consumer.assign([MessageQueue(topic, broker, 0)])
        for _ in range(6):
            print((await anext(consumer)).body.decode(), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_auto_commit_loses_nothing_when_the_process_is_killed(
    instance: ClientInstance, name_servers: str, queues: list[MessageQueue], group: str
) -> None:
    """The message in hand was not finished, so it comes again; those before it do not."""
    queue = queues[0]
    await send(instance, [queue], 10)
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KILLED, name_servers, group, queue.topic, queue.broker_name),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert killed.stdout is not None
    try:
        async with asyncio.timeout(FOUND_S):
            handed_out = [int(await killed.stdout.readline()) for _ in range(6)]
        async with reader(instance, group) as consumer:

            async def all_but_the_last() -> bool:
                return await consumer.committed(queue) == 5

            await until(all_but_the_last)
    finally:
        killed.send_signal(signal.SIGKILL)
        await killed.communicate()

    async with reader(instance, group) as consumer:
        await consumer.assign([queue])
        assert handed_out == [0, 1, 2, 3, 4, 5]
        assert await take(consumer, 5) == ["5", "6", "7", "8", "9"]


async def test_what_is_finished_is_committed_by_itself(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    await send(instance, queues[:1], 5)
    async with reader(instance, group, auto_commit_ms=20) as consumer:
        await consumer.assign(queues[:1])
        await take(consumer, 5)

        async def four() -> bool:
            return await consumer.committed(queues[0]) == 4

        await until(four)


async def test_a_loop_of_ones_own_ends_on_sigterm_as_documented(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    await send(instance, queues[:1], 5)
    stop, found = asyncio.Event(), list[StoredMessage]()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    try:
        async with reader(instance, group, subscriptions={queues[0].topic: "*"}) as consumer:
            while not stop.is_set():
                found += await consumer.poll(timeout=0.1)
                if len(found) == 5:
                    os.kill(os.getpid(), signal.SIGTERM)
                    await asyncio.wait_for(stop.wait(), FOUND_S)
            await consumer.commit()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)

    async with reader(instance, group) as consumer:
        assert await consumer.committed(queues[0]) == 5


async def test_without_auto_commit_only_what_is_told_is_committed(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    await send(instance, queues[:2], 8)
    async with reader(instance, group, auto_commit_ms=0) as consumer:
        await consumer.assign(queues[:2])
        await take(consumer, 8)
        await consumer.commit([queues[0]])
        await consumer.commit({queues[1]: 2})

        assert [await consumer.committed(queue) for queue in queues[:2]] == [4, 2]

    async with reader(instance, group, auto_commit_ms=0) as consumer:
        await consumer.assign(queues[:2])
        assert await take(consumer, 2) == ["5", "7"]


# --- listening to the queues ---------------------------------------------------------------------


class Told:
    """Notes what a listener is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.called = asyncio.Event()

    async def __call__(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        self.calls.append((topic, len(queues), len(mine)))
        self.called.set()


async def is_found(instance: ClientInstance, topic: str) -> bool:
    """Whether a name server knows the topic."""
    try:
        await core_of(instance).routes.find(topic)
    except TopicNotFoundError:
        return False
    return True


async def test_a_listener_is_told_when_a_topic_gets_more_queues(
    name_servers: str, instance: ClientInstance, topic: str, group: str
) -> None:
    told = Told()
    async with (
        PullConsumer(name_servers, group=group, on_queues=told, route_refresh_ms=50) as consumer,
        AdminClient(instance=instance) as admin,
    ):
        await consumer.assign((await consumer.fetch_queues(topic))[:3])
        # RocketMQ 5 loses the change of a topic if it registers another topic at the same moment.
        await until(partial(is_found, instance, retry_topic(group)))
        await admin.create_topic(topic, queues=6)
        async with asyncio.timeout(FOUND_S):
            await told.called.wait()
    assert told.calls == [(topic, 6, 3)]


async def test_a_listener_is_told_how_subscribed_queues_were_divided(
    instance: ClientInstance, topic: str, group: str
) -> None:
    told = Told()
    async with reader(instance, group, on_queues=told, subscriptions={topic: "*"}):
        async with asyncio.timeout(FOUND_S):
            await told.called.wait()
    assert told.calls == [(topic, 4, 4)]


# --- ending, and again ---------------------------------------------------------------------------


async def test_iteration_ends_when_the_consumer_is_closed(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    consumer = reader(instance, group)
    await consumer.start()
    await consumer.assign(queues)

    async def read_all() -> list[StoredMessage]:
        return [message async for message in consumer]

    reading = asyncio.create_task(read_all())
    await asyncio.sleep(0)
    await consumer.close()
    async with asyncio.timeout(FOUND_S):
        assert await reading == []


async def test_a_message_sent_back_comes_again_by_the_retry_topic(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    await send(instance, queues[:1], 1)
    wanted = {queues[0].topic: "*", retry_topic(group): "*"}
    async with reader(instance, group, subscriptions=wanted, rebalance_ms=1000) as consumer:
        async with asyncio.timeout(FOUND_S):
            first = await anext(consumer)
            await consumer.send_back(first, delay_level=1)
            again = await anext(consumer)

    assert (again.body, again.reconsume_times) == (b"0", 1)
    assert again.real_topic(group) == queues[0].topic


# --- everybody reads everything ------------------------------------------------------------------


async def test_every_member_of_a_broadcast_reads_all_and_keeps_its_own_place(
    name_servers: str,
    instance: ClientInstance,
    target: str,
    queues: list[MessageQueue],
    group: str,
    tmp_path: Path,
) -> None:
    bodies = await send(instance, queues[:1], 3)

    def member(number: int) -> PullConsumer:
        return PullConsumer(
            name_servers,
            group=group,
            broadcast=True,
            start_from=StartFrom.FIRST,
            subscriptions={queues[0].topic: "*"},
            offset_folder=str(tmp_path),
            instance_name=f"member-{group}-{number}",
        )

    async with member(1) as first, member(2) as second:
        assert await take(first, 3) == bodies
        assert await take(second, 1) == ["0"]
        await first.commit()
        await second.commit()
    async with member(1) as first, member(2) as second:
        assert await take(second, 2) == ["1", "2"]
        assert await first.poll(timeout=0.3) == []
    async with AdminClient(instance=instance) as admin:
        committed = await admin.committed(group, queues[0].topic)
        # A broker of 4.9 says 0 where it knows nothing.
        assert set(committed.values()) == {0 if target == "4.9.7" else None}


# --- requests of a stream ------------------------------------------------------------------------


class Noting:
    """Notes what each request is and the fields it travels with."""

    def __init__(self) -> None:
        self.noted: list[tuple[int, dict[str, str]]] = []

    def before_request(self, address: str, call: OutgoingCall) -> None:
        self.noted.append((call.code, dict(call.fields)))

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Nothing to note."""


def noting(name_servers: str, settings: ClientSettings) -> Noting:
    """Note the requests of the client that the consumer with these settings shares."""
    remoting = acquire_instance(name_servers, settings=settings).instance.remoting
    remoting.hooks = (*remoting.hooks, noted := Noting())
    return noted


@pytest.mark.parametrize("subscribed", [False, True])
async def test_all_requests_say_that_they_are_of_a_stream_as_recorded_ones_do(
    name_servers: str, queues: list[MessageQueue], group: str, target: str, subscribed: bool
) -> None:
    """Route requests, too: the recorded ones without the field are another client's."""
    version = "4.9.7" if target == "4.9.7" else "5.3.3"
    mine = ClientSettings(client_ip="10.0.0.1", instance_name=group)
    consumer = PullConsumer(name_servers, group=group, client=mine, start_from=StartFrom.FIRST)
    requests = noting(
        name_servers, ClientSettings(client_ip="10.0.0.1", instance_name=group, stream=True)
    )
    async with ClientInstance(name_servers) as other:
        await send(other, queues[:1], 1)
    async with consumer:
        await (consumer.subscribe(queues[0].topic) if subscribed else consumer.assign(queues))
        assert await take(consumer, 1) == ["0"]
        await consumer.commit()

    assert consumer.client_id == f"10.0.0.1@{group}@STREAM"
    recorded = {
        name for name, sent in frames(version, "lite_pull") if sent.fields.get("ReqT") == "0"
    }
    sent = {RequestCode(code).name for code, _ in requests.noted}
    only_there = {"SEARCH_OFFSET_BY_TIMESTAMP"}
    if not subscribed:
        only_there.add("GET_CONSUMER_LIST_BY_GROUP")
    assert recorded - only_there <= sent
    pulls = {"PULL_MESSAGE", "LITE_PULL_MESSAGE"}
    assert sent & pulls == recorded & pulls, "the one code that the broker serves them by"
    assert {fields.get("ReqT") for _, fields in requests.noted} == {"0"}


async def test_brokers_list_a_subscribed_consumer_as_a_stream(
    name_servers: str, topic: str, group: str
) -> None:
    async with (
        ClientInstance(name_servers) as other,
        PullConsumer(name_servers, group=group, subscriptions={topic: "*"}) as consumer,
    ):

        async def listed() -> bool:
            found = await core_of(other).members(group, topic)
            return found.client_ids == [consumer.client_id]

        await until(listed)
    assert consumer.client_id.endswith("@STREAM")


def test_a_consumer_is_no_stream_where_somebody_says_so(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ClientSettings(stream=False)
    by_keyword = PullConsumer("127.0.0.1:1", group=group, stream=False)
    by_settings = PullConsumer("127.0.0.1:1", group=group, client=plain)
    monkeypatch.setenv("COMETMQ_CLIENT_STREAM", "false")
    by_environment = PullConsumer("127.0.0.1:1", group=group)

    found = [by_keyword.client_id, by_settings.client_id, by_environment.client_id]
    assert not [name for name in found if name.endswith("@STREAM")]


async def test_a_consumer_that_borrows_an_instance_is_what_that_one_is(
    instance: ClientInstance, group: str
) -> None:
    assert PullConsumer(instance=instance, group=group).client_id == instance.client_id
