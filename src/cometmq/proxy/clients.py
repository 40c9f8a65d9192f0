"""The clients of the service: each is a client of the brokers, under its own client id.

Brokers see every gRPC client as a producer or a consumer with a connection of its own. So their
tables, the tools of administrators and the checks of transactions work as for clients of remoting,
and two proxies in front of a broker need not know each other.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from cometmq.client._connection.heartbeats import Membership
from cometmq.client._connection.instance import ClientCore
from cometmq.client.filters import Filter
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ConfigError
from cometmq.model.message import StoredMessage
from cometmq.protocol.bodies.client import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
)
from cometmq.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    ProducerData,
)
from cometmq.protocol.codes import LanguageCode, RequestCode
from cometmq.protocol.headers.consumer import GetConsumerRunningInfoRequest
from cometmq.protocol.headers.transaction import CheckTransactionStateRequest
from cometmq.protocol.record import decode_messages
from cometmq.proxy.checks import group_of, topic_of
from cometmq.proxy.conversion import message_of
from cometmq.proxy.messages import TYPES
from cometmq.proxy.status import Code, StatusError
from cometmq.remoting import Request, RequestHandler, Response
from cometmq.remoting.tasks import Supervisor

log = logging.getLogger(__name__)

CLIENTS_MAX = 10_000
EXPIRED_S = 120.0
"""A client that sends nothing for so long is forgotten."""
CHECK_S = 5.0
COMMANDS_MAX = 256
"""Commands that wait for a client."""
STREAM_MAX = COMMANDS_MAX + 16
"""With them, answers to settings, and the end: a client that reads nothing sends nothing more."""
ANSWER_S = 5.0
TRANSACTIONS_MAX = 10_000
"""Transactions of a client that are not decided."""
TOPICS_MAX = 1_000
PRODUCER, PUSH_CONSUMER, SIMPLE_CONSUMER = 1, 2, 3
SQL = 2
RESULTS = {
    Code.OK: ConsumeResult.CR_SUCCESS,
    Code.FAILED_TO_CONSUME_MESSAGE: ConsumeResult.CR_LATER,
    Code.MESSAGE_CORRUPTED: ConsumeResult.CR_RETURN_NULL,
}


class Caller(NamedTuple):
    """Who sends a request, by its metadata."""

    client_id: str
    language: str
    version: str
    peer: str


class Half(NamedTuple):
    """Where the half message of a transaction lies."""

    address: str
    broker_name: str
    queue_offset: int
    log_offset: int
    message_id: str
    is_checked: bool


class _Member:
    """A group of a client in the heartbeats of its instance."""

    def __init__(
        self,
        group: str,
        membership: Callable[[], Membership],
        handlers: Mapping[int, RequestHandler],
    ) -> None:
        self.group = group
        self.membership = membership
        self.handlers = handlers


class Client:
    """One client.

    Args:
        caller: who it is.
        name_servers: of the cluster.
        settings: of its connections to brokers.
    """

    def __init__(self, caller: Caller, name_servers: str, settings: ClientSettings) -> None:
        self.id = caller.client_id
        language: Any = caller.language.upper()
        if language not in LanguageCode.__members__:
            language = LanguageCode.OTHER.name
        own = replace(settings, language=language)
        self.instance = ClientCore(name_servers, name=caller.client_id, settings=own)
        self.settings: Any = None
        """What it said in its last settings; None before."""
        self.seen_s = time.monotonic()
        self.receiving = 0
        """Receives that wait."""
        self.halves: dict[tuple[str, str], Half] = {}
        """The undecided transactions, by topic and transaction id."""
        self._members: dict[tuple[bool, str], _Member] = {}
        self._stream: asyncio.Queue[Any] | None = None
        self._waiting: deque[Any] = deque(maxlen=COMMANDS_MAX)
        """Commands without a stream; of more, the oldest are dropped."""
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._nonces = itertools.count(1)
        self._changing = asyncio.Lock()

    @property
    def type(self) -> int:
        """The type of client in its settings; 0 before."""
        return 0 if self.settings is None else int(self.settings.client_type)

    @property
    def group(self) -> str:
        """The consumer group in its settings; empty for a producer."""
        return "" if self.settings is None else str(self.settings.subscription.group.name)

    def sees(self) -> None:
        """Note that it has sent something."""
        self.seen_s = time.monotonic()

    async def apply(self, settings: Any) -> None:
        """Take the settings of the client: it joins the groups in them, and leaves others.

        Raises:
            StatusError: they are not valid.
        """
        wanted = self._wanted(settings)
        async with self._changing:
            await self.instance.start()
            for key in [key for key in self._members if key not in wanted]:
                await self._leave(key)
            is_changed = self.settings is not None and settings.subscription != (
                self.settings.subscription
            )
            self.settings = settings
            for key, member in wanted.items():
                if key in self._members and is_changed:
                    await self._leave(key)
                if key not in self._members:
                    self.instance.join(member)
                    self.instance.requests.register(member.group, member.handlers)
                    self._members[key] = member
            for topic in self.topics():
                self.instance.routes.refresh_soon(topic)

    async def master(self, topic: str, broker_name: str) -> str:
        """Return the address of the master of a broker that has a topic.

        Raises:
            StatusError: there is none.
        """
        route = await self.instance.routes.find(topic)
        if (address := route.master(broker_name)) is None:
            raise StatusError(Code.BAD_REQUEST, f"there is no broker {broker_name:.100}")
        return address

    def topics(self) -> list[str]:
        """Return the topics of its settings."""
        if self.settings is None:
            return []
        if self.type == PRODUCER:
            return [each.name for each in self.settings.publishing.topics]
        return [each.topic.name for each in self.settings.subscription.subscriptions]

    def _wanted(self, settings: Any) -> dict[tuple[bool, str], _Member]:
        if settings.WhichOneof("content") == "publishing":
            topics = {topic_of(each) for each in settings.publishing.topics}
            if len(topics) > TOPICS_MAX:
                raise StatusError(Code.BAD_REQUEST, f"{len(topics)} topics: expected {TOPICS_MAX}")
            return {(False, topic): self._producer(topic) for topic in topics}
        if settings.WhichOneof("content") != "subscription":
            raise StatusError(
                Code.BAD_REQUEST, "there is no publishing or subscription data in settings"
            )
        group = group_of(settings.subscription.group)
        if len(settings.subscription.subscriptions) > TOPICS_MAX:
            raise StatusError(Code.BAD_REQUEST, f"expected {TOPICS_MAX} subscriptions at most")
        filters = {
            topic_of(each.topic): filter_of(each.expression)
            for each in settings.subscription.subscriptions
        }
        kind = (
            ConsumeType.CONSUME_PASSIVELY
            if settings.client_type == PUSH_CONSUMER
            else ConsumeType.CONSUME_ACTIVELY
        )
        return {(True, group): self._consumer(group, kind, filters)}

    def _producer(self, topic: str) -> _Member:
        """The producer group of a topic has its name."""
        handlers: dict[int, RequestHandler] = {
            RequestCode.CHECK_TRANSACTION_STATE: self._take_check
        }
        return _Member(
            topic, lambda: Membership(producers=[ProducerData(group_name=topic)]), handlers
        )

    def _consumer(self, group: str, kind: ConsumeType, filters: Mapping[str, Filter]) -> _Member:
        data = ConsumerData(
            group_name=group,
            consume_type=kind,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscription_data_set=[each.data(topic) for topic, each in filters.items()],
        )
        handlers: dict[int, RequestHandler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda request: None,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }
        return _Member(group, lambda: Membership(consumers=[data]), handlers)

    async def _leave(self, key: tuple[bool, str]) -> None:
        member = self._members.pop(key)
        self.instance.requests.unregister(member.group, member.handlers)
        await self.instance.leave(member)

    async def close(self) -> None:
        """Leave all groups."""
        for answer in self._answers.values():
            answer.cancel()
        await self.instance.close()

    # --- commands -----------------------------------------------------------------------------

    def attach(self) -> asyncio.Queue[Any]:
        """Return what a new stream of the client writes; commands go to the newest stream."""
        self._stream = asyncio.Queue(STREAM_MAX)
        while self._waiting:
            self._stream.put_nowait(self._waiting.popleft())
        return self._stream

    def detach(self, stream: asyncio.Queue[Any]) -> None:
        """Let commands wait for the next stream, if this one is the newest."""
        if self._stream is stream:
            self._stream = None

    def end_stream(self) -> None:
        """End the stream of the client."""
        stream = self._stream
        if stream is not None:
            if stream.full():
                stream.get_nowait()
            stream.put_nowait(None)

    def command(self, **content: Any) -> None:
        """Write a command to the stream of the client, as soon as it has one."""
        made = TYPES["TelemetryCommand"](**content)
        if self._stream is None or self._stream.qsize() >= COMMANDS_MAX:
            self._waiting.append(made)
        else:
            self._stream.put_nowait(made)

    def answered(self, nonce: str, answer: Any) -> None:
        """Take the answer to a command."""
        waiting = self._answers.pop(nonce, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def _ask(self, name: str, **content: Any) -> Any:
        """Send a command; return its answer.

        Raises:
            TimeoutError: there is none.
        """
        nonce = str(next(self._nonces))
        answer = self._answers[nonce] = asyncio.get_running_loop().create_future()
        kind = "".join(part.capitalize() for part in name.split("_"))
        self.command(**{name: TYPES[kind](nonce=nonce, **content)})
        try:
            async with asyncio.timeout(ANSWER_S):
                return await answer
        finally:
            self._answers.pop(nonce, None)

    def _take_check(self, request: Request) -> Response | None:
        """CHECK_TRANSACTION_STATE: the client decides by an EndTransaction of its own."""
        header = request.header(CheckTransactionStateRequest)
        found = decode_messages(request.body)
        if not found:
            raise ConfigError("a check without a message")
        message = found[0]
        transaction_id = header.transaction_id or message.message_id
        peer = self.instance.remoting.address_of(request.connection)
        self.remember(
            message.topic,
            transaction_id,
            Half(
                peer or request.connection.peer_text, header.bname or "",
                header.tran_state_table_offset, header.commit_log_offset,
                header.msg_id or message.message_id, is_checked=True,
            ),
        )  # fmt: skip
        self.command(
            recover_orphaned_transaction_command=TYPES["RecoverOrphanedTransactionCommand"](
                message=message_of(message), transaction_id=transaction_id
            )
        )
        return None

    def remember(self, topic: str, transaction_id: str, half: Half) -> None:
        """Keep where a half message lies, until its transaction ends."""
        while len(self.halves) >= TRANSACTIONS_MAX:
            del self.halves[next(iter(self.halves))]  # a check of the broker brings it back
        self.halves[topic, transaction_id] = half

    async def _running_info(self, request: Request) -> Response:
        """GET_CONSUMER_RUNNING_INFO: subscriptions, and stacks if they are wanted."""
        header = request.header(GetConsumerRunningInfoRequest)
        subscriptions = [
            each
            for member in self._members.values()
            for consumer in member.membership().consumers
            for each in consumer.subscription_data_set
        ]
        info = ConsumerRunningInfo(
            properties={"PROP_CONSUME_TYPE": "CONSUME_POP", "PROP_CLIENT_VERSION": "gRPC"},
            subscription_set=subscriptions,
        )
        if header.jstack_enable:
            try:
                answer = await self._ask("print_thread_stack_trace_command")
                info.jstack = answer.thread_stack_trace
            except TimeoutError:
                info.jstack = f"the client did not answer within {ANSWER_S:g} s"
        return Response(body=info.encode())

    async def _consume_directly(self, request: Request) -> Response:
        """CONSUME_MESSAGE_DIRECTLY: the client handles a message once."""
        result = ConsumeMessageDirectlyResult(order=False)
        began = time.monotonic()
        found: list[StoredMessage] = decode_messages(request.body)
        try:
            status = await self._ask("verify_message_command", message=message_of(found[0]))
            result.consume_result = RESULTS.get(status.code)
            result.remark = status.message
        except TimeoutError:
            result.remark = f"the client did not answer within {ANSWER_S:g} s"
        result.spent_time_mills = int((time.monotonic() - began) * 1000)
        return Response(body=result.encode())


def filter_of(expression: Any) -> Filter:
    """Return the filter of a subscription.

    Raises:
        StatusError: it cannot be understood.
    """
    text = str(expression.expression)
    try:
        return Filter.sql(text) if expression.type == SQL else Filter.tags(text)
    except ConfigError as error:
        raise StatusError(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from None


class Clients:
    """All clients of a proxy.

    Args:
        name_servers: of the cluster.
        settings: of connections to brokers.
        on_gone: is called with each client that is forgotten, before it leaves its groups.
    """

    def __init__(
        self, name_servers: str, settings: ClientSettings, on_gone: Callable[[Client], Any]
    ) -> None:
        self._name_servers, self._settings = name_servers, settings
        self._on_gone = on_gone
        self._clients: dict[str, Client] = {}
        self._tasks = Supervisor("proxy clients")

    def __len__(self) -> int:
        return len(self._clients)

    def start(self) -> None:
        """Begin to forget clients that send nothing."""
        self._tasks.every(CHECK_S, self._expire, "expiry")

    def find(self, caller: Caller) -> Client:
        """Return a client, a new one if it is not known.

        Raises:
            StatusError: it has no id, or there are too many.
        """
        if not caller.client_id.strip():
            raise StatusError(Code.CLIENT_ID_REQUIRED, "the header x-mq-client-id is missing")
        client = self._clients.get(caller.client_id)
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                raise StatusError(Code.TOO_MANY_REQUESTS, f"{CLIENTS_MAX} clients are connected")
            client = self._clients[caller.client_id] = Client(
                caller, self._name_servers, self._settings
            )
        client.sees()
        return client

    def known(self, caller: Caller) -> Client:
        """Return a client that has sent its settings.

        Raises:
            StatusError: it has not.
        """
        client = self.find(caller)
        if client.settings is None:
            raise StatusError(
                Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client"
            )
        return client

    async def forget(self, client: Client) -> None:
        """Let a client leave its groups."""
        if self._clients.get(client.id) is client:
            del self._clients[client.id]
        await self._on_gone(client)
        await client.close()

    async def _expire(self) -> None:
        before = time.monotonic() - EXPIRED_S
        silent = [
            each for each in self._clients.values() if each.seen_s < before and not each.receiving
        ]
        for client in silent:
            log.info("a client sends nothing any more client=%s", client.id)
        await asyncio.gather(*map(self.forget, silent))

    def end_streams(self) -> None:
        """End the streams of all clients."""
        for client in self._clients.values():
            client.end_stream()

    async def close(self) -> None:
        """Let all clients leave."""
        await self._tasks.cancel()
        await asyncio.gather(*map(self.forget, list(self._clients.values())))
