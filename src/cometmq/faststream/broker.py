"""The broker of an application, and the routers that it includes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Unpack

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.configs import UnderlyingDriverAnnotation
from faststream._internal.constants import EMPTY
from faststream._internal.context import Context
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import LoggerState
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.logger.params_storage import ManualLoggerStorage
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.response.publish_type import PublishType
from faststream.security import BaseSecurity
from faststream.specification.schema import BrokerSpec

from cometmq.client import SendReceipt
from cometmq.client.options import ConnectionOptions, ProducerOnlyOptions
from cometmq.faststream.connection import Connection, NameServers
from cometmq.faststream.message import RocketMessage
from cometmq.faststream.options import (
    BrokerOptions,
    IncludeOptions,
    PublisherOptions,
    PublishOptions,
    RegistratorOptions,
    SubscriberOptions,
    check_names,
)
from cometmq.faststream.publisher import Publisher, RocketBrokerConfig
from cometmq.faststream.subscriber import Subscriber
from cometmq.faststream.transactions import Function, Payload, Transaction

EMBEDDED = "127.0.0.1"  # in documents: its port is known only when it is open
PING_S, GRACEFUL_S = 5.0, 15.0
LINE = "%(asctime)s %(levelname)-8s - %(topic)-24s | %(group)-24s | %(message_id)-32s - %(message)s"


class RocketRegistrator(Registrator[Any, RocketBrokerConfig]):
    """Registers subscribers and publishers, for a broker or a router."""

    @property
    def subscribers(self) -> list[Any]:
        """The subscribers, with those of routers, in the order of their declarations."""
        return sorted(super().subscribers, key=lambda each: each._described.number)

    @property
    def publishers(self) -> list[Any]:
        """The publishers, in the same order: a document is always the same."""
        return sorted(super().publishers, key=lambda each: each._described.number)

    def subscriber(  # type: ignore[override]
        self, topic: str, **options: Unpack[SubscriberOptions]
    ) -> Subscriber:
        """Return the decorator of handlers of a topic, to which routers add their prefixes."""
        outer: Any = self.config
        made = Subscriber(outer, topic, options)
        super().subscriber(made, persistent=options.get("persistent", True))
        return made.add_call(
            parser_=options.get("parser") or self._parser,
            decoder_=options.get("decoder") or self._decoder,
            codec_=options.get("codec"),
            dependencies_=options.get("dependencies", ()),
        )

    def publisher(  # type: ignore[override]
        self, topic: str, **options: Unpack[PublisherOptions]
    ) -> Publisher:
        """Return a publisher, which also decorates handlers whose results it sends."""
        outer: Any = self.config
        made = Publisher(outer, topic, options)
        super().publisher(made, persistent=options.get("persistent", True))
        return made

    def include_router(
        self, router: Registrator[Any, Any], **options: Unpack[IncludeOptions]
    ) -> None:
        """Include the subscribers and publishers of a router."""
        if not isinstance(router, RocketRegistrator):
            kind = type(router).__name__
            raise TypeError(f"include_router got a {kind}, expected a RocketRouter")
        super().include_router(router, **options)


class RocketPublisher(ArgsContainer):
    """A publisher of a `RocketRoute`; arguments as for `RocketBroker.publisher`."""

    def __init__(self, topic: str, **options: Unpack[PublisherOptions]) -> None:
        super().__init__(topic, **options)


class RocketRoute(SubscriberRoute):
    """A handler of a router; arguments as for `RocketBroker.subscriber`."""

    def __init__(
        self,
        call: Callable[..., Any],
        topic: str,
        *,
        publishers: Iterable[RocketPublisher] = (),
        **options: Unpack[SubscriberOptions],
    ) -> None:
        super().__init__(call, topic, publishers=publishers, **options)


class RocketRouter(RocketRegistrator, BrokerRouter[Any, RocketBrokerConfig]):
    """Subscribers and publishers whose topics have a prefix.

    Args:
        prefix: before each topic; letters, digits, ``-``, ``_``, ``%`` and ``|``.
        handlers: routes instead of decorators.
        routers: further routers that it includes.
        include_in_schema: whether the AsyncAPI document has them.
        options: for all its subscribers; see `RegistratorOptions`.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketRoute] = (),
        *,
        routers: Iterable[RocketRegistrator] = (),
        include_in_schema: bool | None = None,
        **options: Unpack[RegistratorOptions],
    ) -> None:
        check_names("RocketRouter", options, RegistratorOptions)
        config = RocketBrokerConfig(
            prefix=prefix, include_in_schema=include_in_schema, **_shared(options)
        )
        super().__init__(handlers=handlers, config=config, routers=routers)


def _shared(options: RegistratorOptions) -> dict[str, Any]:
    """Return what brokers and routers set for their subscribers, under FastStream's names."""
    return {
        "ack_policy": options.get("ack_policy", EMPTY),
        "broker_dependencies": options.get("dependencies", ()),
        "broker_middlewares": options.get("middlewares", ()),
        "broker_parser": options.get("parser"),
        "broker_decoder": options.get("decoder"),
    }


class RocketBroker(RocketRegistrator, BrokerUsecase[Any, Connection, RocketBrokerConfig]):
    """Connects FastStream's handlers with the brokers of a cluster.

    Args:
        name_servers: ``host:port;host:port``, a sequence of addresses, or an `embedded.Broker`,
            which is to be open when the broker connects.
        group: the prefix of consumer groups that subscribers do not give; name it after the
            application.
        security: ``SASLPlaintext(access_key, secret_key)`` for access control, ``BaseSecurity`` for
            TLS only.
        client: settings of the connections, by name, such as ``{"namespace": "test"}``.
        producer: settings of the producer, by name, such as ``{"timeout_ms": 1_000}``.
        create_topics: whether topics of subscribers are created that do not exist.
        topic_queues: how many queues such a topic gets at each broker.
        routers: routers that it includes.
        options: as for FastStream's other brokers; see `BrokerOptions`.

    Example:
        broker = RocketBroker("127.0.0.1:9876", group="shop")

        @broker.subscriber("orders", tags="paid")
        async def bill(order: Order) -> None: ...
    """

    def __init__(
        self,
        name_servers: NameServers = "127.0.0.1:9876",
        *,
        group: str = "faststream",
        security: BaseSecurity | None = None,
        client: ConnectionOptions | None = None,
        producer: ProducerOnlyOptions | None = None,
        create_topics: bool = True,
        topic_queues: int = 8,
        routers: Iterable[RocketRegistrator] = (),
        **options: Unpack[BrokerOptions],
    ) -> None:
        check_names("RocketBroker", options, BrokerOptions)
        given = name_servers.split(";") if isinstance(name_servers, str) else name_servers
        addresses = given if isinstance(given, Sequence) else [EMBEDDED]
        urls = options.get("specification_url") or [f"rocketmq://{each}" for each in addresses]
        settings = (security, client or {}, producer or {}, create_topics, topic_queues)
        self._new_connection = partial(Connection, name_servers, *settings)
        self._transactions: list[Transaction[Any]] = []
        self._disconnecting: asyncio.Task[None] | None = None
        context = options.get("context") or ContextRepo()
        level, logger = options.get("log_level", logging.INFO), options.get("logger", EMPTY)
        if logger is EMPTY:
            columns = {"topic": "", "group": ""}
            logger = get_broker_logger("rocketmq", columns, 32, LINE, context, logging.INFO)
        config = RocketBrokerConfig(
            group=group,
            broker_codec=options.get("codec"),
            logger=LoggerState(level, ManualLoggerStorage(logger) if logger else None),
            fd_config=FastDependsConfig(
                use_fastdepends=options.get("apply_types", True),
                serializer=options.get("serializer", EMPTY),
                provider=options.get("provider") or dependency_provider,
                context=context,
            ),
            graceful_timeout=options.get("graceful_timeout", GRACEFUL_S),
            id_generator=options.get("id_generator", gen_cor_id),
            extra_context={"broker": self},
            default_driver_annotations=_hints(broker=RocketBroker, message=RocketMessage),
            **_shared(options),
        )
        specification = BrokerSpec(
            description=options.get("description"),
            url=[urls] if isinstance(urls, str) else [*urls],
            protocol=options.get("protocol") or "rocketmq",
            protocol_version=options.get("protocol_version") or "5",
            tags=options.get("tags", ()),
            security=security,
        )
        super().__init__(routers=routers, config=config, specification=specification)

    async def _connect(self) -> Connection:
        self._number_subscribers()
        connection = self._new_connection()
        await connection.start()
        self.config.broker_config.connection = connection
        return connection

    async def start(self) -> None:
        """Connect, and begin to consume; `SetupError` if two subscribers are in one group."""
        await self.connect()
        self._number_subscribers()
        groups = Counter(sub.group for sub in self.subscribers if sub.calls)
        for group, count in groups.items():
            if count > 1:
                raise SetupError(
                    f"several subscribers are in the group {group}, which has one subscription:"
                    " give each a group of its own, or one subscriber several handlers with filter="
                )
        for transaction in self._transactions:
            await transaction.start()
        await super().start()

    def _number_subscribers(self) -> None:
        """Tell apart subscribers of one topic whose handlers have the same name."""
        counts: Counter[tuple[str, str]] = Counter()
        for sub in self.subscribers:
            key = sub.topic, sub.handler_name
            sub.number = counts[key]
            counts[key] += 1

    async def stop(self, *error: Any, **named: Any) -> None:
        """Wait for handlers that run, and disconnect; within a handler, once it has ended."""
        try:
            await super().stop(*error, **named)
        finally:
            stops = [sub.stopping for sub in self.subscribers if sub.stopping is not None]
            self._disconnecting = asyncio.create_task(self._disconnect(stops))
            if not stops:
                await asyncio.shield(self._disconnecting)

    async def _disconnect(self, stops: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*stops, return_exceptions=True)
        for transaction in self._transactions:
            await transaction.stop()
        connection, self._connection = self._connection, None
        self.config.broker_config.connection = None
        if connection is not None:
            await connection.close()

    async def ping(self, timeout: float | None = PING_S) -> bool:
        """Return whether a name server responds, and brokers do not refuse sends for good."""
        time_s, connection = PING_S if timeout is None else timeout, self._connection
        return connection is not None and await connection.ping(time_s)

    async def publish(
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> SendReceipt:
        """Publish a message, and wait until a broker has stored it; see `PublishOptions`.

        The message is bytes, text, or what the serializer makes JSON of; None for an empty body.
        With a delay, the receipt has a recall handle.
        """
        cmd = self.config.command(PublishType.PUBLISH, (message,), topic, options)
        return await self._basic_publish(cmd, producer=self.config.producer)  # type: ignore[no-any-return]

    async def publish_batch(  # type: ignore[override]
        self, *messages: Any, topic: str = "", **options: Unpack[PublishOptions]
    ) -> SendReceipt | None:
        """Publish messages of one topic, all of them or none; without a delay, 4 MiB at most."""
        cmd = self.config.command(PublishType.PUBLISH, messages, topic, options)
        return await self._basic_publish_batch(cmd, producer=self.config.producer)  # type: ignore[no-any-return]

    async def request(  # type: ignore[override]
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> RocketMessage:
        """Publish a request, and return what its handler returns.

        The reply comes straight to this process, and is not stored. With ``reply_to`` in a
        `publish`, it goes to a topic instead. If there is no reply in time, it raises
        `TimeoutError`; the request may still be handled.
        """
        cmd = self.config.command(PublishType.REQUEST, (message,), topic, options)
        return await self._basic_request(cmd, producer=self.config.producer)  # type: ignore[no-any-return]

    async def recall(self, receipt: SendReceipt | str, topic: str = "") -> str:
        """Recall a delayed message before it is due, by its receipt; return its id.

        A database can keep the receipt's ``recall_handle``, which needs the topic, too. If the
        message was due, or the broker does not serve recalls, it raises `ResponseError`.
        """
        if not isinstance(receipt, str):
            topic, receipt = receipt.queue.topic, receipt.recall_handle or ""
        return await self.config.broker_config.producer.client.recall(topic, receipt)

    def transaction(
        self, topic: str, *, group: str, **options: Unpack[PublishOptions]
    ) -> Callable[[Function[Payload]], Transaction[Payload]]:
        """Decorate the function that runs a local transaction; see `Transaction`.

        The processes of the producer group answer the checks of brokers. A message of a transaction
        has no delay and no key.
        """
        check_names(f"transaction of {topic}", options, PublishOptions)

        def decorate(execute: Function[Payload]) -> Transaction[Payload]:
            made = Transaction(self, topic, group, options, execute)
            self._transactions.append(made)
            return made

        return decorate


def _hints(**kinds: type) -> dict[type, UnderlyingDriverAnnotation]:
    """Return which annotations handlers need that name these classes themselves."""
    module, hint = "cometmq.faststream.annotations", UnderlyingDriverAnnotation
    return {
        kind: hint(type_hint=Annotated[kind, Context(name)], module=module, name=kind.__name__)
        for name, kind in kinds.items()
    }
