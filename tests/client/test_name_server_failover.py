"""Name servers that stop, are silent, restart, or are replaced while a client runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from cometmq.client import Message, Producer
from cometmq.client._connection.instance import ClientCore
from cometmq.client._connection.name_servers import NameServers
from cometmq.client.errors import NameServerError
from cometmq.client.settings import ClientSettings
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.remoting import RemotingClient
from cometmq.remoting.ports import LOOPBACK, free_port
from support.brokers.scripted import ScriptedNameServer, route

SHORT_S = 0.4


def dead_address() -> str:
    """An address on which nobody listens."""
    return f"{LOOPBACK}:{free_port()}"


@asynccontextmanager
async def name_servers_of(count: int) -> AsyncIterator[list[ScriptedNameServer]]:
    """Name servers that know the topic ``t``."""
    async with AsyncExitStack() as stack:
        servers = [ScriptedNameServer() for _ in range(count)]
        for server in servers:
            await server.start()
            stack.push_async_callback(server.stop)
            server.routes["t"] = route({"a": "127.0.0.1:1"})
        yield servers


@asynccontextmanager
async def asking(*addresses: str, shuffle: bool = False) -> AsyncIterator[NameServers]:
    """The choice among these addresses, over a client of its own."""
    remoting = RemotingClient()
    try:
        yield NameServers(remoting, addresses, shuffle=shuffle)
    finally:
        await remoting.close()


async def ask(servers: NameServers, *, timeout: float = 3.0) -> None:
    header = GetRouteinfoByTopicRequest(topic="t")
    await servers.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout=timeout)


async def test_a_dead_name_server_is_passed_over_within_the_call(
    name_servers: str, topic: str, group: str
) -> None:
    """Whichever is asked first: ten clients each shuffle the list anew."""
    for number in range(10):
        addresses = f"{dead_address()};{name_servers}"
        async with Producer(addresses, group=f"{group}-{number}") as producer:
            assert await producer.send(Message(topic=topic, body=b"arrives"))


async def test_the_one_that_answered_is_asked_first_from_then_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with name_servers_of(1) as (alive,), asking(dead_address(), alive.address) as servers:
        with caplog.at_level(logging.WARNING):
            await ask(servers)
            await ask(servers)

    assert alive.asked == ["t", "t"]
    assert [record.message.split(" from=")[0] for record in caplog.records] == [
        "name server changed"
    ]


@pytest.mark.usefixtures("virtual_time")
async def test_a_silent_name_server_costs_one_call_its_share_of_the_time() -> None:
    async with name_servers_of(2) as (silent, alive):
        silent.silent = True
        async with asking(silent.address, alive.address) as servers:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await ask(servers, timeout=SHORT_S)
            await ask(servers, timeout=SHORT_S)

            assert loop.time() - began == pytest.approx(SHORT_S / 2)

    assert (silent.asked, alive.asked) == (["t"], ["t", "t"])


async def test_when_all_are_dead_the_error_names_each_and_the_next_call_tries_again() -> None:
    async with name_servers_of(1) as (alive,):
        dead = [dead_address(), dead_address()]
        async with asking(*dead) as servers:
            with pytest.raises(NameServerError) as failed:
                await ask(servers)
            assert all(address in str(failed.value) for address in dead)

            servers.replace([*dead, alive.address])
            await ask(servers)

    assert alive.asked == ["t"]


async def test_clients_spread_over_the_name_servers() -> None:
    async with name_servers_of(2) as servers:
        addresses = [server.address for server in servers]
        for _ in range(40):
            async with asking(*addresses, shuffle=True) as chosen:
                assert sorted(chosen.addresses) == sorted(addresses)
                await ask(chosen)

    assert all(server.asked for server in servers)


async def test_a_list_that_is_replaced_is_asked_from_then_on() -> None:
    async with name_servers_of(2) as (before, after), asking(before.address) as servers:
        await ask(servers)
        servers.replace([after.address])
        await ask(servers)

        assert servers.addresses == (after.address,)

    assert (before.asked, after.asked) == (["t"], ["t"])


async def test_the_same_list_in_another_order_changes_nothing() -> None:
    async with name_servers_of(2) as servers:
        one, other = (server.address for server in servers)
        async with asking(one, other) as chosen:
            chosen.replace([other, one])

            assert chosen.addresses == (one, other)


async def test_a_name_server_that_stays_in_the_list_is_kept_with_its_connection() -> None:
    async with name_servers_of(2) as (one, other), asking(one.address) as servers:
        await ask(servers)
        servers.replace([other.address, one.address])
        await ask(servers)

    assert (one.asked, other.asked) == (["t", "t"], [])


async def test_a_client_sends_on_while_its_name_servers_are_gone(
    name_servers: str, topic: str, group: str
) -> None:
    """What is known of a topic stays, since refreshing it fails."""
    settings = ClientSettings(route_refresh_ms=20)
    async with (
        ClientCore(name_servers, settings=settings) as client,
        Producer(instance=client, group=group) as producer,
    ):
        await producer.send(Message(topic=topic, body=b"before"))
        client.name_servers.replace([dead_address()])
        assert await client.routes.refresh(topic) is client.routes.known(topic) is not None

        assert await producer.send(Message(topic=topic, body=b"after"))
