"""Scripted name servers and brokers, for what real ones do not do on demand.

They speak over real connections; what they answer is decided by the test.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from contextlib import AsyncExitStack
from enum import Enum
from types import TracebackType
from typing import Self

from cometmq.protocol.bodies.heartbeat import HeartbeatData
from cometmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.consumer import UnregisterClientRequest
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.protocol.headers.send import SendMessageResponse, SendMessageV2Request
from cometmq.remoting import (
    Peer,
    RemotingServer,
    RemotingSettings,
    Request,
    RequestHandler,
    Response,
    TlsSettings,
)
from support.checks.waiting import Changes

HOST = "127.0.0.1"
OFFSET_ID = "7F00000100002A9F0000000000001000"


class Act(Enum):
    """What a broker does with a send instead of answering it."""

    STAY_SILENT = "stay silent"
    HANG_UP = "hang up"


class _Peer(Changes):
    def __init__(self, handlers: dict[int, RequestHandler]) -> None:
        super().__init__()
        self.handlers = handlers
        self._server = self._make_server()

    def _make_server(self) -> RemotingServer:
        return RemotingServer(
            self.handlers,
            settings=RemotingSettings(),
            tls=TlsSettings(mode="disabled"),
            name="scripted",
        )

    @property
    def address(self) -> str:
        return f"{HOST}:{self._server.port}"

    async def start(self, port: int = 0) -> None:
        await self._server.start(HOST, port)

    async def stop(self) -> None:
        await self._server.stop(0.0)

    async def be_away(self, seconds: float) -> None:
        """Refuse connections for a while, and then accept them at the same address."""
        port = self._server.port
        await self.stop()
        await asyncio.sleep(seconds)
        self._server = self._make_server()
        await self.start(port)

    async def move(self) -> None:
        """After a stop: accept connections at another address."""
        self._server = self._make_server()
        await self.start()


class ScriptedBroker(_Peer):
    """A broker whose answers to sends are given in advance; without any it says yes."""

    def __init__(self, name: str = "a", *script: int | Act) -> None:
        self.name = name
        self.script: deque[int | Act] = deque(script)
        self.sends: list[SendMessageV2Request] = []
        self.heartbeats: list[HeartbeatData] = []
        self.goodbyes: list[UnregisterClientRequest] = []
        self._connections: list[Peer] = []
        super().__init__(
            {
                RequestCode.SEND_MESSAGE_V2: self._send,
                RequestCode.SEND_BATCH_MESSAGE: self._send,
                RequestCode.HEART_BEAT: self._heartbeat,
                RequestCode.UNREGISTER_CLIENT: self._goodbye,
            }
        )

    def hang_up(self) -> None:
        """Close every connection, and accept new ones."""
        for connection in self._connections:
            connection.abort()

    def _send(self, request: Request) -> Response | None:
        header = request.header(SendMessageV2Request)
        self.sends.append(header)
        self._connections.append(request.connection)
        self.moved.set()
        act = self.script.popleft() if self.script else ResponseCode.SUCCESS
        if act is Act.HANG_UP:
            request.connection.abort()
        if isinstance(act, Act):
            return None
        answer = SendMessageResponse(msg_id=OFFSET_ID, queue_id=header.queue_id, queue_offset=7)
        return Response(act, "as scripted", header=answer)

    def _heartbeat(self, request: Request) -> Response:
        self.heartbeats.append(HeartbeatData.decode(request.body))
        self.moved.set()
        return Response()

    def _goodbye(self, request: Request) -> Response:
        self.goodbyes.append(request.header(UnregisterClientRequest))
        return Response()


class ScriptedNameServer(_Peer):
    """A name server that knows the topics it is told of."""

    def __init__(self) -> None:
        self.routes: dict[str, TopicRouteData] = {}
        self.asked: list[str] = []
        self.silent = False
        super().__init__({RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route})

    def _route(self, request: Request) -> Response | None:
        topic = request.header(GetRouteinfoByTopicRequest).topic
        self.asked.append(topic)
        self.moved.set()
        if self.silent:
            return None
        if topic not in self.routes:
            return Response(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info for {topic}")
        return Response(body=self.routes[topic].encode())


def route(addresses: dict[str, str], *, queues: int = 2) -> TopicRouteData:
    """The route of a topic that these brokers serve: broker name → address."""
    return TopicRouteData(
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=6)
            for name in addresses
        ],
        broker_datas=[
            BrokerData(cluster="c", broker_name=name, broker_addrs={0: address})
            for name, address in addresses.items()
        ],
    )


@dataclasses.dataclass
class ScriptedCluster:
    """A name server and brokers; the topic ``t`` is on all of the brokers."""

    brokers: list[ScriptedBroker]
    name_server: ScriptedNameServer = dataclasses.field(default_factory=ScriptedNameServer)

    def __post_init__(self) -> None:
        self._stack = AsyncExitStack()

    @property
    def address(self) -> str:
        return self.name_server.address

    @property
    def sends(self) -> list[str]:
        """The brokers that got a send, by name, each as often as it did."""
        return [broker.name for broker in self.brokers for _ in broker.sends]

    async def __aenter__(self) -> Self:
        for peer in (self.name_server, *self.brokers):
            await peer.start()
            self._stack.push_async_callback(peer.stop)
        addresses = {broker.name: broker.address for broker in self.brokers}
        self.name_server.routes["t"] = route(addresses)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()


class SentBroker(ScriptedBroker):
    """Remembers the commands of sends, beside their headers."""

    def __init__(self, name: str = "a", *script: int | Act) -> None:
        self.commands: list[Command] = []
        super().__init__(name, *script)
        self.handlers[RequestCode.SEND_REPLY_MESSAGE_V2] = self._send

    def _send(self, request: Request) -> Response | None:
        self.commands.append(request.command)
        return super()._send(request)
