"""Namespaces, units and the second port of a broker, as applications and brokers see them."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from cometmq.client import (
    AdminClient,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.client._connection.instance import ClientCore, core_of
from cometmq.client.hooks import ConsumeHook, DeliveryContext
from cometmq.client.settings import ClientSettings
from cometmq.model import property_names as names
from cometmq.remoting import Connection
from support.brokers.scripted import ScriptedBroker, ScriptedCluster

IN_TIME_S = 120.0


@pytest.fixture
async def namespace(instance: ClientCore) -> str:
    """A namespace that has a topic ``orders`` with a queue."""
    name = f"ns-{uuid.uuid4().hex[:8]}"
    async with AdminClient(instance=instance) as admin:
        await admin.create_topic(f"{name}%orders", queues=1)
    return name


async def test_an_application_sees_no_namespace_and_a_broker_nothing_else(
    name_servers: str, namespace: str, group: str, instance: ClientCore
) -> None:
    """What is sent to ``orders`` lies in ``ns%orders`` and comes back as ``orders``."""
    inside = ClientSettings(namespace=namespace)
    got: asyncio.Queue[StoredMessage] = asyncio.Queue()

    async def handle(message: StoredMessage) -> None:
        got.put_nowait(message)

    async with Producer(name_servers, group=group, client=inside) as producer:
        receipt = await producer.send(Message(topic="orders", body=b"1"))
        assert receipt.queue.topic == "orders"
        async with PushConsumer(
            name_servers,
            group=group,
            handler=handle,
            subscriptions={"orders": "*"},
            start_from=StartFrom.FIRST,
            client=inside,
        ) as consumer:
            async with asyncio.timeout(IN_TIME_S):
                first = await got.get()
            assert [queue.topic for queue in consumer.queues()] == ["orders"]
            members = await core_of(instance).members(f"{namespace}%{group}", f"{namespace}%orders")
            assert len(members.client_ids) == 1

    assert (first.topic, first.body) == ("orders", b"1")
    assert first.properties[names.INSTANCE_ID] == namespace
    assert core_of(instance).routes.known(f"{namespace}%orders") is not None


class Places(ConsumeHook):
    """Notes where deliveries are from."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str, str]] = set()

    def before(self, context: DeliveryContext) -> None:
        self.seen.add((context.group, context.queue.topic, context.namespace))


async def test_a_pull_consumer_sees_no_namespace_either(
    name_servers: str, namespace: str, group: str
) -> None:
    inside, places = ClientSettings(namespace=namespace), Places()
    async with Producer(name_servers, group=group, client=inside) as producer:
        await producer.send(Message(topic="orders", body=b"1"))
    async with PullConsumer(
        name_servers, group=group, start_from=StartFrom.FIRST, client=inside, hooks=[places]
    ) as consumer:
        await consumer.subscribe("orders")
        async with asyncio.timeout(IN_TIME_S):
            message = await anext(consumer)

    assert (message.topic, message.body) == ("orders", b"1")
    assert places.seen == {(group, "orders", namespace)}


async def test_sends_go_to_the_second_port_and_everything_else_to_the_first(
    name_servers: str, topic: str, group: str
) -> None:
    connected: list[str] = []
    settings = ClientSettings(vip_channel=True)
    async with ClientCore(name_servers, settings=settings) as client:
        note_connections(client, connected)
        async with Producer(instance=client, group=group) as producer:
            await producer.send(Message(topic=topic, body=b"1"))
            (first,) = (await client.routes.find(topic)).masters()
            await client.heartbeat()

    host, _, port = first.rpartition(":")
    assert set(connected) == {name_servers, first, f"{host}:{int(port) - 2}"}


def note_connections(client: ClientCore, into: list[str]) -> None:
    """Note the address of each connection that is made, beside what the client does with it."""
    usual = client.remoting.on_connect
    assert usual is not None

    def noted(address: str, connection: Connection) -> None:
        into.append(address)
        usual(address, connection)

    client.remoting.on_connect = noted


async def test_members_of_a_unit_say_so() -> None:
    broker = ScriptedBroker("a")
    unit = ClientSettings(unit_name="east", unit_mode=True)
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, group="p", client=unit) as producer,
    ):
        await producer.send(Message(topic="t", body=b"1"))
        await broker.until(lambda: bool(broker.heartbeats))

    assert broker.sends[0].unit_mode is True
    assert broker.heartbeats[0].client_id.endswith("@east")
