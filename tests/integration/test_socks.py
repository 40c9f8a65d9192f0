"""Connections through a SOCKS proxy, and proxies that refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from cometmq.client import LocalState, Message, Producer, StoredMessage, TransactionProducer
from cometmq.model.errors import ConfigError
from cometmq.remoting import (
    ConnectError,
    RemotingClient,
    RemotingServer,
    Request,
    Response,
    TlsSettings,
)
from cometmq.remoting.client import ConnectionPolicy
from cometmq.remoting.socks import SocksProxies
from cometmq.remoting.tls import client_context
from support.brokers.scripted import ScriptedBroker, ScriptedCluster
from support.brokers.transaction_broker import TransactionBroker
from support.checks.cancellation import cancel_at_every_await

ECHO = 9001
HOST = "127.0.0.1"

BOTH_LOOPS = True


class Proxy:
    """A SOCKS 5 proxy that passes bytes on, and notes whom it was asked for."""

    def __init__(self, *, account: tuple[bytes, bytes] | None = None, reply: int = 0) -> None:
        self.account = account
        self.reply = reply
        self.asked: list[tuple[str, int]] = []
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            if await self._knows(reader, writer):
                await self._connect(reader, writer)
        writer.close()

    async def _knows(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        _, count = await reader.readexactly(2)
        wanted = 2 if self.account else 0
        if wanted not in await reader.readexactly(count):
            writer.write(b"\x05\xff")
            return False
        writer.write(bytes([5, wanted]))
        if self.account is None:
            return True
        _, length = await reader.readexactly(2)
        name = await reader.readexactly(length)
        password = await reader.readexactly((await reader.readexactly(1))[0])
        known = (name, password) == self.account
        writer.write(b"\x01\x00" if known else b"\x01\x01")
        return known

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, command, _, kind = await reader.readexactly(4)
        assert command == 1
        if kind == 3:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        else:
            host = ".".join(map(str, await reader.readexactly(4)))
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.asked.append((host, port))
        writer.write(bytes([5, self.reply, 0, 3, 4]) + b"here" + b"\x00\x01")
        if self.reply:
            return
        there, back = await asyncio.open_connection(HOST, port)
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def running(proxy: Proxy) -> AsyncIterator[Proxy]:
    server = await asyncio.start_server(proxy.serve, HOST, 0)
    proxy.address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield proxy


@pytest.fixture
async def peer() -> AsyncIterator[RemotingServer]:
    def echo(request: Request) -> Response:
        return Response(body=request.body)

    made = RemotingServer({ECHO: echo}, tls=TlsSettings(mode="permissive"))
    await made.start(HOST, 0)
    yield made
    await made.stop(0.0)


@asynccontextmanager
async def client_through(
    proxy: Proxy, network: str = "0.0.0.0/0", *, secret: bool = False, **account: str
) -> AsyncIterator[RemotingClient]:
    config = json.dumps({network: {"addr": proxy.address, **account}})
    tls = client_context() if secret else None
    made = RemotingClient(policy=ConnectionPolicy(proxies=SocksProxies.parse(config)), tls=tls)
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize("secret", [False, True])
@pytest.mark.parametrize("host", [HOST, "localhost"])
async def test_a_peer_is_called_through_the_proxy(
    peer: RemotingServer, host: str, secret: bool
) -> None:
    """The proxy looks up names, and passes encrypted bytes on as they are."""
    async with running(Proxy()) as proxy, client_through(proxy, secret=secret) as client:
        answer = await client.call(f"{host}:{peer.port}", ECHO, body=b"x" * 100_000, timeout=60)

    assert answer.body == b"x" * 100_000
    assert proxy.asked == [(host, peer.port)]


async def test_a_client_reaches_name_servers_and_brokers_through_the_proxy_of_its_settings() -> (
    None
):
    broker = ScriptedBroker("a")
    async with running(Proxy()) as proxy, ScriptedCluster([broker]) as cluster:
        proxies = json.dumps({"127.0.0.0/8": {"addr": proxy.address}})
        async with Producer(cluster.address, group="g", socks_proxies=proxies) as producer:
            await producer.send(Message("t", b"x"))

    wanted = [address.rpartition(":") for address in (cluster.address, broker.address)]
    assert proxy.asked == [(host, int(port)) for host, _, port in wanted]


async def test_a_transaction_check_is_answered_through_the_proxy() -> None:
    class Undecided:
        def execute(self, message: Message, argument: object) -> LocalState:
            return LocalState.UNKNOWN

        def check(self, message: StoredMessage) -> LocalState:
            return LocalState.COMMIT

    broker = TransactionBroker()
    async with running(Proxy()) as proxy, ScriptedCluster([broker]) as cluster:
        proxies = json.dumps({"127.0.0.0/8": {"addr": proxy.address}})
        async with TransactionProducer(
            cluster.address, group="g", listener=Undecided(), socks_proxies=proxies
        ) as producer:
            await producer.send_in_transaction(Message("t", b"x"))
            broker.ask()
            end = await broker.until_ended(2)

    assert (end.commit_or_rollback, end.from_transaction_check) == (8, True)
    assert len(proxy.asked) == 2


async def test_a_proxy_serves_its_network_alone(peer: RemotingServer) -> None:
    async with running(Proxy()) as proxy, client_through(proxy, "10.0.0.0/8") as client:
        await client.call(f"{HOST}:{peer.port}", ECHO, timeout=60)

    assert proxy.asked == []


async def test_a_proxy_learns_name_and_password(peer: RemotingServer) -> None:
    account = {"username": "me", "password": "hush"}
    async with (
        running(Proxy(account=(b"me", b"hush"))) as proxy,
        client_through(proxy, **account) as client,
    ):
        assert (await client.call(f"{HOST}:{peer.port}", ECHO, body=b"x", timeout=60)).body == b"x"


@pytest.mark.parametrize(
    ("account", "reason"),
    [
        ({"username": "me", "password": "wrong"}, "rejects the user name or the password"),
        ({}, "supports none of our"),
    ],
)
async def test_a_proxy_that_does_not_know_us_is_told_of_without_the_password(
    peer: RemotingServer, account: dict[str, str], reason: str
) -> None:
    async with (
        running(Proxy(account=(b"me", b"hush"))) as proxy,
        client_through(proxy, **account) as client,
    ):
        with pytest.raises(ConnectError, match=reason) as refused:
            await client.call(f"{HOST}:{peer.port}", ECHO, timeout=60)

    assert "wrong" not in str(refused.value)
    assert proxy.asked == []


@pytest.mark.parametrize(("reply", "reason"), [(5, "connection refused"), (99, "reply 99")])
async def test_a_proxy_that_cannot_connect_says_why(
    peer: RemotingServer, reply: int, reason: str
) -> None:
    async with running(Proxy(reply=reply)) as proxy, client_through(proxy) as client:
        with pytest.raises(ConnectError, match=reason):
            await client.call(f"{HOST}:{peer.port}", ECHO, timeout=60)


async def test_a_proxy_that_is_not_there_is_an_error_of_connecting(peer: RemotingServer) -> None:
    proxy = Proxy()
    proxy.address = f"{HOST}:1"
    async with client_through(proxy) as client:
        with pytest.raises(ConnectError):
            await client.call(f"{HOST}:{peer.port}", ECHO, timeout=60)


@pytest.mark.parametrize(
    "text",
    [
        "not JSON",
        "[]",
        '{"10.0.0.0/8": {}}',
        '{"10.0.0.0/99": {"addr": "a:1"}}',
        '{"10.0.0.0/8": {"addr": "a"}}',
        '{"10.0.0.0/8": {"addr": "a:0"}}',
        json.dumps({"10.0.0.0/8": {"addr": "a:1", "password": "x" * 256}}),
    ],
)
def test_a_setting_that_is_not_of_the_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected|more than 255 bytes"):
        SocksProxies.parse(text)


def test_the_first_network_that_has_an_address_decides() -> None:
    proxies = SocksProxies.parse(
        '{"10.1.0.0/16": {"addr": "one:1"}, "10.0.0.0/8": {"addr": "two:2"}}'
    )

    def port(host: str) -> int | None:
        proxy = proxies.to(host)
        return proxy.port if proxy else None

    assert [port("10.1.2.3"), port("10.2.2.3"), port("11.0.0.1"), port("a.example")] == [
        1,
        2,
        None,
        None,
    ]


async def test_connecting_through_a_proxy_can_be_cancelled_wherever_it_waits(
    peer: RemotingServer,
) -> None:
    address = f"{HOST}:{peer.port}"
    account = {"username": "me", "password": "hush"}
    async with (
        running(Proxy(account=(b"me", b"hush"))) as proxy,
        client_through(proxy, **account) as client,
    ):

        async def connected_anew() -> None:
            client.disconnect(address)
            await client.call(address, ECHO, timeout=60)

        async def works() -> None:
            assert (await client.call(address, ECHO, body=b"x", timeout=60)).body == b"x"

        assert await cancel_at_every_await(connected_anew, works) > 2
