"""Consumes messages for the handlers of a subscriber.

A push consumer calls `_on_message` or `_on_batch`, which end as the message was settled: a return
consumes it, `ConsumeLater` has it redelivered or dead-lettered. With ``pop`` a loop receives
messages, and settles each at its broker. In both ways a message of which nothing was said, because
its handler was cancelled, swallowed or stopped, is redelivered.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fast_depends.exceptions import ValidationError as FastDependsValidationError
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError, StopConsume
from faststream.message.message import AckStatus
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec
from pydantic import ValidationError

from cometmq.client import (
    CometError,
    ConsumeLater,
    Filter,
    PullConsumer,
    PushConsumer,
    ReceiptExpiredError,
    SimpleConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.faststream.config import (
    RocketBrokerConfig,
    RocketSubscriberConfig,
    RocketSubscriberSpecificationConfig,
)
from cometmq.faststream.connection import Connection, connected
from cometmq.faststream.message import (
    CLIENT_REPLY,
    BatchParser,
    Parser,
    RocketMessage,
    UndecodableError,
)
from cometmq.faststream.publisher import ReplyPublisher
from cometmq.faststream.settlement import Settlement
from cometmq.model.times import timeout_s
from cometmq.model.topic import check_topic_name

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream._internal.types import AsyncCallable, CustomCallable
    from faststream.message import StreamMessage

WORKERS = 20
RECORDS = 32
INVISIBLE_S = 60.0
RECEIVE_S = 10.0
SETTLE_TRIES = 4
"""Attempts to tell a broker what became of a popped message."""
DEAD_LETTER = -1
_declared = itertools.count()


class RocketSubscriberSpecification(
    SubscriberSpecification[RocketBrokerConfig, RocketSubscriberSpecificationConfig]
):
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
        message = Message(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class Subscriber(SubscriberUsecase[Any]):
    """Consumes one topic."""

    _outer_config: RocketBrokerConfig

    def __init__(
        self,
        config: RocketSubscriberConfig,
        specification: RocketSubscriberSpecification,
        calls: CallsCollection[Any],
    ) -> None:
        self.options = config.options
        self._settlements: dict[int, Settlement] = {}
        parser: Parser = Parser(self._settlements)
        config.parser = parser.parse_message
        config.decoder = parser.decode_message
        if self.options.get("batch"):
            batches = BatchParser(self._settlements)
            config.parser, config.decoder = batches.parse_message, batches.decode_batch
        super().__init__(config, specification, calls)  # type: ignore[arg-type]
        self._topic = config.topic
        self._consumer: PushConsumer | SimpleConsumer | None = None
        self._reader: PullConsumer | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping: asyncio.Task[None] | None = None
        self.declared = next(_declared)
        """Grows with each subscriber."""
        self.number = 0
        """Counts the subscribers of one topic whose handlers have the same name."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self._topic}"

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
                self._spawn(self._receive(self._consumer))
                self._spawn(self._renew(self._consumer))

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
            return SimpleConsumer(
                **named,
                invisible=options.get("invisible", INVISIBLE_S),
                in_flight_max=max(1_000, 2 * workers),
            )
        settings: dict[str, Any] = dict(options.get("settings") or {})
        graceful_s = self._outer_config.graceful_timeout
        settings.setdefault("stop_ms", int((graceful_s or 0) * 1000))
        settings.setdefault("concurrency", workers)
        named |= {"ordered": options.get("ordered", False)}
        named |= {"broadcast": options.get("broadcast", False)}
        if options.get("batch"):
            settings["batch_max"] = options.get("max_records", RECORDS)
            return PushConsumer(**named, batch_handler=self._on_batch, **settings)
        return PushConsumer(**named, handler=self._on_message, **settings)

    async def stop(self) -> None:
        """Consume no more; wait for handlers that run, for as long as ``graceful_timeout``.

        From within a handler it returns at once, and the stop goes on when the handler ends.
        """
        stopping = self._begin_stop()
        if asyncio.current_task() not in self._tasks and not self._is_in_handler():
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

    def _is_in_handler(self) -> bool:
        return self._outer_config.context.get_local("handler_") is self

    async def _stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        reader, self._reader = self._reader, None
        if isinstance(consumer, PushConsumer):
            await consumer.close()  # waits for the handlers, and commits
        await super().stop()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(consumer, SimpleConsumer):
            await consumer.close()
        if reader is not None:
            await reader.close()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work, name=f"consume {self.group}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- handlers -------------------------------------------------------------------------------

    async def _on_message(self, message: StoredMessage) -> None:
        await self._handle(message, Settlement(), message)

    async def _on_batch(self, messages: Sequence[StoredMessage], context: object) -> None:
        await self._handle(list(messages), Settlement(), messages[0])

    async def _handle(self, raw: Any, settlement: Settlement, first: StoredMessage) -> None:
        """Handle a message of a push consumer.

        Raises:
            ConsumeLater: it is not consumed.
        """
        await self._process(raw, settlement)
        if settlement.verdict is AckStatus.ACKED:
            return
        delay = self._delay_of(settlement, first)
        if delay is None:
            raise ConsumeLater(delay_level=DEAD_LETTER) from settlement.error
        if isinstance(delay, int) and delay == 0:
            raise ConsumeLater() from settlement.error
        raise ConsumeLater(delay=delay) from settlement.error

    def _delay_of(self, settlement: Settlement, first: StoredMessage) -> float | timedelta | None:
        """Return when a message comes again; 0 for when the brokers like, None for never."""
        if settlement.verdict is AckStatus.REJECTED:
            return None
        if settlement.delay is not None:
            return settlement.delay
        retry = self.options.get("retry")
        if retry is None or settlement.verdict is None:
            return 0
        return retry.delay_s(first.reconsume_times + 1)

    async def _process(self, raw: Any, settlement: Settlement) -> None:
        """Call the handlers, and settle what they leave open."""
        if not self.running:
            return
        self._settlements[id(raw)] = settlement
        try:
            await self.process_message(raw)
        except StopConsume:
            self._begin_stop()
        except SystemExit:
            self._begin_stop()
            if app := self._outer_config.context.get("app"):
                app.exit()
        except Exception as problem:  # the log has it already
            settlement.error = settlement.error or problem
            if self.ack_policy is AckPolicy.MANUAL and settlement.verdict is None:
                settlement.verdict = AckStatus.NACKED
            if is_undecodable(problem, settlement) and settlement.verdict is not AckStatus.ACKED:
                settlement.verdict = AckStatus.REJECTED  # it would fail each time
        else:
            if self.ack_policy is AckPolicy.MANUAL and not self.options.get("pop"):
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
                settlement = getattr(message, "settlement", None)
                if settlement is not None:
                    settlement.error = UndecodableError(reason)
                    settlement.error.__cause__ = problem
                raise

        return parser, checked

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        producer = self._outer_config.producer
        if message.reply_to.startswith(CLIENT_REPLY):
            raw: StoredMessage = message.raw_message
            return (ReplyPublisher(producer, request=raw),)
        return (ReplyPublisher(producer, topic=message.reply_to),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return what each line of the log has."""
        return {
            "topic": self.topic,
            "group": self.group,
            "message_id": getattr(message, "message_id", ""),
        }

    # --- pop ------------------------------------------------------------------------------------

    async def _receive(self, consumer: SimpleConsumer) -> None:
        """Receive messages while there is room for them, and handle each in a task."""
        workers = self.options.get("max_workers", WORKERS)
        room = asyncio.Semaphore(workers)
        while self.running:
            await room.acquire()
            free = 1
            while free < RECORDS and not room.locked():
                await room.acquire()
                free += 1
            messages: list[StoredMessage] = []
            try:
                messages = await consumer.receive(free, wait=RECEIVE_S)
            except CometError as problem:
                self._log(logging.WARNING, f"cannot receive: {problem}")
                await asyncio.sleep(1.0)  # a broker that refuses is asked again
            finally:
                for _ in range(free - len(messages)):
                    room.release()
            for message in messages:
                self._spawn(self._handle_popped(consumer, message, room))

    async def _handle_popped(
        self, consumer: SimpleConsumer, message: StoredMessage, room: asyncio.Semaphore
    ) -> None:
        async def carry_out(settlement: Settlement) -> None:
            await self._settle_popped(consumer, message, settlement)

        async def extend(invisible: float | timedelta) -> None:
            await consumer.extend(message, invisible)

        settlement = Settlement(carry_out, extend)
        raw: Any = [message] if self.options.get("batch") else message
        try:
            await self._process(raw, settlement)
            await settlement.end()
            if settlement.verdict is None and self.ack_policy is not AckPolicy.MANUAL:
                with suppress(CometError):  # else its invisible time ends
                    await consumer.nack(message)
        finally:
            room.release()

    async def _settle_popped(
        self, consumer: SimpleConsumer, message: StoredMessage, settlement: Settlement
    ) -> None:
        """Tell the broker what became of a message; a few times, since it is lost on nobody."""
        for attempt in range(SETTLE_TRIES):
            try:
                if settlement.verdict is AckStatus.ACKED:
                    await consumer.ack(message)
                elif (delay := self._delay_of(settlement, message)) is None:
                    await consumer.dead_letter(message, settlement.error)
                elif delay == 0:
                    await consumer.nack(message)
                else:
                    await consumer.nack(message, delay)
            except CometError as problem:
                is_expired = isinstance(problem, ReceiptExpiredError)
                if is_expired or attempt == SETTLE_TRIES - 1:
                    text = f"message {message.message_id} is redelivered: {problem}"
                    self._log(logging.WARNING, text)
                    return
                await asyncio.sleep(0.1 * 4**attempt)
            else:
                return

    async def _renew(self, consumer: SimpleConsumer) -> None:
        """Begin the invisible times anew of the messages that handlers work on."""
        invisible_s = timeout_s(self.options.get("invisible", INVISIBLE_S))
        while True:
            await asyncio.sleep(invisible_s / 3)
            for settlement in list(self._settlements.values()):
                if settlement.verdict is None and settlement.extend is not None:
                    with suppress(CometError):  # tried again in time
                        await settlement.extend(invisible_s)

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
        raw = None
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                raw = await anext(reader)
        return None if raw is None else await self._parsed(raw)

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

    async def __aiter__(self) -> AsyncIterator[RocketMessage]:
        """Iterate over the messages; each is consumed when the next one is asked for."""
        reader = await self._pull()
        async for raw in reader:
            yield await self._parsed(raw)


def is_undecodable(problem: BaseException, settlement: Settlement) -> bool:
    """Return whether a payload cannot be decoded, or does not fit the parameters of a handler.

    What a handler itself validates is its own affair: only the frames of FastDepends tell apart
    where the same exception comes from.
    """
    noted = settlement.error
    if isinstance(noted, UndecodableError) and noted.__cause__ is problem:
        return True
    if isinstance(problem, UndecodableError | FastDependsValidationError):
        return True
    if not isinstance(problem, ValidationError):
        return False
    last, frame = "", problem.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_globals.get("__name__", "")
        last = last if name.startswith("pydantic") else name
        frame = frame.tb_next
    return last.startswith("fast_depends.")


def check_options(topic: str, subscriber: Subscriber) -> None:
    """Check that the options of a subscriber fit together.

    Raises:
        SetupError: two exclude each other.
    """
    options: Any = subscriber.options
    pairs = [
        *(("pop", other) for other in ("ordered", "broadcast", "batch", "settings")),
        ("tags", "sql"),
        ("ordered", "broadcast"),
    ]
    for one, other in pairs:
        if options.get(one) and options.get(other):
            raise SetupError(f"subscriber of {topic}: give either {one} or {other}")
    for name, needs in (("invisible", "pop"), ("max_records", "batch")):
        if name in options and not options.get(needs):
            raise SetupError(f"subscriber of {topic}: {name} is only for {needs}=True")
