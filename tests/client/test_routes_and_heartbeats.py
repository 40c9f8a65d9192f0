"""Changes of routes, and the heartbeats that brokers get meanwhile."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

import pytest
from servers import Cluster

from cometmq.client import (
    AdminClient,
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SendTimeoutError,
    StoredMessage,
    TopicNotFoundError,
)
from cometmq.client._connection.instance import ClientCore, core_of
from cometmq.client._connection.routes import Route
from cometmq.client.settings import ClientSettings, PullSettings
from cometmq.model.errors import CometError, ResponseError
from cometmq.protocol.bodies.client import ConsumerConnection
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.group import GetConsumerConnectionListRequest
from cometmq.remoting import Connection, Request, Response
from support.brokers.group_broker import GroupBroker
from support.brokers.scripted import Act, ScriptedBroker, ScriptedCluster, route
from support.clients.members import SilentConsumer, SilentProducer

IN_TIME_S = 120.0
OFTEN = ClientSettings(route_refresh_ms=50, heartbeat_ms=50)


async def subscriptions(client: ClientCore, group: str, topic: str) -> dict[str, str]:
    """What a broker of the topic knows that a group wants: topic to expression."""
    address = (await client.routes.find(topic)).masters()[0]
    header = GetConsumerConnectionListRequest(consumer_group=group)
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    answer = await client.brokers.call(address, code, header)
    table = ConsumerConnection.decode(answer.body).subscription_table
    return {name: data.sub_string for name, data in table.items()}


async def test_more_queues_are_seen_at_the_next_refresh(name_servers: str, topic: str) -> None:
    async with ClientCore(name_servers, settings=OFTEN) as client:
        changes: asyncio.Queue[Route] = asyncio.Queue()
        client.routes.on_change.append(changes.put_nowait)
        first = await client.routes.find(topic)
        assert changes.get_nowait() == first

        async with AdminClient(instance=client) as admin:
            await admin.create_topic(topic, queues=6)
        async with asyncio.timeout(IN_TIME_S):
            second = await changes.get()

        assert (len(first.publish_queues), len(second.publish_queues)) == (4, 6)
        assert client.routes.known(topic) == second


async def test_a_route_that_did_not_change_tells_nobody() -> None:
    async with (
        ScriptedCluster([ScriptedBroker("a"), ScriptedBroker("b")]) as cluster,
        ClientCore(cluster.address) as client,
    ):
        told: list[Route] = []
        client.routes.on_change.append(told.append)
        await client.routes.find("t")

        answer = cluster.name_server.routes["t"]
        answer.broker_datas.reverse()
        answer.queue_datas.reverse()
        await client.routes.refresh("t")
        assert len(told) == 1

        answer.queue_datas.pop()
        await client.routes.refresh("t")
        assert len(told) == 2


async def test_a_new_topic_gets_no_more_queues_than_its_producer_wants(
    cluster: Cluster, name_servers: str, group: str, instance: ClientCore
) -> None:
    """It is made by the broker when the first message arrives."""
    topic = f"t-{uuid.uuid4().hex}"
    async with Producer(name_servers, group=group, new_topic_queues=2) as producer:
        receipt = await producer.send(Message(topic=topic, body=b"first"))

    assert receipt.queue.queue_id in (0, 1)
    async with asyncio.timeout(IN_TIME_S):
        while (found := await core_of(instance).routes.refresh(topic)) is None:
            await asyncio.sleep(0.05)
    assert len(found.publish_queues) == 2


async def test_a_topic_that_nobody_has_is_not_found(instance: ClientCore) -> None:
    with pytest.raises(TopicNotFoundError):
        await core_of(instance).routes.find(f"t-{uuid.uuid4().hex}")


async def test_a_broker_without_a_master_is_left_out_when_sending() -> None:
    async with ScriptedCluster([ScriptedBroker("a"), ScriptedBroker("b")]) as cluster:
        slave = next(
            b for b in cluster.name_server.routes["t"].broker_datas if b.broker_name == "b"
        )
        slave.broker_addrs = {1: slave.broker_addrs[0]}
        async with Producer(cluster.address, group="g") as producer:
            for _ in range(6):
                await producer.send(Message(topic="t", body=b"x"))

        assert set(cluster.sends) == {"a"}


async def test_an_order_configuration_decides_which_queues_are_sent_to() -> None:
    async with ScriptedCluster([ScriptedBroker("a"), ScriptedBroker("b")]) as cluster:
        cluster.name_server.routes["t"].order_topic_conf = "b:1"
        async with Producer(cluster.address, group="g") as producer:
            for _ in range(3):
                await producer.send(Message(topic="t", body=b"x"))

        assert cluster.sends == ["b", "b", "b"]
        assert {header.queue_id for broker in cluster.brokers for header in broker.sends} == {0}


@pytest.mark.parametrize("text", ["a:x", "a", ";", "a:0"])
async def test_an_order_configuration_without_queues_is_named_in_the_error(text: str) -> None:
    async with ScriptedCluster([ScriptedBroker("a")]) as cluster:
        cluster.name_server.routes["t"].order_topic_conf = text
        async with Producer(cluster.address, group="g") as producer:
            with pytest.raises(TopicNotFoundError, match="its order configuration"):
                await producer.send(Message(topic="t", body=b"x"))


async def test_a_broker_that_no_route_mentions_any_more_hears_no_more() -> None:
    one, other = ScriptedBroker("a"), ScriptedBroker("b")
    async with (
        ScriptedCluster([one, other]) as cluster,
        ClientCore(cluster.address, settings=OFTEN) as client,
    ):
        client.join(SilentConsumer("g", {"t": "*"}))
        await client.routes.find("t")
        await other.until(lambda: len(other.heartbeats) > 1)
        assert client.broker_version(other.address) > 0

        cluster.name_server.routes["t"] = route({"a": one.address})
        async with asyncio.timeout(IN_TIME_S):
            while client.broker_version(other.address):
                await asyncio.sleep(0.02)
        heard = len(other.heartbeats)
        so_far = len(one.heartbeats)
        await one.until(lambda: len(one.heartbeats) > so_far + 3)

        assert len(other.heartbeats) == heard
        assert client.routes.addresses(masters_only=False) == {one.address}


async def test_slaves_hear_of_consumers_and_not_of_producers_alone() -> None:
    master, slave = ScriptedBroker("a"), ScriptedBroker("a")
    async with ScriptedCluster([master, slave]) as cluster:
        cluster.name_server.routes["t"] = route({"a": master.address})
        cluster.name_server.routes["t"].broker_datas[0].broker_addrs[1] = slave.address
        async with ClientCore(cluster.address) as client:
            await client.routes.find("t")
            await client.heartbeat()
            assert (master.heartbeats, slave.heartbeats) == ([], [])

            client.join(SilentProducer("p"))
            await client.heartbeat()
            assert (len(master.heartbeats), len(slave.heartbeats)) == (1, 0)

            client.join(SilentConsumer("g", {"t": "*"}))
            await client.heartbeat()
            assert (len(master.heartbeats), len(slave.heartbeats)) == (2, 1)


async def test_the_first_heartbeat_does_not_wait_for_the_interval() -> None:
    broker = ScriptedBroker("a")
    async with ScriptedCluster([broker]) as cluster, ClientCore(cluster.address) as client:
        client.join(SilentConsumer("g", {"t": "*"}))
        await client.routes.find("t")

        await broker.until(lambda: bool(broker.heartbeats))


@pytest.mark.parametrize("second_form", [False, True])
async def test_a_subscription_outlives_many_heartbeats_and_changes_with_the_next(
    target: str, name_servers: str, topic: str, group: str, second_form: bool
) -> None:
    settings = ClientSettings(heartbeat_v2=second_form)
    member = SilentConsumer(group, {topic: "TagA"})
    async with ClientCore(name_servers, settings=settings) as client:
        client.join(member)
        await client.routes.find(topic)
        for _ in range(4):
            await client.heartbeat()
        assert await subscriptions(client, group, topic) == {topic: "TagA"}

        member.wanted = {"TBW102": "*", topic: "TagB"}
        for _ in range(3):
            await client.heartbeat()
        assert await subscriptions(client, group, topic) == {"TBW102": "*", topic: "TagB"}


async def test_each_broker_tells_its_version(
    target: str, name_servers: str, topic: str, group: str
) -> None:
    async with ClientCore(name_servers) as client:
        address = (await client.routes.find(topic)).masters()[0]
        assert client.broker_version(address) == 0
        client.join(SilentConsumer(group, {topic: "*"}))
        await client.ensure_heartbeat(address)

        assert client.broker_version(address) == {"4.9.7": 407, "5.5.0": 513}.get(target, 479)


async def test_a_broker_knows_this_client_once_a_heartbeat_was_waited_for(
    name_servers: str, topic: str, group: str
) -> None:
    async with ClientCore(name_servers) as client:
        client.join(SilentConsumer(group, {topic: "*"}))
        address = (await client.routes.find(topic)).masters()[0]

        await asyncio.gather(*(client.ensure_heartbeat(address) for _ in range(5)))

        assert (await client.members(group, topic)).client_ids == [client.client_id]


async def test_a_broker_that_knows_the_client_is_told_of_a_new_member_too() -> None:
    """It answers a request's sender only if it knows the sender as a producer."""
    broker = ScriptedBroker("a")
    async with ScriptedCluster([broker]) as cluster, ClientCore(cluster.address) as client:
        client.join(SilentConsumer("g", {"t": "*"}))
        await client.routes.find("t")
        await client.ensure_heartbeat(broker.address)
        await client.ensure_heartbeat(broker.address)
        assert len(broker.heartbeats) == 1

        client.join(SilentProducer("p"))
        client.heartbeat_soon(broker.address)
        await broker.until(lambda: len(broker.heartbeats) == 2)
        client.join(SilentProducer("q"))
        await client.ensure_heartbeat(broker.address)

        assert producers_in(broker) == [[], ["p"], ["p", "q"]]


def producers_in(broker: ScriptedBroker) -> list[list[str]]:
    """The producer groups in each heartbeat."""
    return [[group.group_name for group in data.producer_data_set] for data in broker.heartbeats]


async def test_one_heartbeat_is_in_flight_to_a_broker() -> None:
    """Brokers may handle two in either order, and then forget the newest members.

    Nor is a member unregistered while a heartbeat that contains it is in flight.
    """
    broker, may_respond = ScriptedBroker("a"), asyncio.Event()
    respond = broker.handlers[RequestCode.HEART_BEAT]

    async def respond_later(request: Request) -> Any:
        response = respond(request)
        await may_respond.wait()
        return response

    async with ScriptedCluster([broker]) as cluster, ClientCore(cluster.address) as client:
        client.join(SilentConsumer("g", {"t": "*"}))
        await client.routes.find("t")
        await client.ensure_heartbeat(broker.address)
        broker.handlers[RequestCode.HEART_BEAT] = respond_later
        leaving = SilentProducer("p")
        client.join(leaving)
        calls = [asyncio.create_task(client.heartbeat())]
        await broker.until(lambda: len(broker.heartbeats) == 2)

        client.join(SilentProducer("q"))
        calls += [asyncio.create_task(client.heartbeat()) for _ in range(3)]
        await client.routes.refresh("t")
        calls.append(asyncio.create_task(client.leave(leaving)))
        await asyncio.sleep(0)
        client.join(SilentProducer("r"))
        assert (len(broker.heartbeats), broker.goodbyes) == (2, [])

        may_respond.set()
        await asyncio.gather(*calls)
        assert producers_in(broker) == [[], ["p"], ["q", "r"]]
        assert [each.producer_group for each in broker.goodbyes] == ["p"]


@pytest.mark.usefixtures("virtual_time")
async def test_a_consumer_of_many_topics_announces_them_in_few_heartbeats() -> None:
    broker, topics = GroupBroker(), [f"t{number}" for number in range(30)]

    def slowly(respond: Any) -> Any:
        async def respond_later(request: Request) -> Any:
            await asyncio.sleep(0.1)
            return respond(request)

        return respond_later

    async def handler(message: StoredMessage) -> None: ...

    for code in (RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP):
        broker.handlers[code] = slowly(broker.handlers[code])
    async with ScriptedCluster([broker]) as cluster, ClientInstance(cluster.address) as instance:
        for topic in topics:
            cluster.name_server.routes[topic] = route({"a": broker.address}, queues=1)
        broker.members = [instance.client_id]
        async with PushConsumer(
            instance=instance,
            group="g",
            handler=handler,
            subscriptions=dict.fromkeys(topics, "*"),
        ):
            await broker.until(lambda: {pull.topic for pull in broker.pulls} >= {*topics})
            assert len(broker.heartbeats) < len(topics) / 2


async def test_a_broker_that_does_not_answer_is_not_waited_for_without_end() -> None:
    async with ScriptedCluster([]) as cluster:
        cluster.name_server.routes["t"] = route({"a": "127.0.0.1:1"})
        async with ClientCore(cluster.address) as client:
            client.join(SilentConsumer("g", {"t": "*"}))
            await client.routes.find("t")
            async with asyncio.timeout(IN_TIME_S):
                await client.ensure_heartbeat("127.0.0.1:1")

            assert client.broker_version("127.0.0.1:1") == 0


@pytest.mark.long_on("5.3.3")
async def test_a_restarted_broker_learns_of_the_client_over_the_first_new_connection(
    own_cluster: Cluster, group: str
) -> None:
    """Long before the next regular heartbeat."""
    topic = f"t-{uuid.uuid4().hex}"
    async with ClientCore(own_cluster.namesrv) as client:
        async with AdminClient(instance=client) as admin:
            await admin.create_topic(topic, queues=1)
        client.join(SilentConsumer(group, {topic: "*"}))
        address = (await client.routes.find(topic)).masters()[0]
        await client.heartbeat()
        told = asyncio.Event()
        client.on_broker.append(lambda found: told.set() if found == address else None)

        await asyncio.to_thread(own_cluster.restart_broker)
        members: list[str] = []
        async with asyncio.timeout(IN_TIME_S):
            while not members:
                await asyncio.sleep(0.05)
                try:
                    members = await client.brokers.members(address, group)
                except CometError:
                    continue

    assert members == [client.client_id]
    assert told.is_set()


class Connections(ScriptedBroker):
    """A broker that notes over which connections it is spoken to."""

    def __init__(self, *script: int | Act) -> None:
        self.used: list[Connection] = []
        super().__init__("a", *script)

    def _send(self, request: Request) -> Response | None:
        self.used.append(request.connection)
        return super()._send(request)

    def _heartbeat(self, request: Request) -> Response:
        self.used.append(request.connection)
        return super()._heartbeat(request)


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_new_connection_begins_with_a_heartbeat_unless_told_otherwise(
    at_once: bool,
) -> None:
    broker = Connections()
    settings = ClientSettings(heartbeat_on_connect=at_once, heartbeat_ms=60_000)
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientCore(cluster.address, settings=settings) as client,
    ):
        client.join(SilentConsumer("g", {"t": "*"}))
        await client.routes.find("t")
        await client.ensure_heartbeat(broker.address)
        before = len(broker.heartbeats)
        lost = await client.remoting.connection(broker.address, timeout=IN_TIME_S)
        lost.close()
        for _ in range(2):  # the second answer comes after that to a heartbeat
            with pytest.raises(ResponseError):
                await client.brokers.members(broker.address, "g")

        assert len(broker.heartbeats) == before + at_once
    assert (len(set(broker.used)) == 2) == at_once


@pytest.mark.parametrize("gives_up", [True, False])
async def test_a_connection_to_a_silent_broker_is_given_up_unless_told_otherwise(
    gives_up: bool,
) -> None:
    broker = Connections(Act.STAY_SILENT)
    settings = ClientSettings(close_after_timeout=gives_up, heartbeat_ms=60_000)
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientCore(cluster.address, settings=settings) as client,
        Producer(instance=client, group="p", retries=0) as producer,
    ):
        await producer.ready("t")  # sends a heartbeat; the first regular one comes after a second
        await broker.until(lambda: len(broker.heartbeats) == 2)
        await client.ensure_heartbeat(broker.address)
        with pytest.raises(SendTimeoutError):
            await producer.send(Message("t", b"x"), timeout=1.3)
        silent, before = broker.used[-1], len(broker.used)
        await producer.send(Message("t", b"x"))

    assert (silent not in broker.used[before:]) == gives_up


async def test_what_fails_again_and_again_is_told_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = ScriptedBroker("a")
    async with ScriptedCluster([broker]) as cluster, ClientCore(cluster.address) as client:
        client.join(SilentProducer("p"))
        await client.routes.find("t")
        answer = cluster.name_server.routes.pop("t")
        with caplog.at_level(logging.INFO, logger="cometmq.client"):
            for _ in range(3):
                await client.routes.refresh("t")
            assert await client.routes.refresh("no-such-topic") is None  # the caller reports it
            cluster.name_server.routes["t"] = answer
            await client.routes.refresh("t")
            await client.routes.refresh("t")

            await broker.stop()
            for _ in range(3):
                await client.heartbeat()

    assert [
        (record.levelname, record.message.split("=")[0])
        for record in caplog.records
        if record.name.startswith("cometmq.client")
    ] == [
        ("WARNING", "cannot refresh a route topic"),
        ("INFO", "route refreshed again topic"),
        ("WARNING", "heartbeat failed address"),
    ]


@pytest.mark.usefixtures("virtual_time")
async def test_heartbeats_keep_a_connection_that_nothing_else_uses() -> None:
    settings = ClientSettings(idle_s=1, heartbeat_ms=300, route_refresh_ms=60_000)
    async with (
        ScriptedCluster([broker := ScriptedBroker("a")]) as cluster,
        ClientCore(cluster.address, settings=settings) as client,
    ):
        await client.routes.find("t")
        client.join(SilentProducer("p"))
        connected: list[str] = []
        client.on_broker.append(connected.append)

        await broker.until(lambda: len(broker.heartbeats) > 6)

        assert connected == [broker.address]


async def test_a_held_pull_keeps_its_connection_however_long_it_is_held(
    name_servers: str, queues: list[MessageQueue], group: str
) -> None:
    settings = ClientSettings(idle_s=1, heartbeat_ms=60_000, route_refresh_ms=60_000)
    connected: list[str] = []
    async with ClientCore(name_servers, settings=settings) as client:
        client.on_broker.append(connected.append)
        async with PullConsumer(instance=client, group=group, hold_ms=5_000) as consumer:
            await consumer.assign(queues[:1])
            assert await consumer.poll(timeout=3.0) == []

            async with Producer(instance=client, group=group) as producer:
                await producer.send(Message(topic=queues[0].topic, body=b"x"), queue=queues[0])
            assert [message.body for message in await consumer.poll(timeout=60.0)] == [b"x"]

    assert len(connected) == 1


def test_by_default_connections_outlast_heartbeats_and_held_pulls() -> None:
    settings, pulls = ClientSettings(), PullSettings()

    assert settings.idle_s * 1_000 >= 2 * settings.heartbeat_ms
    assert settings.idle_s * 1_000 > pulls.hold_ms + pulls.response_margin_ms
