"""Consumes messages for the handlers of a subscriber.

A push consumer calls `_on_message` or `_on_batch`, which end as the message was settled: a return
consumes it, `ConsumeLater` has it redelivered or dead-lettered. With ``pop`` a loop receives
messages, and each settlement tells its broker. In both ways a message of which nothing was said,
because its handler was cancelled, swallowed or stopped, is redelivered.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from faststream._internal.configs import SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream._internal.types import AsyncCallable, CustomCallable
from faststream.exceptions import SetupError, StopConsume
from faststream.message import StreamMessage
from faststream.message.message import AckStatus
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import SubscriberSpec

from cometmq.client import (
    CometError,
    ConsumeLater,
    Filter,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.faststream.connection import Connection, connected
from cometmq.faststream.message import (
    CLIENT_REPLY,
    Parser,
    RocketMessage,
    Settlement,
    UndecodableError,
)
from cometmq.faststream.options import SubscriberOptions
from cometmq.faststream.producer import RocketBrokerConfig
from cometmq.faststream.publisher import ReplyPublisher, TopicConfig, channel
from cometmq.model.topic import check_topic_name

WORKERS = 20
RECORDS = 32
INVISIBLE_S = 60.0
RECEIVE_S = 10.0
DEAD_LETTER = -1
_declared = itertools.count()


class RocketSubscriberConfig(SubscriberUsecaseConfig):
    """Says how messages are acknowledged."""

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy of the subscriber, else of router or broker, else ``NACK_ON_ERROR``."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


class RocketSubscriberSpecification(SubscriberSpecification[RocketBrokerConfig, TopicConfig]):
    """A subscriber in the AsyncAPI document."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        """The topic."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return its channel."""
        payload = resolve_payloads(self.get_payloads())
        return channel(SubscriberSpec, self.name, self.topic, self.description, payload)


class Subscriber(SubscriberUsecase[Any]):
    """Consumes one topic.

    Raises:
        SetupError: options exclude each other.
    """

    specification: RocketSubscriberSpecification  # type: ignore[assignment]
    _outer_config: RocketBrokerConfig

    def __init__(self, outer: RocketBrokerConfig, topic: str, options: SubscriberOptions) -> None:
        check_options(topic, options)
        self.options = options
        self._settlements: dict[int, Settlement] = {}
        config = RocketSubscriberConfig(
            _outer_config=outer,
            _ack_policy=options.get("ack_policy", EMPTY),
            no_reply=options.get("no_reply", False),
        )
        parser = Parser(self._settlements)
        config.parser, config.decoder = parser.parse_message, parser.decode_message
        if options.get("batch"):
            config.parser, config.decoder = parser.parse_batch, parser.decode_batch
        calls: CallsCollection[Any] = CallsCollection()
        described = RocketSubscriberSpecification(outer, TopicConfig.of(topic, options), calls)
        super().__init__(config, described, calls)  # type: ignore[arg-type]
        self._consumer: PushConsumer | SimpleConsumer | None = None
        self._reader: PullConsumer | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._handling: set[asyncio.Task[None]] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self.declared = next(_declared)
        """Grows with each subscriber."""
        self.number = 0
        """Counts the subscribers of one topic whose handlers have the same name."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return self.specification.topic

    @property
    def group(self) -> str:
        """The consumer group."""
        if given := self.options.get("group"):
            return given
        number = f"-{self.number + 1}" if self.number else ""
        return f"{self._outer_config.group}-{self.topic}-{self.handler_name}{number}"

    @property
    def handler_name(self) -> str:
        """The name of the first handler, in characters that groups may have."""
        name = next((call.name for call in self.calls), "reader")
        return "".join(c if c.isascii() and c.isalnum() else "_" for c in name)

    @property
    def filter(self) -> Filter:
        """Which messages of the topic it gets."""
        if "sql" in self.options:
            return Filter.sql(self.options["sql"])
        return Filter.tags(self.options.get("tags") or "*")

    # --- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to consume, if there are handlers."""
        check_topic_name(self.topic)
        await super().start()
        self._post_start()
        if self._outer_config.connection is None and self._outer_config.producer:
            return  # a test broker delivers
        connection = connected(self._outer_config.connection)
        await connection.ensure_topic(self.topic)
        if self.calls:
            self._consumer = self._make_consumer(connection)
            await self._consumer.start()
            if isinstance(self._consumer, SimpleConsumer):
                receiving = self._receive(self._consumer)
                self._receiving = asyncio.create_task(receiving, name=f"receive {self.group}")

    def _make_consumer(self, connection: Connection) -> PushConsumer | SimpleConsumer:
        options = self.options
        workers = options.get("max_workers", WORKERS)
        is_first = options.get("auto_offset_reset", "earliest") == "earliest"
        named: dict[str, Any] = {
            "group": self.group,
            "instance": connection.instance,
            "subscriptions": {self.topic: self.filter},
            "start_from": StartFrom.FIRST if is_first else StartFrom.LAST,
        }
        if options.get("pop"):
            named["invisible"] = options.get("invisible", INVISIBLE_S)
            named["in_flight_max"] = max(1_000, 2 * workers)
            return SimpleConsumer(**named, renew=True, settle_again=True)
        named["ordered"] = options.get("ordered", False)
        named["broadcast"] = options.get("broadcast", False)
        named["stop_ms"] = int((self._outer_config.graceful_timeout or 0) * 1000)
        named["concurrency"] = workers
        named |= options.get("settings") or {}
        if options.get("batch"):
            records = options.get("max_records", RECORDS)
            return PushConsumer(**named, batch_handler=self._on_batch, batch_max=records)
        return PushConsumer(**named, handler=self._on_message)

    async def stop(self) -> None:
        """Consume no more; wait for handlers that run, for as long as ``graceful_timeout``.

        From within a handler it returns at once, and the stop goes on when the handler ends.
        """
        stopping = self._begin_stop()
        if self._outer_config.context.get_local("handler_") is not self:
            await asyncio.shield(stopping)

    def _begin_stop(self) -> asyncio.Task[None]:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name=f"stop {self.group}")
            self._stopping.add_done_callback(self._stopped)
        return self._stopping

    def _stopped(self, task: asyncio.Task[None]) -> None:
        self._stopping = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log(logging.ERROR, f"cannot stop: {error!r}", exc_info=error)  # type: ignore[arg-type]

    async def _stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        reader, self._reader = self._reader, None
        if isinstance(consumer, PushConsumer):
            await consumer.close()  # waits for the handlers, and commits
        if self._receiving is not None:
            self._receiving.cancel()
        await super().stop()
        for task in self._handling:
            task.cancel()
        await asyncio.gather(*self._handling, return_exceptions=True)
        for each in (consumer, reader):
            if each is not None:
                await each.close()

    # --- handlers -------------------------------------------------------------------------------

    async def _on_message(self, message: StoredMessage) -> None:
        await self._handle(message, message)

    async def _on_batch(self, messages: Sequence[StoredMessage], context: object) -> None:
        await self._handle(list(messages), messages[0])

    async def _handle(self, raw: Any, first: StoredMessage) -> None:
        """Handle a message or batch of a push consumer.

        Raises:
            ConsumeLater: it is not consumed.
        """
        settlement = Settlement(first, self.options.get("retry"))
        await self._process(raw, settlement)
        if settlement.verdict is AckStatus.REJECTED:
            raise ConsumeLater(delay_level=DEAD_LETTER) from settlement.error
        if settlement.verdict is not AckStatus.ACKED:
            raise ConsumeLater(delay=settlement.delay) from settlement.error

    async def _process(self, raw: Any, settlement: Settlement) -> None:
        """Call the handlers, and settle what they leave open."""
        if not self.running:
            return
        self._settlements[id(raw)] = settlement
        try:
            await self.process_message(raw)
        except (StopConsume, SystemExit) as stop:
            self._begin_stop()
            app = self._outer_config.context.get("app")
            if isinstance(stop, SystemExit) and app:
                app.exit()
        except Exception as problem:  # the log has it already
            settlement.error = settlement.error or problem
            if self.ack_policy is AckPolicy.MANUAL:
                await settlement.settle(AckStatus.NACKED)
        else:
            if self.ack_policy is AckPolicy.MANUAL and settlement.consumer is None:
                await settlement.wait()
        finally:
            self._settlements.pop(id(raw), None)

    def _get_parser_and_decoder(
        self,
        item_parser: CustomCallable | None = None,
        item_decoder: CustomCallable | None = None,
    ) -> tuple[AsyncCallable, AsyncCallable]:
        parser, decoder = super()._get_parser_and_decoder(item_parser, item_decoder)

        async def checked(message: StreamMessage[Any]) -> Any:
            try:
                return await decoder(message)
            except Exception as problem:  # goes on as it is: middlewares know it by its class
                reason = (
                    f"the payload of message {message.message_id} of topic {self.topic} cannot be"
                    f" decoded as {message.content_type or 'JSON or bytes'}: {problem}"
                )
                problem.add_note(reason)
                if isinstance(message, RocketMessage) and message.settlement is not None:
                    message.settlement.error = UndecodableError(reason)
                    message.settlement.error.__cause__ = problem
                raise

        return parser, checked

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        producer = self._outer_config.producer
        if message.reply_to.startswith(CLIENT_REPLY):
            return (ReplyPublisher(producer, "", request=message.raw_message),)
        return (ReplyPublisher(producer, message.reply_to),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return what each line of the log has."""
        id = getattr(message, "message_id", "")
        return {"topic": self.topic, "group": self.group, "message_id": id}

    # --- pop ------------------------------------------------------------------------------------

    async def _receive(self, consumer: SimpleConsumer) -> None:
        """Receive messages while there is room for them, and handle each in a task."""
        workers = self.options.get("max_workers", WORKERS)
        while True:
            if not (free := workers - len(self._handling)):
                self._room.clear()
                await self._room.wait()
                continue
            try:
                messages = await consumer.receive(min(free, RECORDS), wait=RECEIVE_S)
            except CometError as problem:
                self._log(logging.WARNING, f"cannot receive: {problem}")
                await asyncio.sleep(1.0)  # a broker that refuses is asked again
                continue
            for message in messages:
                task = asyncio.create_task(self._handle_popped(consumer, message))
                self._handling.add(task)
                task.add_done_callback(self._handled)

    def _handled(self, task: asyncio.Task[None]) -> None:
        self._handling.discard(task)
        self._room.set()

    async def _handle_popped(self, consumer: SimpleConsumer, message: StoredMessage) -> None:
        settlement = Settlement(message, self.options.get("retry"), consumer)
        try:
            await self._process(message, settlement)
        finally:
            if settlement.verdict is None and self.ack_policy is not AckPolicy.MANUAL:
                with suppress(CometError):  # else its invisible time ends
                    await consumer.nack(message, None if self.running else 0)

    # --- single messages ------------------------------------------------------------------------

    async def _pull(self) -> PullConsumer:
        assert not self.calls, "a subscriber with handlers has no get_one and no iterator"
        if self._reader is None:
            connection = connected(self._outer_config.connection)
            await connection.ensure_topic(self.topic)
            reader = PullConsumer(
                group=self.group, instance=connection.instance, start_from=StartFrom.FIRST
            )
            self._reader = reader
            await reader.start()
            await reader.subscribe(self.topic, self.filter)
        return self._reader

    async def get_one(self, *, timeout: float = 5.0) -> RocketMessage | None:
        """Return the next message, or None after ``timeout`` seconds; the next call consumes it."""
        reader = await self._pull()
        try:
            async with asyncio.timeout(timeout):
                raw = await anext(reader)
        except TimeoutError:
            return None
        return await self._parsed(raw)

    async def __aiter__(self) -> AsyncIterator[RocketMessage]:
        """Iterate over the messages; each is consumed when the next one is asked for."""
        reader = await self._pull()
        async for raw in reader:
            yield await self._parsed(raw)

    async def _parsed(self, raw: StoredMessage) -> RocketMessage:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        made = await process_msg(
            msg=raw,
            middlewares=(make(raw, context=context) for make in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        assert isinstance(made, RocketMessage)
        return made


def check_options(topic: str, options: SubscriberOptions) -> None:
    """Check that the options of a subscriber fit together.

    Raises:
        SetupError: two exclude each other.
    """
    given: Any = options
    pairs = [
        *(("pop", other) for other in ("ordered", "broadcast", "batch", "settings")),
        *(("tags", "sql"), ("ordered", "broadcast")),
    ]
    for one, other in pairs:
        if given.get(one) and given.get(other):
            raise SetupError(f"subscriber of {topic}: give either {one} or {other}")
    for name, needs in (("invisible", "pop"), ("max_records", "batch")):
        if name in given and not given.get(needs):
            raise SetupError(f"subscriber of {topic}: {name} is only for {needs}=True")
