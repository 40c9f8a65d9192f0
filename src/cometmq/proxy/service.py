"""The gRPC service: which request goes where, and how it is served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from cometmq.client import AdminClient
from cometmq.client.settings import ClientSettings
from cometmq.model.address import host_and_port
from cometmq.model.errors import CometError, ConfigError
from cometmq.proxy.clients import Caller, Client, Clients
from cometmq.proxy.messages import SERVICE, TYPES
from cometmq.proxy.receiving import Receiving
from cometmq.proxy.sending import Sending
from cometmq.proxy.status import OK, Code, StatusError, code_of, status_of
from cometmq.proxy.telemetry import telemetry
from cometmq.proxy.topics import Topics
from cometmq.remoting.tasks import raise_unless_failure

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 8 * 1024 * 1024
CALLS_MAX = 20_000
"""Calls at a time, with those that wait."""
OPTIONS = [
    ("grpc.so_reuseport", 0),  # a second server on the port is a mistake
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_permit_without_calls", 1),  # Java's client pings each 5 minutes
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
    ("grpc.http2.max_ping_strikes", 0),
]
STOP_S = 5.0
Handle = Callable[[Caller, Any], Awaitable[Any]]


class Service:
    """All requests of the service.

    Args:
        admin: the client of the cluster, which its owner starts and closes.
        name_servers: of the cluster.
        settings: of the connections of clients to brokers.
        address: host and port for clients that do not say where they connect.
    """

    def __init__(
        self,
        admin: AdminClient,
        name_servers: str,
        settings: ClientSettings,
        address: tuple[str, int],
    ) -> None:
        self.topics = Topics(admin, address)
        self.sending = Sending(self.topics)
        self.receiving = Receiving(self.topics)
        self.clients = Clients(name_servers, settings, self.receiving.release)
        self._unary: dict[str, Handle] = {
            "QueryRoute": self._query_route,
            "Heartbeat": self._heartbeat,
            "SendMessage": self._send,
            "QueryAssignment": self._query_assignment,
            "AckMessage": self._settled(self.receiving.ack),
            "ChangeInvisibleDuration": self._settled(self.receiving.change),
            "ForwardMessageToDeadLetterQueue": self._settled(self.receiving.forward),
            "EndTransaction": self._settled(self.sending.end_transaction),
            "RecallMessage": self._settled(self.sending.recall),
            "NotifyClientTermination": self._terminate,
        }

    def start(self) -> None:
        """Begin to renew and to expire."""
        self.clients.start()
        self.receiving.start()

    def end_streams(self) -> None:
        """End the streams of all clients: they last for years."""
        self.clients.end_streams()

    async def close(self) -> None:
        """Let all clients leave."""
        await self.clients.close()
        await self.receiving.close()

    async def _query_route(self, _caller: Caller, request: Any) -> Any:
        return await self.topics.query_route(request)

    async def _query_assignment(self, caller: Caller, request: Any) -> Any:
        self.clients.known(caller)
        return await self.topics.query_assignment(request)

    async def _heartbeat(self, caller: Caller, _request: Any) -> Any:
        self.clients.known(caller)
        return TYPES["HeartbeatResponse"](status=OK)

    async def _send(self, caller: Caller, request: Any) -> Any:
        client = self.clients.find(caller)
        await client.instance.start()
        return await self.sending.send(client, request, caller.peer)

    def _settled(self, handle: Callable[[Client, Any], Awaitable[Any]]) -> Handle:
        async def respond(caller: Caller, request: Any) -> Any:
            client = self.clients.find(caller)
            await client.instance.start()
            return await handle(client, request)

        return respond

    async def _terminate(self, caller: Caller, _request: Any) -> Any:
        await self.clients.forget(self.clients.known(caller))
        return TYPES["NotifyClientTerminationResponse"](status=OK)

    # --- gRPC ---------------------------------------------------------------------------------

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a gRPC server calls."""
        methods = {name: self._unary_method(name) for name in self._unary}
        methods["ReceiveMessage"] = grpc.unary_stream_rpc_method_handler(
            self._receive,
            request_deserializer=TYPES["ReceiveMessageRequest"].FromString,
            response_serializer=_serialized,
        )
        methods["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self._telemetry,
            request_deserializer=TYPES["TelemetryCommand"].FromString,
            response_serializer=_serialized,
        )
        handler: grpc.GenericRpcHandler = grpc.method_handlers_generic_handler(
            SERVICE.strip("/"), methods
        )
        return handler

    def _unary_method(self, name: str) -> Any:
        handle, response_type = self._unary[name], TYPES[f"{name}Response"]

        async def respond(request: Any, context: Any) -> Any:
            try:
                return await handle(_caller(context), request)
            except BaseException as error:
                raise_unless_failure(error)
                return response_type(status=_failure(name, error))

        return grpc.unary_unary_rpc_method_handler(
            respond,
            request_deserializer=TYPES[f"{name}Request"].FromString,
            response_serializer=_serialized,
        )

    async def _receive(self, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            client = self.clients.known(_caller(context))
            async for response in self.receiving.receive(client, request, context.time_remaining()):
                yield response
        except BaseException as error:
            raise_unless_failure(error)
            yield TYPES["ReceiveMessageResponse"](status=_failure("ReceiveMessage", error))

    async def _telemetry(self, commands: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        try:
            client = self.clients.find(_caller(context))
        except StatusError as error:
            yield TYPES["TelemetryCommand"](status=status_of(error.code, str(error)))
            return
        try:
            async for command in telemetry(client, self.topics, commands):
                yield command
        except CometError as error:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"process client telemetryCommand failed. {error}",
            )


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _caller(context: Any) -> Caller:
    given = {
        key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)
    }
    peer = str(context.peer())  # ipv4:127.0.0.1:1234
    return Caller(
        given.get("x-mq-client-id", ""), given.get("x-mq-language", ""),
        given.get("x-mq-client-version", ""), peer.partition(":")[2],
    )  # fmt: skip


def _failure(name: str, error: BaseException) -> Any:
    code = code_of(error)
    if code is Code.INTERNAL_SERVER_ERROR and not isinstance(error, CometError):
        log.error("request failed rpc=%s", name, exc_info=error)
    return status_of(code, str(error))


class Listening(NamedTuple):
    """Where and how the service listens."""

    host: str = "127.0.0.1"
    port: int = 8081
    """0 for a free one."""
    certificate: Path | None = None
    key: Path | None = None


async def serve(
    admin: AdminClient,
    name_servers: str,
    settings: ClientSettings,
    listening: Listening,
    ready: Callable[[str], None],
    stopped: asyncio.Event,
) -> None:
    """Serve gRPC clients until it is told to stop.

    Args:
        admin: the client of the cluster, which is started.
        name_servers: of the cluster.
        settings: of the connections of clients to brokers.
        listening: where and how.
        ready: is called with the address.
        stopped: set to stop.

    Raises:
        ConfigError: the address or a file cannot be used.
    """
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
    address = host_and_port(listening.host, listening.port)
    credentials = _credentials(listening)
    try:
        port = (
            server.add_insecure_port(address)
            if credentials is None
            else server.add_secure_port(address, credentials)
        )
    except RuntimeError:
        raise ConfigError(
            f"cannot listen on {address}; expected an address of this machine and a free port:"
            " --host and --port choose others"
        ) from None
    service = Service(admin, name_servers, settings, (listening.host, port))
    server.add_generic_rpc_handlers((service.handler(),))
    service.start()
    await server.start()
    try:
        ready(host_and_port(listening.host, port))
        await stopped.wait()
    finally:
        service.end_streams()
        await server.stop(STOP_S)
        await service.close()


def _credentials(listening: Listening) -> Any:
    """Return what TLS needs; None for a port without it.

    Raises:
        ConfigError: a file cannot be read, or one of the two is missing.
    """
    if listening.certificate is None and listening.key is None:
        return None
    if listening.certificate is None or listening.key is None:
        raise ConfigError("expected both --certificate and --key, or neither of them")
    try:
        pair = listening.key.read_bytes(), listening.certificate.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: {error.strerror}; expected a certificate and its key, PEM"
        ) from None
    return grpc.ssl_server_credentials([pair])
