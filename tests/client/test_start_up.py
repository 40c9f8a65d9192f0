"""The start of a client: its identity, shared connections, addresses of servers, and its close."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress

import pytest

from cometmq.client import (
    ClientClosedError,
    ClientError,
    Message,
    MessageQueue,
    Producer,
)
from cometmq.client._connection.instance import ClientCore, acquire_instance, core_of
from cometmq.client.errors import NameServerError
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.client import ConsumerConnection
from cometmq.protocol.bodies.common import Connection
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.group import GetConsumerConnectionListRequest
from cometmq.remoting import Request, Response
from support.brokers.scripted import ScriptedBroker, ScriptedCluster
from support.checks.cancellation import cancel_at_every_await
from support.clients.members import SilentConsumer

IN_TIME_S = 120.0


async def connections(instance: ClientCore, address: str, group: str) -> list[Connection]:
    """Whom a broker knows of a consumer group."""
    header = GetConsumerConnectionListRequest(consumer_group=group)
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    answer = await instance.brokers.call(address, code, header)
    return ConsumerConnection.decode(answer.body).connection_set


@pytest.mark.parametrize(
    ("settings", "ending"),
    [
        (ClientSettings(client_ip="10.1.2.3", instance_name="shop"), "10.1.2.3@shop"),
        (
            ClientSettings(client_ip="10.1.2.3", instance_name="shop", unit_name="east"),
            "10.1.2.3@shop@east",
        ),
        (
            ClientSettings(client_ip="10.1.2.3", instance_name="shop", stream=True),
            "10.1.2.3@shop@STREAM",
        ),
    ],
)
async def test_brokers_know_a_client_by_address_instance_unit_and_stream(
    name_servers: str, topic: str, group: str, settings: ClientSettings, ending: str
) -> None:
    async with ClientCore(name_servers, settings=settings) as client:
        client.join(SilentConsumer(group, {topic: "*"}))
        await client.routes.find(topic)
        await client.heartbeat()

        assert (await client.members(group, topic)).client_ids == [ending]


async def test_brokers_know_the_language_and_the_version_of_a_client(
    name_servers: str, topic: str, group: str
) -> None:
    async with ClientCore(name_servers) as client:
        client.join(SilentConsumer(group, {topic: "*"}))
        broker = (await client.routes.find(topic)).masters()[0]
        await client.heartbeat()
        (known,) = await connections(client, broker, group)

    assert (known.client_id, known.language, known.version) == (client.client_id, "PYTHON", 479)


async def test_a_client_may_say_that_it_is_written_in_another_language(
    name_servers: str, topic: str, group: str
) -> None:
    settings = ClientSettings(language="GO")
    async with ClientCore(name_servers, settings=settings) as client:
        client.join(SilentConsumer(group, {topic: "*"}))
        broker = (await client.routes.find(topic)).masters()[0]
        await client.heartbeat()
        (known,) = await connections(client, broker, group)

    assert known.language == "GO"


async def test_the_instance_name_default_becomes_one_of_this_process_unless_it_has_to_stay(
    name_servers: str,
) -> None:
    settings = ClientSettings(client_ip="10.1.2.3")
    names = [acquire_instance(name_servers, settings=settings).instance.client_id for _ in range(2)]
    kept = [
        acquire_instance(name_servers, settings=settings, keep_name=True).instance for _ in range(2)
    ]

    assert len(set(names)) == 2
    assert all(name.startswith("10.1.2.3@") and "#" in name for name in names)
    assert kept[0] is kept[1]
    assert kept[0].client_id == "10.1.2.3@DEFAULT"


class CountingBroker(ScriptedBroker):
    """Counts the connections over which it was sent something."""

    def __init__(self) -> None:
        super().__init__("a")
        self.peers: set[str] = set()

    def _send(self, request: Request) -> Response | None:
        self.peers.add(request.connection.peer_text)
        return super()._send(request)


@pytest.mark.parametrize(("names", "connections"), [(("one", "one"), 1), (("one", "other"), 2)])
async def test_objects_with_one_client_id_have_one_set_of_connections(
    names: tuple[str, str], connections: int
) -> None:
    broker = CountingBroker()
    async with ScriptedCluster([broker]) as cluster:
        settings = [ClientSettings(instance_name=name) for name in names]
        async with (
            Producer(cluster.address, group="g1", client=settings[0]) as one,
            Producer(cluster.address, group="g2", client=settings[1]) as other,
        ):
            await one.send(Message(topic="t", body=b"1"))
            await other.send(Message(topic="t", body=b"2"))

    assert len(broker.peers) == connections


async def test_a_second_member_of_a_group_is_refused_in_one_client(name_servers: str) -> None:
    settings = ClientSettings(instance_name="twice")
    async with Producer(name_servers, group="g", client=settings):
        with pytest.raises(ClientError, match="has a Producer of g already"):
            await Producer(name_servers, group="g", client=settings).start()
        async with Producer(name_servers, group="another", client=settings):
            pass


async def test_an_object_made_before_the_last_one_of_its_client_left_starts(
    name_servers: str, topic: str
) -> None:
    """The client has left its brokers meanwhile, and connects to them again."""
    settings = ClientSettings(instance_name="again")
    first = Producer(name_servers, group="g", client=settings)
    second = Producer(name_servers, group="g", client=settings)
    async with first:
        await first.send(Message(topic=topic, body=b"1"))
    async with second:
        assert (await second.send(Message(topic=topic, body=b"2"))).queue.topic == topic
    with pytest.raises(ClientClosedError):
        await second.start()


async def test_objects_of_one_client_may_close_and_start_at_the_same_time(
    name_servers: str, topic: str
) -> None:
    settings = ClientSettings(instance_name="at-once")
    first, second = (Producer(name_servers, group=name, client=settings) for name in ("g", "h"))
    await first.start()
    await first.send(Message(topic=topic, body=b"1"))
    await asyncio.gather(first.close(), second.start())
    assert await second.send(Message(topic=topic, body=b"2"))
    await second.close()


async def test_name_servers_are_found_in_the_environment(
    name_servers: str, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", name_servers)
    async with Producer(group=group) as producer:
        receipt = await producer.send(Message(topic=topic, body=b"found"))

    assert receipt.queue.topic == topic


@asynccontextmanager
async def endpoint(answer: Callable[[str], str | None]) -> AsyncIterator[str]:
    """An HTTP server that answers each path with what is said of it, and else with 404."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError):  # a client may have left
            head = await reader.readuntil(b"\r\n\r\n")
            said = answer(head.split()[1].decode())
            status = "200 OK" if said is not None else "404 Not Found"
            writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{said or ''}".encode())
            await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_name_servers_are_found_at_an_http_endpoint(
    name_servers: str, topic: str, group: str
) -> None:
    asked: list[str] = []

    def answer(path: str) -> str:
        asked.append(path)
        return f"{name_servers}\nand more\n"

    async with endpoint(answer) as domain:
        settings = ClientSettings(http_domain=domain, http_subgroup="mine", unit_name="east")
        async with Producer(group=group, client=settings) as producer:
            receipt = await producer.send(Message(topic=topic, body=b"found"))

    assert receipt.queue.topic == topic
    assert asked == ["/rocketmq/mine-east?nofix=1"]


async def test_name_servers_that_the_endpoint_names_later_replace_those_before() -> None:
    addresses = ["127.0.0.1:1"]
    async with (
        ScriptedCluster([ScriptedBroker("a")]) as cluster,
        endpoint(lambda path: ";".join(addresses)) as domain,
    ):
        settings = ClientSettings(http_domain=domain, http_refresh_ms=100, call_timeout_ms=200)
        async with ClientCore(settings=settings) as client:
            with pytest.raises(NameServerError):
                await client.routes.find("t")

            addresses[:] = [cluster.address]
            async with asyncio.timeout(IN_TIME_S):
                while await client.routes.refresh("t") is None:
                    await asyncio.sleep(0.02)

            assert client.name_servers.addresses == (cluster.address,)


async def test_name_servers_stay_while_the_endpoint_does_not_answer() -> None:
    answers: list[str | None] = ["127.0.0.1:1"]
    again = asyncio.Event()

    def answer(path: str) -> str | None:
        if answers:
            return answers.pop()
        again.set()
        return None

    async with endpoint(answer) as domain:
        settings = ClientSettings(http_domain=domain, http_refresh_ms=100)
        async with ClientCore(settings=settings) as client:
            async with asyncio.timeout(IN_TIME_S):
                await again.wait()

            assert client.name_servers.addresses == ("127.0.0.1:1",)


async def test_a_client_that_nobody_names_a_name_server_to_does_not_start(group: str) -> None:
    async with endpoint(lambda path: None) as domain:
        producer = Producer(group=group, client=ClientSettings(http_domain=domain))
        with pytest.raises(NameServerError, match="404 Not Found"):
            await producer.start()


async def test_a_client_that_leaves_says_goodbye_and_cannot_come_back(
    name_servers: str, queues: list[MessageQueue], group: str, instance: ClientCore
) -> None:
    topic = queues[0].topic
    client = ClientCore(name_servers)
    await client.start()
    client.join(SilentConsumer(group, {topic: "*"}))
    await client.routes.find(topic)
    await client.heartbeat()
    assert (await core_of(instance).members(group, topic)).client_ids == [client.client_id]

    await client.close()

    with pytest.raises(ResponseError):
        await core_of(instance).members(group, topic)
    with pytest.raises(ClientClosedError, match="create a new one"):
        await client.start()
    await client.close()


async def test_a_start_that_asks_for_name_servers_can_be_cancelled_wherever_it_waits(
    name_servers: str, topic: str, group: str
) -> None:
    """What was not started is closed without a trace, and the next client starts."""
    reports: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reports.append(context["message"])
    )
    async with endpoint(lambda path: name_servers) as domain:
        settings = ClientSettings(http_domain=domain, instance_name="cut")

        async def started() -> None:
            async with Producer(group=group, client=settings):
                pass

        async def works() -> None:
            async with Producer(group=group, client=settings) as producer:
                assert await producer.send(Message(topic=topic, body=b"x"))

        assert await cancel_at_every_await(started, works) >= 4
    gc.collect()  # asyncio reports a failure that was not retrieved when its task is freed
    assert reports == []
