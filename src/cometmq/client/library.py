"""The client's interface for libraries: routes, requests, pulls and sends of encoded messages.

Applications use producers and consumers. A library that brings its own retries, order and decoding,
such as a connector, uses these parts instead:

    ClientConnection   connects to name servers and brokers; sends any request
    QueuePulls         pulls of one queue, as the bytes that brokers store
    EncodedSender      sends encoded messages, one attempt per call; opens producer sessions

All of them belong to the event loop in which the connection was started. A library without a loop
runs them in a portal (`cometmq.client.blocking.portal`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any, NamedTuple, Self

import msgspec

from cometmq.client._connection.instance import ClientCore
from cometmq.client._connection.name_servers import HasNameServers, parse_addresses
from cometmq.client._connection.routes import MASTER_ID, Route, route_from
from cometmq.client._consuming.pulls import Pull, PullResult, pull_once
from cometmq.client._sending.outgoing import Outgoing
from cometmq.client._sending.retry_policy import RetryPolicy
from cometmq.client._sending.sender import Sender
from cometmq.client._sending.targets import ANY_QUEUE, SendTarget
from cometmq.client.receipt import SendReceipt
from cometmq.client.settings import ClientSettings, ProducerSettings
from cometmq.model import property_names as names
from cometmq.model.errors import ResponseError
from cometmq.model.message import Message
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.batch import decode_batch
from cometmq.protocol.bodies.producer_session import ProducerSessionBounds
from cometmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from cometmq.protocol.command import Command, encode_head
from cometmq.protocol.headers.base import Header, encode_fields
from cometmq.protocol.headers.producer_session import (
    OpenProducerSessionRequest,
    OpenProducerSessionResponse,
)
from cometmq.protocol.headers.send import SendMessageV2Request
from cometmq.protocol.logical_queues import LOGICAL_PREFIX
from cometmq.protocol.properties import encode_properties
from cometmq.remoting import CallTimeoutError, Connection, RemotingClient, check

__all__ = [
    "LOGICAL_PREFIX",
    "MASTER_ID",
    "ClientConnection",
    "EncodedSender",
    "OpenedSession",
    "ProducerSession",
    "Pull",
    "PullResult",
    "QueuePulls",
    "Route",
    "SessionFencedError",
    "parse_addresses",
    "route_from",
]

_STORED = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Response codes of what is stored, but less safely than the broker is configured."""
_BATCH_PROPERTIES = encode_properties({names.WAIT: "true"}).decode()


class ClientConnection:
    """Connections to the name servers and brokers of one cluster, without a producer or consumer.

    Connections are opened by the first request to a server. Brokers do not know the client: it has
    no group and sends no heartbeat.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses. If empty, the setting
            ``name_servers`` is used.
        settings: the client's settings; other settings come from the environment and a file.

    Example:
        async with ClientConnection("127.0.0.1:9876") as connection:
            route = await connection.route("orders")
            for queue in route.read_queues:
                print(queue, await connection.max_offset(route.master(queue), queue))
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | HasNameServers = "",
        *,
        settings: ClientSettings | None = None,
    ) -> None:
        self._core = ClientCore(name_servers, settings=settings)
        self._brokers = self._core.brokers

    @property
    def settings(self) -> ClientSettings:
        """The settings that are in effect."""
        return self._core.settings

    @property
    def closed(self) -> bool:
        """Whether it is closed. It cannot be started again."""
        return self._core.closed

    async def start(self) -> None:
        """Start the connection. It connects to no server yet.

        Raises:
            ClientClosedError: the connection was closed before.
            NameServerError: no name server is set, and the HTTP endpoint returned none.
        """
        await self._core.start()

    async def close(self) -> None:
        """Close every connection. Further calls do nothing."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def call_name_server(
        self, code: int, header: Header | None = None, body: bytes = b""
    ) -> Command:
        """Send a request to the name servers in turn; return the first response, if a success.

        Raises:
            ResponseError: the name server refused.
            NameServerError: no name server responded within the setting ``call_timeout_ms``.
        """
        timeout = self.settings.call_timeout_ms / 1000
        return check(await self._core.name_servers.call(code, header, body, timeout=timeout))

    async def call_broker(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout: float | None = None,
    ) -> Command:
        """Send a request to a broker; return the response, if a success.

        Args:
            address: the broker's address.
            code: the request code.
            header: the request's header, if it has one.
            body: the request's body.
            timeout: in seconds; None for the setting ``call_timeout_ms``.

        Raises:
            ResponseError: the broker refused; ``address`` names it.
            RemotingError: no response.
        """
        return await self._brokers.call(address, code, header, body, timeout=timeout)

    async def route(self, topic: str, *, cached: bool = False) -> Route:
        """Return the route of a topic.

        Args:
            topic: the topic's name on the wire, with its namespace.
            cached: whether a route that was returned before may be returned again; it is refreshed
                every ``route_refresh_ms``.

        Raises:
            TopicNotFoundError: the name server knows no such topic.
            NameServerError: no name server responded.
        """
        if not cached:
            self._core.routes.forget(topic)
        return await self._core.routes.find(topic)

    async def pull(
        self, address: str, pull: Pull, offset: QueueOffset, *, timeout: float
    ) -> PullResult:
        """Pull messages of a queue from a broker, and decode them.

        Args:
            address: the broker's address.
            pull: the queue, the filter and the limits.
            offset: the offset of the first message.
            timeout: in seconds; longer than the broker may hold the pull.

        Raises:
            ResponseError: the broker refused.
            RemotingError: no response.
        """
        return await pull_once(self._brokers, address, pull, offset, timeout=timeout)

    async def min_offset(self, address: str, queue: MessageQueue) -> QueueOffset:
        """Return the offset of a queue's oldest message; raises as `call_broker` does."""
        return await self._brokers.min_offset(address, queue)

    async def max_offset(self, address: str, queue: MessageQueue) -> QueueOffset:
        """Return the offset of a queue's next message; raises as `call_broker` does."""
        return await self._brokers.max_offset(address, queue)

    async def offset_at_time(
        self, address: str, queue: MessageQueue, timestamp_ms: int
    ) -> QueueOffset:
        """Return the offset that a broker finds for a time in ms since 1970.

        Brokers since 5.0 return the first message stored at or after the time. Older brokers return
        the message nearest to it. Raises as `call_broker` does.
        """
        return await self._brokers.offset_at_time(address, queue, timestamp_ms)

    async def committed(
        self, address: str, group: str, queue: MessageQueue, *, zero_if_unknown: bool = True
    ) -> QueueOffset | None:
        """Return the committed offset of a group in a queue; None if there is none.

        Args:
            address: the broker's address.
            group: the consumer group.
            queue: the queue.
            zero_if_unknown: whether a broker may return 0 for a group that it does not know, while
                the queue's first message is still in memory. Old brokers always do.

        Raises:
            ResponseError: the broker refused.
            RemotingError: no response.
        """
        return await self._brokers.committed(address, group, queue, zero_if_unknown=zero_if_unknown)

    async def commit(
        self, address: str, group: str, queue: MessageQueue, offset: QueueOffset
    ) -> None:
        """Commit the offset of a group's next message; raises as `call_broker` does."""
        await self._brokers.commit(address, group, queue, offset)


class QueuePulls:
    """Pulls of one queue, which return the broker's response as it is.

    The response's body holds whole records as brokers store them. A pull over an open connection
    needs no task, and only the changed fields of its header are encoded.

    Args:
        connection: the connection to brokers.
        pull: the queue, the filter and the limits; its ``hold_ms`` is the time for which a broker
            may hold a pull.
        timeout: of one pull, in seconds; longer than ``hold_ms``.
    """

    def __init__(self, connection: ClientConnection, pull: Pull, *, timeout: float) -> None:
        self._remoting = connection._core.remoting
        self._language = LanguageCode[connection.settings.language]
        self._timeout = timeout
        held = encode_fields(pull.header(QueueOffset(0)))
        at_once = msgspec.structs.replace(pull, hold_ms=0)
        self._fields = {True: held, False: encode_fields(at_once.header(QueueOffset(0)))}

    def request(
        self, address: str, offset: int, count: int, *, holds: bool = False
    ) -> asyncio.Future[Command]:
        """Send a pull; return the future of its response, with any response code.

        Args:
            address: the broker's address.
            offset: the offset of the first message.
            count: the limit of messages.
            holds: whether the broker may hold the pull until a message arrives.

        Raises:
            TooManyCallsError: too many requests are in flight; nothing was sent.
        """
        fields = self._fields[holds]
        fields["queueOffset"], fields["maxMsgNums"] = str(offset), str(count)
        connection = self._remoting.ready(address)
        if connection is None:
            return asyncio.ensure_future(self._call(address, dict(fields)))
        response: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        waiter = _PullWaiter(response, self._remoting, connection)
        opaque = connection.begin(waiter, self._timeout)
        connection.write(
            encode_head(
                RequestCode.PULL_MESSAGE, opaque=opaque, fields=fields, language=self._language
            )
        )
        return response

    async def _call(self, address: str, fields: dict[str, str]) -> Command:
        code = RequestCode.PULL_MESSAGE
        return await self._remoting.call(address, code, fields=fields, timeout=self._timeout)


class _PullWaiter:
    """Waits for the response of a pull over an open connection."""

    __slots__ = ("_began_s", "_connection", "_remoting", "_response")

    def __init__(
        self,
        response: asyncio.Future[Command],
        remoting: RemotingClient,
        connection: Connection,
    ) -> None:
        self._response = response
        self._remoting = remoting
        self._connection = connection
        self._began_s = monotonic()

    def done(self) -> bool:
        """Whether the response is no longer awaited."""
        return self._response.done()

    def set_result(self, result: Command) -> None:
        """Pass the response on."""
        self._response.set_result(result)

    def set_exception(self, exception: Exception) -> None:
        """Pass the failure on; a connection over which nothing arrived meanwhile is closed."""
        if isinstance(exception, CallTimeoutError):
            self._remoting.note_silence(self._connection, self._began_s)
        self._response.set_exception(exception)


class ProducerSession(NamedTuple):
    """A producer session as one attempt has opened it, which its sends name."""

    name: str
    """The name that all attempts of a task share."""
    owner: str
    """The name of this attempt alone."""
    epoch: int


class OpenedSession(NamedTuple):
    """The response of one broker to an attempt that opens a producer session."""

    epoch: int
    brokers: frozenset[str]
    """The names of all brokers at which the session was opened for this batch."""
    begins: tuple[int, ...]
    """The end of each queue of this broker when the session was first opened for this batch."""
    ends: tuple[int, ...]
    """The end of each queue now. No earlier attempt stores a message there or behind it."""
    is_complete: bool
    """Whether all messages since the first opening are still stored."""
    is_safe: bool
    """Whether all messages before the ends are flushed and replicated as configured."""


class SessionFencedError(ResponseError):
    """Another attempt has opened the producer session with this epoch, or a newer one.

    Args:
        code, remark: of the response.
        newest: the newest epoch.
    """

    def __init__(self, code: int, remark: str, newest: int) -> None:
        super().__init__(code, remark)
        self.newest = newest


class _SessionOutgoing(Outgoing):
    """A message or a batch that is sent in a producer session."""

    session: ProducerSession

    def header(self, *args: Any, **fields: Any) -> SendMessageV2Request:
        """Make the header of an attempt, as `Outgoing.header`, with the session."""
        header = super().header(*args, **fields)
        header.producer_session, header.producer_owner, header.producer_epoch = self.session
        return header


class EncodedSender:
    """Sends encoded messages. Each call is one attempt; retries are the caller's.

    Args:
        connection: the connection to brokers.
        group: the producer's group.
    """

    def __init__(self, connection: ClientConnection, group: str) -> None:
        self._connection = connection
        self._sender = Sender(connection._core, group, ProducerSettings(retries=1))

    async def queues(self, topic: str, *, timeout: float) -> list[MessageQueue]:
        """Return the writable queues of a topic, always in the same order.

        Args:
            topic: the topic's name.
            timeout: in seconds.

        Raises:
            TopicNotFoundError: the topic does not exist, and no broker creates topics.
            NameServerError: no name server responded.
            NoMasterError: no broker of the topic has a master.
        """
        return await self._sender.targets.queues(topic, timeout)

    async def send(
        self,
        topic: str,
        items: bytes,
        *,
        single: bool = False,
        queue: MessageQueue | None = None,
        retried: frozenset[int] = frozenset(),
        session: ProducerSession | None = None,
        timeout: float,
    ) -> SendReceipt:
        """Send messages in one request.

        Args:
            topic: the topic's name.
            items: the messages as `cometmq.protocol.batch.encode_batch` encodes them.
            single: whether the only message is sent by the request for single messages, which
                delayed messages and messages of retry topics need.
            queue: the target queue; None for any queue of the topic.
            retried: response codes after which a send to any queue tries one other broker.
            session: the producer session of the send, opened at the queue's broker; None for none.
            timeout: in seconds.

        Raises:
            ResponseError: the broker refused.
            SendTimeoutError, SendFailedError: no response; ``maybe_stored`` says whether a broker
                may have stored the messages.
            TopicNotFoundError, NameServerError, NoMasterError: nothing was sent.
        """
        wire_topic = self._sender.namespace.wrap_topic(topic)
        message = Message(topic=topic, body=b"")
        make = Outgoing if session is None else _SessionOutgoing
        if single:
            (item,) = decode_batch(items)
            text = item.properties.decode()
            outgoing = make(wire_topic, message, "", item.body, text, flag=item.flag)
        else:
            code = RequestCode.SEND_BATCH_MESSAGE
            outgoing = make(
                wire_topic, message, "", items, _BATCH_PROPERTIES, is_batch=True, code=code
            )
        if isinstance(outgoing, _SessionOutgoing) and session is not None:
            outgoing.session = session
        policy = RetryPolicy(
            0 if queue else 1,
            0,
            retried,
            retry_not_stored=False,
            retry_when_full=False,
            waits_for_broker=False,
        )
        target = SendTarget(queue) if queue else ANY_QUEUE
        return await self._sender.send(outgoing, target, timeout=timeout, policy=policy)

    async def session_brokers(self, topic: str, *, timeout: float) -> dict[str, str]:
        """Return the brokers at which a producer session of a topic is opened: name and address.

        The route is requested anew. Brokers that take no messages any more count, too: earlier
        attempts may have sent to them. A topic that does not exist yet has none, and neither has a
        static topic, whose queues move.

        Args:
            topic: the topic's name.
            timeout: in seconds.

        Raises:
            TopicNotFoundError: the topic does not exist, and no broker creates topics.
            NameServerError: no name server responded.
            NoMasterError: no broker of the topic has a master.
        """
        wire_topic = self._sender.namespace.wrap_topic(topic)
        self._connection._core.routes.forget(wire_topic)
        route = await self._sender.targets.route(wire_topic, timeout)
        if route.provisional or route.hosts:
            return {}
        queues = (*route.publish_queues, *route.read_queues)
        names = sorted({queue.broker_name for queue in queues})
        masters = {name: route.master(name) for name in names}
        return {name: address for name, address in masters.items() if address is not None}

    async def open_session(
        self,
        topic: str,
        address: str,
        session: ProducerSession,
        *,
        batch: int,
        brokers: Sequence[str],
        expiry_ms: int = 0,
        timeout: float,
    ) -> OpenedSession:
        """Open a producer session at a broker: earlier attempts cannot send there any more.

        Args:
            topic: the topic's name.
            address: the broker's address.
            session: the session; with epoch 0 the broker chooses the next one.
            batch: the number of the batch. Messages of earlier batches do not count.
            brokers: the names of all brokers at which this attempt opens the session.
            expiry_ms: after how long without use the broker forgets the session; 0 for its limit.
            timeout: in seconds.

        Raises:
            SessionFencedError: another attempt has this epoch, or a newer one.
            ResponseError: the broker refused. REQUEST_CODE_NOT_SUPPORTED: it has no producer
                sessions, for example a broker of RocketMQ.
            RemotingError: no response; the session may be open.
        """
        header = OpenProducerSessionRequest(
            topic=self._sender.namespace.wrap_topic(topic),
            session=session.name,
            owner=session.owner,
            epoch=session.epoch,
            batch=batch,
            expiry_ms=expiry_ms,
            brokers=";".join(brokers),
        )
        remoting = self._connection._core.remoting
        code = RequestCode.OPEN_PRODUCER_SESSION
        response = await remoting.call(address, code, header, timeout=timeout)
        if response.code == ResponseCode.PRODUCER_FENCED and response.has_fields:
            newest = response.header(OpenProducerSessionResponse).epoch
            raise SessionFencedError(response.code, response.remark or "", newest)
        if response.code and response.code not in _STORED:
            refused = ResponseError(response.code, response.remark or "")
            refused.address = address
            raise refused
        opened = response.header(OpenProducerSessionResponse)
        bounds = ProducerSessionBounds.decode(response.body)
        return OpenedSession(
            opened.epoch,
            frozenset(filter(None, opened.brokers.split(";"))),
            tuple(bounds.begins),
            tuple(bounds.ends),
            opened.is_complete,
            response.code not in _STORED,
        )
