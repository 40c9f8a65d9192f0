"""A broker for tests that needs no server."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
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
from cometmq.faststream.message import Parser, as_stored
from cometmq.faststream.producer import REQUEST_S, RocketProducer
from cometmq.faststream.publisher import Publisher
from cometmq.faststream.response import RocketPublishCommand
from cometmq.faststream.subscriber import Subscriber
from cometmq.model.offsets import QueueOffset
from cometmq.model.times import milliseconds, now_ms
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
        self,
        *brokers: RocketBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)
        self._handles = 0
        self._now_ms = 0
        """By how much time was advanced."""
        self._held: dict[str, tuple[int, Message]] = {}
        """When each is due, by its recall handle."""

    @property
    def delayed(self) -> list[Message]:
        """The messages that are held, by the time when they are due."""
        return [message for _, message in sorted(self._held.values(), key=lambda held: held[0])]

    async def advance(self, seconds: float | timedelta) -> int:
        """Let time pass, and deliver what is due.

        Returns:
            How many messages were delivered.
        """
        self._now_ms += milliseconds(seconds, "seconds")
        order = sorted(self._held, key=lambda handle: self._held[handle][0])
        due = [handle for handle in order if self._held[handle][0] <= self._now_ms]
        for handle in due:
            await self._deliver(self._held.pop(handle)[1])
        return len(due)

    def _drop(self, handle: str | None) -> bool:
        return self._held.pop(handle or "", None) is not None

    def _hold(self, message: Message) -> str | None:
        """Hold a message that is not due yet; return its recall handle."""
        if isinstance(message.deliver_at, int):
            delay_ms = message.deliver_at - now_ms() - self._now_ms
        elif message.deliver_at is not None:
            delay_ms = int(message.deliver_at.timestamp() * 1000) - now_ms() - self._now_ms
        elif message.delay_level:
            delay_ms = 1  # which time a level stands for is the broker's setting
        else:
            delay_ms = milliseconds(message.delay, "delay")
        if delay_ms <= 0:
            return None
        self._handles += 1
        handle = f"held-{self._handles}"
        self._held[handle] = self._now_ms + delay_ms, message
        return handle

    async def _deliver(self, message: Message) -> None:
        stored = as_stored(message)
        for subscriber in self._receivers(stored):
            raw: Any = [stored] if subscriber.options.get("batch") else stored
            await subscriber.process_message(raw)

    def _receivers(self, message: StoredMessage) -> list[Subscriber]:
        """Return one subscriber of each group that gets a message."""
        found: dict[str, Subscriber] = {}
        for broker in self.brokers:
            broker._number_subscribers()
            for sub in broker._own_subscribers():
                if sub.calls and sub.topic == message.topic and selects(sub, message):
                    found.setdefault(sub.group, sub)
        return list(found.values())

    def create_publisher_fake_subscriber(
        self, broker: RocketBroker, publisher: Publisher
    ) -> tuple[Subscriber, bool]:
        """Return the subscriber that records what a publisher sends."""
        for each in self.brokers:
            for sub in each.subscribers:
                if isinstance(sub, Subscriber) and sub.topic == publisher.topic:
                    return sub, True
        is_batch = publisher.options.get("batch", False)
        return broker.subscriber(publisher.topic, batch=is_batch, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: RocketBroker) -> Generator[None, None, None]:
        config = broker.config.broker_config
        connection, config.connection = config.connection, None
        try:
            with change_producer(config, FakeProducer(self, broker)):
                yield
        finally:
            config.connection = connection

    async def _fake_connect(self, broker: RocketBroker, *args: Any, **kwargs: Any) -> Any:
        return object()  # nothing uses it: the producer delivers


class FakeProducer(RocketProducer):
    """Delivers within the process."""

    def __init__(self, tester: TestRocketBroker[Any], broker: RocketBroker) -> None:
        super().__init__()
        default = Parser({})
        config = broker.config.broker_config
        self._parser = ParserComposition(broker._parser, default.parse_message)
        self._decoder = ParserComposition(broker._decoder, default.decode_message)
        self.codec = config.broker_codec or DefaultCodec()
        self._serializer = config.fd_config._serializer
        self._tester = tester

    def __bool__(self) -> bool:
        return True

    async def publish(self, cmd: RocketPublishCommand) -> SendReceipt | TransactionReceipt:
        """Deliver a message, hold it, or deliver it if its transaction commits."""
        message = await self.message_of(cmd)
        if (transaction := cmd.transaction) is not None:
            transaction.prepare()
            state = await transaction.state_of(message, is_check=False)
            if state is LocalState.COMMIT:
                await self._tester._deliver(message)
            return TransactionReceipt(_receipt(message), state)
        handle = self._tester._hold(message)
        if handle is None:
            await self._tester._deliver(message)
        return _receipt(message, handle)

    async def recall(self, topic: str, handle: str) -> str:
        """Drop a message that is held."""
        if not self._tester._drop(handle):
            raise CometError(f"message {handle or topic} is not held: it was due, or had no delay")
        return handle

    async def publish_batch(self, cmd: RocketPublishCommand) -> SendReceipt | None:
        """Deliver messages to batch subscribers at once, to others one by one."""
        messages = await self.messages_of(cmd)
        stored: list[StoredMessage] = [as_stored(message) for message in messages]
        by_receiver: dict[int, tuple[Subscriber, list[StoredMessage]]] = {}
        for each in stored:
            for sub in self._tester._receivers(each):
                by_receiver.setdefault(id(sub), (sub, []))[1].append(each)
        for sub, found in by_receiver.values():
            parts: Sequence[Any] = [found] if sub.options.get("batch") else found
            for part in parts:
                await sub.process_message(part)
        return _receipt(messages[0]) if messages else None

    async def request(self, cmd: RocketPublishCommand) -> StoredMessage:
        """Return what a handler returns for a message."""
        message = await self.message_of(cmd)
        stored = as_stored(message)
        for sub in self._tester._receivers(stored):
            raw: Any = [stored] if sub.options.get("batch") else stored
            async with asyncio.timeout(REQUEST_S if cmd.timeout is None else cmd.timeout):
                result = await sub.process_message(raw)
            reply = RocketPublishCommand.from_cmd(result.as_publish_command())
            reply.correlation_id = result.correlation_id
            return as_stored(await self.message_of(reply))
        raise SubscriberNotFound


def selects(subscriber: Subscriber, message: StoredMessage) -> bool:
    """Return whether a message passes the filter of a subscriber."""
    wanted = subscriber.filter
    if wanted.kind == TAG_KIND:
        return not wanted.wanted_tags or message.tags in wanted.wanted_tags
    return compile_expression(wanted.expression).evaluate(message.properties) is True


def _receipt(message: Message, handle: str | None = None) -> SendReceipt:
    queue = MessageQueue(message.topic, "test", 0)
    made = handle or as_stored(message).offset_message_id
    return SendReceipt(SendStatus.SEND_OK, made, made, queue, QueueOffset(0), recall_handle=handle)
