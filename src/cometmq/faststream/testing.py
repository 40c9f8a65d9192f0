"""A broker for tests that needs no server."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from cometmq.client import (
    CometError,
    LocalState,
    Message,
    MessageQueue,
    SendReceipt,
    SendStatus,
    StoredMessage,
    TransactionReceipt,
)
from cometmq.faststream.broker import RocketBroker
from cometmq.faststream.producer import RocketProducer
from cometmq.faststream.publisher import Publisher
from cometmq.faststream.subscriber import Subscriber
from cometmq.faststream.transactions import Local
from cometmq.model import property_names as names
from cometmq.model.offsets import QueueOffset
from cometmq.model.times import epoch_ms, milliseconds, now_ms
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
        self._client: Any = FakeClient(brokers)

    @property
    def delayed(self) -> list[Message]:
        """The messages that are held, by the time when they are due."""
        held = self._client.held.values()
        return [message for _, message in sorted(held, key=lambda each: each[0])]

    async def advance(self, seconds: float | timedelta) -> int:
        """Let time pass, and deliver what is due.

        Returns:
            How many messages were delivered.
        """
        held = self._client.held
        self._client.passed_ms += milliseconds(seconds, "seconds")
        order = sorted(held, key=lambda handle: held[handle][0])
        due = [handle for handle in order if held[handle][0] <= self._client.passed_ms]
        for handle in due:
            await self._client.deliver([held.pop(handle)[1]])
        return len(due)

    def create_publisher_fake_subscriber(
        self, broker: RocketBroker, publisher: Publisher
    ) -> tuple[Subscriber, bool]:
        """Return the subscriber that records what a publisher sends."""
        for each in self.brokers:
            for sub in each._own_subscribers():
                if sub.topic == publisher.topic:
                    return sub, True
        is_batch = publisher.options.get("batch", False)
        return broker.subscriber(publisher.topic, batch=is_batch, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: RocketBroker) -> Generator[None, None, None]:
        config = broker.config.broker_config
        connection, config.connection = config.connection, None
        for transaction in broker._transactions:
            transaction.checked()
            transaction.producer = self._client
        try:
            with change_producer(config, FakeProducer(config, self._client)):
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

    def __init__(self, config: Any, client: Any) -> None:
        super().__init__(config)
        self.client = client

    def __bool__(self) -> bool:
        return True


class FakeClient:
    """Delivers messages within the process; its methods are those of the client's producers."""

    def __init__(self, brokers: Sequence[RocketBroker]) -> None:
        self.held: dict[str, tuple[int, Message]] = {}
        """Messages with a delay, and when each is due, by their recall handles."""
        self.passed_ms = 0
        """By how much time was advanced."""
        self._brokers = brokers
        self._replies: dict[str, StoredMessage] = {}

    async def send(self, message: Message, *, order_key: str | None = None) -> SendReceipt:
        """Deliver a message, or hold it."""
        delay_ms, id = self._delay_ms(message), new_id()
        if delay_ms > 0:
            self.held[id] = self.passed_ms + delay_ms, message
            return _receipt(message, id, recall_handle=id)
        await self.deliver([message])
        return _receipt(message, id)

    async def send_batch(
        self, messages: Sequence[Message], *, order_key: str | None = None
    ) -> SendReceipt:
        """Deliver messages to batch subscribers at once, to others one by one."""
        await self.deliver(messages)
        return _receipt(messages[0], new_id())

    async def recall(self, topic: str, handle: str) -> str:
        """Drop a message that is held."""
        if self.held.pop(handle, None) is None:
            raise CometError(f"the message of {topic} is not held: it was due, or had no delay")
        return handle

    async def send_in_transaction(
        self, message: Message, local: Local, *, timeout: float | None = None
    ) -> TransactionReceipt:
        """Run a local transaction, and deliver its message if it commits."""
        state = await local()
        if state is LocalState.COMMIT:
            await self.deliver([message])
        return TransactionReceipt(_receipt(message, new_id()), state)

    async def request(
        self, message: Message, *, order_key: str | None, timeout: float
    ) -> StoredMessage:
        """Deliver a message, and return what a handler replies."""
        asker = message.properties[names.REPLY_TO_CLIENT] = new_id()
        async with asyncio.timeout(timeout):
            if not await self.deliver([message]):
                raise SubscriberNotFound
        if asker not in self._replies:
            raise TimeoutError(f"no handler of {message.topic} has replied")
        return self._replies.pop(asker)

    async def reply(
        self, request: StoredMessage, body: bytes, *, properties: Mapping[str, str]
    ) -> None:
        """Note a reply; only the first one counts."""
        reply = StoredMessage.of(Message(request.topic, body, properties=dict(properties)))
        self._replies.setdefault(request.properties[names.REPLY_TO_CLIENT], reply)

    async def deliver(self, messages: Sequence[Message]) -> bool:
        """Call one handler of each group with the messages that pass its filter.

        Returns:
            Whether there was any.
        """
        found: dict[str, Subscriber] = {}
        for broker in self._brokers:
            broker._number_subscribers()
            for sub in broker._own_subscribers():
                if sub.calls and sub.topic == messages[0].topic:
                    found.setdefault(sub.group, sub)
        stored = [StoredMessage.of(message) for message in messages]
        is_any = False
        for sub in found.values():
            chosen = [message for message in stored if selects(sub, message)]
            parts: Sequence[Any] = [chosen] if sub.options.get("batch") else chosen
            for part in parts if chosen else ():
                is_any = True
                await sub.process_message(part)
        return is_any

    def _delay_ms(self, message: Message) -> int:
        if message.deliver_at is not None:
            return epoch_ms(message.deliver_at) - now_ms() - self.passed_ms
        if message.delay_level:
            return 1  # which time a level stands for is the broker's setting
        return milliseconds(message.delay, "delay")


def selects(subscriber: Subscriber, message: StoredMessage) -> bool:
    """Return whether a message passes the filter of a subscriber."""
    wanted = subscriber.filter
    if wanted.kind == TAG_KIND:
        return not wanted.wanted_tags or message.tags in wanted.wanted_tags
    return compile_expression(wanted.expression).evaluate(message.properties) is True


def new_id() -> str:
    """Return an id, as a client makes one for each message."""
    return uuid4().hex.upper()


def _receipt(message: Message, id: str, **more: Any) -> SendReceipt:
    queue = MessageQueue(message.topic, "test", 0)
    return SendReceipt(SendStatus.SEND_OK, id, id, queue, QueueOffset(0), **more)
