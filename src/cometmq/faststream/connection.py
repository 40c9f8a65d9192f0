"""The client behind a broker: one instance, its producer, and the topics that are there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from faststream.exceptions import IncorrectState
from faststream.security import BaseSecurity, SASLPlaintext

from cometmq.client import AdminClient, ClientInstance, CometError, Producer, ResponseError
from cometmq.client.settings import ClientSettings, resolve_settings
from cometmq.model.errors import ConfigError
from cometmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.client._connection.name_servers import HasNameServers

logger = logging.getLogger(__name__)

NameServers: TypeAlias = "str | Sequence[str] | HasNameServers"


class Connection:
    """What a connected broker uses; arguments as for `RocketBroker`."""

    def __init__(
        self,
        name_servers: NameServers,
        security: BaseSecurity | None,
        client: Any,
        producer: Any,
        create_topics: bool,
        topic_queues: int,
    ) -> None:
        settings = resolve_settings(ClientSettings, keywords=client | account_of(security))
        tls = None if security is None else security.ssl_context
        self.instance = ClientInstance(name_servers, settings=settings, tls=tls)
        self.producer = Producer(instance=self.instance, **producer)
        self.producer_options = producer
        self._create_topics = create_topics
        self._topic_queues = topic_queues
        self._known: set[str] = set()
        self._looking = asyncio.Lock()

    async def start(self) -> None:
        """Connect."""
        await self.instance.start()
        await self.producer.start()

    async def close(self) -> None:
        """End the sends, and disconnect."""
        try:
            await self.producer.close()
        finally:
            await self.instance.close()

    async def ping(self, timeout_s: float) -> bool:
        """Return whether a name server responds."""
        try:
            async with asyncio.timeout(timeout_s), AdminClient(instance=self.instance) as admin:
                await admin.topics()
        except (CometError, TimeoutError):
            return False
        return self.producer.healthy

    async def ensure_topic(self, topic: str) -> None:
        """Create a topic if it does not exist: a consumer would look for it in intervals only."""
        if not self._create_topics or topic in self._known:
            return
        async with self._looking, AdminClient(instance=self.instance) as admin:
            try:
                await admin.route(topic)
            except ResponseError as problem:
                if problem.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                try:
                    await admin.create_topic(topic, queues=self._topic_queues)
                except ResponseError as refused:  # the account has no right to
                    logger.warning("cannot create the topic topic=%s error=%s", topic, refused)
        self._known.add(topic)


def account_of(security: BaseSecurity | None) -> dict[str, Any]:
    """Return the settings of the client; for a kind that RocketMQ lacks, raise `ConfigError`."""
    if security is None:
        return {}
    settings: dict[str, Any] = {"use_tls": True} if security.use_ssl else {}
    if isinstance(security, SASLPlaintext):
        return settings | {"access_key": security.username, "secret_key": security.password}
    if type(security) is not BaseSecurity:
        raise ConfigError(
            f"security={type(security).__name__}: expected BaseSecurity for TLS, or SASLPlaintext,"
            " whose username and password are the access key and the secret key"
        )
    return settings


def connected(connection: Connection | None) -> Connection:
    """Return a connection; if there is none, raise `IncorrectState`."""
    if connection is None:
        raise IncorrectState("the broker is not connected: call its start() or connect() first")
    return connection
