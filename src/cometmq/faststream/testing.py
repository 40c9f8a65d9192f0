"""A broker for tests that needs no server."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from cometmq.client import Filter, Message, StoredMessage
from cometmq.client.errors import TopicNotFoundError
from cometmq.client.memory_producer import MemoryProducer
from cometmq.faststream.broker import RocketBroker
from cometmq.faststream.message import Settlement, messages_of
from cometmq.faststream.publisher import Publisher, RocketProducer, RocketPublishCommand
from cometmq.faststream.subscriber import Subscriber
from cometmq.protocol.subscription import TAG_KIND
from cometmq.sql92 import compile_expression


class TestRocketBroker(TestBroker[RocketBroker, EnterType], broker=RocketBroker):
    """Calls handlers within `publish`, as brokers would deliver: by topic, group, tags and delay.

    A message with a delay is held until `advance` lets the time pass. An error of a handler is
    raised by the publish; nothing is redelivered.

    Args:
        brokers: the brokers of the application.
        with_real: use their servers, and only watch the handlers.
        connect_only: as for FastStream's other test brokers.

    Example:
        tester = TestRocketBroker(broker)
        async with tester as br:
            await br.publish({"id": "42"}, "orders", tags="paid", delay=60)
            await tester.advance(60)
            bill.mock.assert_called_once_with({"id": "42"})
    """

    def __init__(
        self, *brokers: RocketBroker, with_real: bool = False, connect_only: bool | None = None
    ) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)
        self._client = MemoryProducer(self._deliver, execute=lambda _, local: local())

    @property
    def delayed(self) -> list[Message]:
        """The messages that are held, by the time when they are due."""
        return self._client.delayed

    async def advance(self, seconds: float | timedelta) -> int:
        """Let time pass, and deliver what is due; return how many messages."""
        return await self._client.advance(seconds)

    async def _deliver(self, messages: list[StoredMessage]) -> int:
        """Call one handler of each group with the messages that pass its filter; return calls."""
        found: dict[str, Subscriber] = {}
        for broker in self.brokers:
            broker._number_subscribers()
            for sub in broker.subscribers:
                if sub.calls and sub.topic == messages[0].topic:
                    found.setdefault(sub.group, sub)
        calls: list[tuple[Subscriber, Any]] = []
        for sub in found.values():
            chosen = [message for message in messages if _selects(sub.filter, message)]
            is_batch = sub.options.get("batch") and chosen
            calls += [(sub, part) for part in ([chosen] if is_batch else chosen)]
        for sub, part in calls:
            await sub.call(part, Settlement(messages_of(part)[0], sub.options.get("retry")))
        return len(calls)

    def create_publisher_fake_subscriber(
        self, broker: RocketBroker, publisher: Publisher
    ) -> tuple[Subscriber, bool]:
        """Return the subscriber that records what a publisher sends."""
        for sub in (sub for each in self.brokers for sub in each.subscribers):
            if sub.topic == publisher.topic:
                return sub, True
        is_batch = publisher.options.get("batch", False)
        return broker.subscriber(publisher.topic, batch=is_batch, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: RocketBroker) -> Generator[None, None, None]:
        config = broker.config.broker_config
        connection, config.connection = config.connection, None
        producer = FakeProducer(config)
        producer.client = self._client
        for transaction in broker._transactions:
            transaction.checked()
            transaction.producer = self._client  # type: ignore[assignment]
        try:
            with change_producer(config, producer):
                yield
        finally:
            config.connection = connection
            for transaction in broker._transactions:
                transaction.producer = None

    async def _fake_connect(self, broker: RocketBroker, *args: Any, **kwargs: Any) -> Any:
        return object()  # nothing uses it: the producer delivers


class FakeProducer(RocketProducer):
    """Sends with a client that delivers within the process."""

    client: Any = None

    def __bool__(self) -> bool:
        return True

    async def request(self, cmd: RocketPublishCommand) -> StoredMessage:
        """Return what a handler replies; without one, raise `SubscriberNotFound`."""
        try:
            return await super().request(cmd)
        except TopicNotFoundError as problem:
            raise SubscriberNotFound(str(problem)) from problem


def _selects(wanted: Filter, message: StoredMessage) -> bool:
    if wanted.kind == TAG_KIND:
        return wanted.takes(message)
    return compile_expression(wanted.expression).evaluate(message.properties) is True
