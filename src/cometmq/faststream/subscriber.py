"""Consumes messages for the handlers of a subscriber.

A push consumer calls `_on_message` or `_on_batch`, which end as the message was settled. With
``pop`` a loop receives messages, and each settlement tells its broker. In both ways a message of
which nothing was said, because its handler was cancelled or swallowed, is redelivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from faststream import exceptions
from faststream._internal.configs import SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream._internal.types import AsyncCallable, CustomCallable
from faststream.exceptions import HandlerException, SetupError, StopConsume
from faststream.message import StreamMessage
from faststream.message.message import AckStatus
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import SubscriberSpec

from cometmq.client import Filter, PushConsumer, SimpleConsumer, StoredMessage
from cometmq.client.errors import CometError, ConsumeLater
from cometmq.client.offsets import StartFrom
from cometmq.client.pull_consumer import PullConsumer
from cometmq.faststream import message as parts
from cometmq.faststream.connection import Connection, connected
from cometmq.faststream.message import RocketMessage, Settlement
from cometmq.faststream.options import SubscriberOptions, check_names
from cometmq.faststream.publisher import ReplyPublisher, RocketBrokerConfig, TopicConfig
from cometmq.model.errors import InvalidNameError
from cometmq.model.topic import check_topic_name

WORKERS, RECORDS, INVISIBLE_S, RECEIVE_S = 20, 32, 60.0, 10.0
_ON_ERROR = {
    AckPolicy.ACK: AckStatus.ACKED,
    AckPolicy.NACK_ON_ERROR: AckStatus.NACKED,
    AckPolicy.REJECT_ON_ERROR: AckStatus.REJECTED,
}
_DECISIONS = {
    exceptions.AckMessage: AckStatus.ACKED,
    exceptions.NackMessage: AckStatus.NACKED,
    exceptions.RejectMessage: AckStatus.REJECTED,
}


class _Config(SubscriberUsecaseConfig):
    auto_ack_disabled = True  # `Subscriber.call` applies the policy, not a middleware

    @property
    def ack_policy(self) -> AckPolicy:
        policies = (self._ack_policy, self._outer_config.ack_policy)
        return next((each for each in policies if each is not EMPTY), AckPolicy.NACK_ON_ERROR)


class _Specification(SubscriberSpecification[RocketBrokerConfig, TopicConfig]):
    @property
    def channel_labels(self) -> list[str]:
        return [self.config.topic]

    def get_schema(self) -> Any:
        payload = resolve_payloads(self.get_payloads())
        return self.config.channel(SubscriberSpec, self.name, self.description, payload)


class Subscriber(SubscriberUsecase[Any]):
    """Consumes one topic; options that exclude each other raise `SetupError`."""

    _outer_config: RocketBrokerConfig

    def __init__(self, outer: RocketBrokerConfig, topic: str, options: SubscriberOptions) -> None:
        check_options(topic, options)
        self.options = options
        policy, is_silent = options.get("ack_policy", EMPTY), options.get("no_reply", False)
        config = _Config(_outer_config=outer, _ack_policy=policy, no_reply=is_silent)
        config.parser, config.decoder = parts.parse_message, parts.decode
        if options.get("batch"):
            config.parser, config.decoder = parts.parse_batch, parts.decode_batch
        self._described, calls = TopicConfig(outer, topic, options), CallsCollection[Any]()
        specification: Any = _Specification(outer, self._described, calls)
        super().__init__(config, specification, calls)
        self._consumer: PushConsumer | SimpleConsumer | None = None
        self._reader: PullConsumer | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._handling: set[asyncio.Task[None]] = set()
        self.stopping: asyncio.Task[None] | None = None  # nothing waits for it within a handler
        self._names: dict[str, str] = {}
        self.number = 0
        """Counts the subscribers of one topic whose handlers have the same name."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return self._described.topic

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

    async def start(self) -> None:
        """Begin to consume, if there are handlers."""
        check_topic_name(self.topic)
        self._names = {"topic": self.topic, "group": self.group}
        await super().start()
        self.lock = nullcontext()  # `_stop` waits for the handlers
        self._post_start()
        if self._outer_config.connection is None and self._outer_config.producer:
            return  # a test broker delivers
        connection = connected(self._outer_config.connection)
        await connection.ensure_topic(self.topic)
        if not self.calls or self._consumer is not None:
            return
        self._consumer = self._make_consumer(connection)
        try:
            await self._consumer.start()
        except BaseException:
            self._consumer = None  # a next start tries again
            raise
        if isinstance(self._consumer, SimpleConsumer):
            self._receiving = asyncio.create_task(self._receive(self._consumer))

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
        settings: Any = options.get("settings") or {}
        if options.get("pop"):
            named["invisible"] = options.get("invisible", INVISIBLE_S)
            named["in_flight_max"] = max(1_000, 2 * workers)
            return SimpleConsumer(**named | {"renew": True, "settle_again": True} | settings)
        named["ordered"] = options.get("ordered", False)
        named["broadcast"] = options.get("broadcast", False)
        named["stop_ms"] = int((self._outer_config.graceful_timeout or 0) * 1000)
        named["concurrency"] = workers
        named |= settings
        if options.get("batch"):
            records = options.get("max_records", RECORDS)
            return PushConsumer(**named, batch_handler=self._on_batch, batch_max=records)
        return PushConsumer(**named, handler=self._on_message)

    async def stop(self) -> None:
        """Wait for handlers, up to ``graceful_timeout``; within one, go on once it has ended."""
        stopping = self._begin_stop()
        if self._outer_config.context.get_local("handler_") is not self:
            await asyncio.shield(stopping)

    def _begin_stop(self) -> asyncio.Task[None]:
        if self.stopping is None:
            self.stopping = asyncio.create_task(self._stop(), name=f"stop {self.group}")
        return self.stopping

    async def _stop(self) -> None:
        try:
            if isinstance(self._consumer, PushConsumer):
                await self._consumer.close()  # waits for the handlers, and commits
            if self._receiving is not None:
                self._receiving.cancel()
            await super().stop()
            if self._handling:
                await asyncio.wait(self._handling, timeout=self._outer_config.graceful_timeout or 0)
            for task in self._handling:
                task.cancel()
            await asyncio.gather(*self._handling, return_exceptions=True)
            for each in (self._consumer, self._reader):
                if each is not None:
                    await each.close()
        finally:
            self._consumer = self._reader = self._receiving = self.stopping = None

    async def _on_message(self, message: StoredMessage) -> None:
        settlement = Settlement(message, self.options.get("retry"))
        await self._process(message, settlement)
        settlement.raise_unless_consumed()

    async def _on_batch(self, messages: Sequence[StoredMessage], context: Any) -> None:
        settlement = Settlement(messages[0], self.options.get("retry"))
        await self._process(list(messages), settlement)
        if len(messages) > 1 and parts.is_undecodable(settlement.error):
            await self._one_by_one(messages, context)  # only some of them are undecodable
        else:
            settlement.raise_unless_consumed()

    async def _one_by_one(self, messages: Sequence[StoredMessage], context: Any) -> None:
        """Handle batches of one message each, up to the first that is to be redelivered."""
        for done, message in enumerate(messages):
            settlement = Settlement(message, self.options.get("retry"))
            await self._process([message], settlement)
            verdict, consumer = settlement.verdict, self._consumer
            if verdict is AckStatus.REJECTED and isinstance(consumer, PushConsumer):
                await consumer.dead_letter(message, settlement.error)
            elif verdict is AckStatus.ACKED or done == 0 or self.options.get("ordered"):
                settlement.raise_unless_consumed()
            else:
                context.done = done
                context.delay_level = ConsumeLater(delay=settlement.delay).delay_level
                return

    async def _process(self, raw: Any, settlement: Settlement) -> None:
        """Call the handlers; the log has their errors already."""
        if not self.running:
            return
        try:
            await self.call(raw, settlement)
        except (StopConsume, SystemExit) as stop:
            self._begin_stop()
            if isinstance(stop, SystemExit) and (app := self._outer_config.context.get("app")):
                app.exit()
        except Exception as problem:
            settlement.error = settlement.error or problem
            if self.ack_policy is AckPolicy.MANUAL:
                await settlement.settle(AckStatus.NACKED)
        else:
            if self.ack_policy is AckPolicy.MANUAL and settlement.consumer is None:
                await settlement.wait()

    async def call(self, raw: Any, settlement: Settlement) -> None:
        """Call the handlers, and settle what they leave open: faster than a middleware does."""
        policy = self.ack_policy
        token = parts.CURRENT.set(settlement)
        try:
            if policy is AckPolicy.ACK_FIRST:
                await self._settle(settlement, AckStatus.ACKED)
            await self.process_message(raw)
            if policy is not AckPolicy.MANUAL:
                await self._settle(settlement, AckStatus.ACKED)
        except HandlerException as decision:
            options: dict[str, Any] = getattr(decision, "extra_options", {})
            for kind, verdict in _DECISIONS.items():
                if isinstance(decision, kind):
                    await self._settle(settlement, verdict, **options)
            if policy not in _ON_ERROR:
                raise
        except (Exception, SystemExit):
            if policy in _ON_ERROR:
                await self._settle(settlement, _ON_ERROR[policy])
            raise
        finally:
            parts.CURRENT.reset(token)

    async def _settle(self, settlement: Settlement, verdict: AckStatus, **options: Any) -> None:
        try:
            await settlement.settle(verdict, **options)
        except Exception as problem:  # it is redelivered
            self._log(logging.CRITICAL, repr(problem), exc_info=problem)

    def _get_parser_and_decoder(
        self, *items: CustomCallable | None, **named: CustomCallable | None
    ) -> tuple[AsyncCallable, AsyncCallable]:
        parser, decoder = super()._get_parser_and_decoder(*items, **named)

        async def checked(message: StreamMessage[Any]) -> Any:
            try:
                return await decoder(message)
            except Exception as problem:  # goes on as it is: middlewares know it by its class
                reason = (
                    f"the payload of message {message.message_id} of topic {self.topic} cannot be"
                    f" decoded as {message.content_type or 'JSON or bytes'}: {problem}"
                )
                problem.add_note(reason)
                if isinstance(message, RocketMessage):
                    message.settlement.error = parts.UndecodableError(reason)
                    message.settlement.error.__cause__ = problem
                raise

        return parser, checked

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        producer, first = self._outer_config.producer, parts.messages_of(message.raw_message)[0]
        if message.reply_to == parts.client_reply_of(first):
            return (ReplyPublisher(producer, "", request=first),)
        try:
            check_topic_name(message.reply_to)
        except InvalidNameError as problem:  # retries would not help
            self._log(logging.WARNING, f"dropped the result of {message.message_id}: {problem}")
            return ()
        return (ReplyPublisher(producer, message.reply_to),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return what each line of the log has."""
        names = self._names or {"topic": self.topic, "group": self.group}
        return {**names, "message_id": getattr(message, "message_id", "")}

    async def _receive(self, consumer: SimpleConsumer) -> None:
        """Receive messages while there is room for them, and handle each in a task."""
        workers = self.options.get("max_workers", WORKERS)
        while True:
            if not (free := workers - len(self._handling)):
                await asyncio.wait(self._handling, return_when=asyncio.FIRST_COMPLETED)
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
                task.add_done_callback(self._handling.discard)

    async def _handle_popped(self, consumer: SimpleConsumer, message: StoredMessage) -> None:
        settlement = Settlement(message, self.options.get("retry"), consumer)
        try:
            await self._process(message, settlement)
        finally:
            if settlement.verdict is None and self.ack_policy is not AckPolicy.MANUAL:
                with suppress(CometError):  # else its invisible time ends
                    await consumer.nack(message, None if self.running else 0)

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
        around = [make(raw, context=context) for make in self._broker_middlewares]
        made = await process_msg(msg=raw, middlewares=around, parser=parser, decoder=decoder)
        assert isinstance(made, RocketMessage)
        return made


def check_options(topic: str, options: SubscriberOptions) -> None:
    """Check the options of a subscriber, and that they fit together."""
    check_names(f"subscriber of {topic}", options, SubscriberOptions)
    given: Any = options
    start, retry = given.get("auto_offset_reset", "earliest"), given.get("retry")
    workers = given.get("max_workers", WORKERS)
    for name, value, expected, is_right in (
        ("auto_offset_reset", start, "'earliest' or 'latest'", start in ("earliest", "latest")),
        ("retry", retry, "a retry policy", retry is None or hasattr(retry, "delay_s")),
        ("max_workers", workers, "1 or more", isinstance(workers, int) and workers > 0),
    ):
        if not is_right:
            raise SetupError(f"subscriber of {topic}: {name}={value!r}: expected {expected}")
    pairs = [
        *(("pop", other) for other in ("ordered", "broadcast", "batch")),
        *(("tags", "sql"), ("ordered", "broadcast")),
    ]
    for one, other in pairs:
        if given.get(one) and given.get(other):
            raise SetupError(f"subscriber of {topic}: give either {one} or {other}")
    for name, needs in (("invisible", "pop"), ("max_records", "batch")):
        if name in given and not given.get(needs):
            raise SetupError(f"subscriber of {topic}: {name} is only for {needs}=True")
