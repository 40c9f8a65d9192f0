"""The broker of an application."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.configs import UnderlyingDriverAnnotation
from faststream._internal.constants import EMPTY
from faststream._internal.context import Context
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from cometmq.client import SendReceipt
from cometmq.faststream.config import RocketBrokerConfig
from cometmq.faststream.connection import Connection
from cometmq.faststream.message import RocketMessage
from cometmq.faststream.options import BrokerOptions, PublishOptions
from cometmq.faststream.producer import RocketProducer
from cometmq.faststream.publisher import command_of
from cometmq.faststream.registrator import RocketRegistrator
from cometmq.faststream.subscriber import Subscriber
from cometmq.faststream.transactions import Transaction

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream.security import BaseSecurity

    from cometmq.client._connection.name_servers import HasNameServers
    from cometmq.client.options import ConnectionOptions

EMBEDDED = "127.0.0.1"
"""The address in documents of a broker whose port is known only when it is open."""
PING_S = 5.0
GRACEFUL_S = 15.0


class LoggerStorage(DefaultLoggerStorage):
    """Makes the logger of a broker: its lines have topic, group and message id."""

    def __init__(self) -> None:
        super().__init__()
        self._level = logging.INFO
        self._widths = {"topic": 5, "group": 5}

    def set_level(self, level: int) -> None:
        """Set the level of the logger."""
        self._level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Make room for the names of a subscriber."""
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the logger."""
        found = self._get_logger_ref()
        if found is None:
            columns = "".join(f"%({name})-{width}s | " for name, width in self._widths.items())
            found = get_broker_logger(
                name="rocketmq",
                default_context=dict.fromkeys(self._widths, ""),
                message_id_ln=10,
                fmt=f"%(asctime)s %(levelname)-8s - {columns}%(message_id)-10s - %(message)s",
                context=context,
                log_level=self._level,
            )
            self._logger_ref.add(found)
        return found


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
        name_servers: str | Sequence[str] | HasNameServers = "127.0.0.1:9876",
        *,
        group: str = "faststream",
        security: BaseSecurity | None = None,
        client: ConnectionOptions | None = None,
        create_topics: bool = True,
        topic_queues: int = 8,
        routers: Iterable[RocketRegistrator] = (),
        **options: Unpack[BrokerOptions],
    ) -> None:
        addresses = [EMBEDDED]
        if isinstance(name_servers, str | Sequence):
            addresses = (
                name_servers.split(";") if isinstance(name_servers, str) else [*name_servers]
            )
        urls = options.get("specification_url") or [f"rocketmq://{each}" for each in addresses]
        parser, decoder = options.get("parser"), options.get("decoder")
        self._transactions: list[Transaction] = []
        super().__init__(
            routers=routers,
            config=RocketBrokerConfig(
                group=group,
                producer=RocketProducer(parser=parser, decoder=decoder),
                broker_middlewares=options.get("middlewares", ()),
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=options.get("codec"),
                logger=make_logger_state(
                    logger=options.get("logger", EMPTY),
                    log_level=options.get("log_level", logging.INFO),
                    default_storage_cls=LoggerStorage,
                ),
                fd_config=FastDependsConfig(
                    use_fastdepends=options.get("apply_types", True),
                    serializer=options.get("serializer", EMPTY),
                    provider=options.get("provider") or dependency_provider,
                    context=options.get("context") or ContextRepo(),
                ),
                broker_dependencies=options.get("dependencies", ()),
                graceful_timeout=options.get("graceful_timeout", GRACEFUL_S),
                ack_policy=options.get("ack_policy", EMPTY),
                id_generator=options.get("id_generator", gen_cor_id),
                extra_context={"broker": self},
                default_driver_annotations={
                    RocketBroker: _hint(RocketBroker, "broker"),
                    RocketMessage: _hint(RocketMessage, "message"),
                },
            ),
            specification=BrokerSpec(
                description=options.get("description"),
                url=[urls] if isinstance(urls, str) else [*urls],
                protocol=options.get("protocol") or "rocketmq",
                protocol_version=options.get("protocol_version") or "5",
                tags=options.get("tags", ()),
                security=security,
            ),
            name_servers=name_servers,
            security=security,
            client=client or {},
            create_topics=create_topics,
            topic_queues=topic_queues,
        )

    # --- life -----------------------------------------------------------------------------------

    async def _connect(self) -> Connection:
        self._number_subscribers()
        connection = Connection(**self._connection_kwargs)
        await connection.start()
        config = self.config.broker_config
        config.connection = connection
        config.producer.connect(connection, config.fd_config._serializer, config.broker_codec)
        return connection

    async def start(self) -> None:
        """Connect, and begin to consume.

        Raises:
            SetupError: two subscribers are in one group.
        """
        await self.connect()
        self._number_subscribers()
        groups = Counter(sub.group for sub in self._own_subscribers() if sub.calls)
        twice = [group for group, count in groups.items() if count > 1]
        if twice:
            raise SetupError(
                f"several subscribers are in the group {twice[0]}: a group has one set of"
                " subscriptions; give each a group of its own, or one subscriber several handlers"
                " with filter="
            )
        for transaction in self._transactions:
            await transaction.start()
        await super().start()

    def _own_subscribers(self) -> list[Subscriber]:
        return [sub for sub in self.subscribers if isinstance(sub, Subscriber)]

    def _number_subscribers(self) -> None:
        """Tell apart subscribers of one topic whose handlers have the same name."""
        counts: Counter[tuple[str, str]] = Counter()
        for sub in sorted(self._own_subscribers(), key=lambda each: each.declared):
            key = sub.topic, sub.handler_name
            sub.number = counts[key]
            counts[key] += 1

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Wait for handlers that run, and disconnect."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            for transaction in self._transactions:
                await transaction.stop()
            connection, self._connection = self._connection, None
            config = self.config.broker_config
            config.connection = None
            config.producer.connect(None, None, None)
            if connection is not None:
                await connection.close()

    async def ping(self, timeout: float | None = PING_S) -> bool:
        """Return whether a name server responds, and brokers do not refuse sends for good."""
        if self._connection is None:
            return False
        return await self._connection.ping(PING_S if timeout is None else timeout)

    # --- messages -------------------------------------------------------------------------------

    async def publish(
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> SendReceipt:
        """Publish a message, and wait until a broker has stored it.

        Args:
            message: bytes, text, or what the serializer makes JSON of; None for an empty body.
            topic: the topic.
            options: see `PublishOptions`.

        Returns:
            The receipt; with a delay it has a recall handle.
        """
        ids = self.config.id_generator
        cmd = command_of(PublishType.PUBLISH, (message,), topic, options, ids)
        receipt: SendReceipt = await self._basic_publish(cmd, producer=self.config.producer)
        return receipt

    async def publish_batch(  # type: ignore[override]
        self, *messages: Any, topic: str = "", **options: Unpack[PublishOptions]
    ) -> SendReceipt | None:
        """Publish messages of one topic, all of them or none; without a delay, 4 MiB at most."""
        ids = self.config.id_generator
        cmd = command_of(PublishType.PUBLISH, messages, topic, options, ids)
        receipt: SendReceipt | None = await self._basic_publish_batch(
            cmd, producer=self.config.producer
        )
        return receipt

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        timeout: float | None = None,
        **options: Unpack[PublishOptions],
    ) -> RocketMessage:
        """Publish a request, and return what its handler returns.

        The reply comes straight to this process, and is not stored. With ``reply_to`` in a
        `publish`, it goes to a topic instead.

        Args:
            message, topic, options: as for `publish`.
            timeout: seconds, 0.5 by default.

        Raises:
            TimeoutError: there is no reply in time; the request may still be handled.
        """
        ids = self.config.id_generator
        cmd = command_of(PublishType.REQUEST, (message,), topic, options, ids, timeout=timeout)
        reply: RocketMessage = await self._basic_request(cmd, producer=self.config.producer)
        return reply

    async def recall(self, receipt: SendReceipt | str, topic: str = "") -> str:
        """Recall a delayed message before it is due.

        Args:
            receipt: that of its `publish`, or its ``recall_handle``, which a database can keep.
            topic: the topic of the message; needed with a handle only.

        Returns:
            The id of the message.

        Raises:
            ResponseError: it was due already, or the broker does not serve recalls.
        """
        if not isinstance(receipt, str):
            topic, receipt = receipt.queue.topic, receipt.recall_handle or ""
        return await self.config.broker_config.producer.recall(topic, receipt)

    def transaction(
        self, topic: str, *, group: str, **options: Unpack[PublishOptions]
    ) -> Callable[[Callable[..., Any]], Transaction]:
        """Decorate the function that runs a local transaction; see `Transaction`.

        Args:
            topic: the topic of the message.
            group: the producer group, whose processes answer the checks of brokers.
            options: see `PublishOptions`; a message of a transaction has no delay and no key.
        """

        def decorate(execute: Callable[..., Any]) -> Transaction:
            made: Transaction = Transaction(self, topic, group, options, execute)
            self._transactions.append(made)
            return made

        return decorate


def _hint(kind: type, name: str) -> UnderlyingDriverAnnotation:
    """Return which annotation a handler needs that names a class itself."""
    return UnderlyingDriverAnnotation(
        type_hint=Annotated[kind, Context(name)],
        module="cometmq.faststream.annotations",
        name=kind.__name__,
    )
