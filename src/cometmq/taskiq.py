"""Runs the tasks of Taskiq: a broker with acknowledgements by pop, and schedules with recall.

Taskiq knows one settlement, the acknowledgement. A task that fails is acknowledged, too; Taskiq's
retry middlewares send it again. A redelivery or a dead letter means that workers have crashed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path

from taskiq import AckableMessage, AsyncBroker, BrokerMessage, ScheduledTask, ScheduleSource
from taskiq.kicker import AsyncKicker

from cometmq.client import (
    Message,
    Producer,
    SimpleConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.client.settings import ClientSettings, ProducerSettings, SimpleSettings
from cometmq.model.errors import CometError, ConfigError
from cometmq.remoting.tasks import Supervisor

__all__ = ["CometBroker", "TimerScheduleSource"]

log = logging.getLogger(__name__)

TASK_NAME = "taskiq_task"
"""The property with the name of the task, for tools; the key of the message is the task's id."""
RETRY_S = 1.0
"""Pause after a failed request."""
RECEIVE_S = 10.0


_schedule: ContextVar[ScheduledTask | None] = ContextVar("cometmq_schedule", default=None)
"""The schedule whose task is being sent: Taskiq's kicker has no parameter for it."""


class CometBroker(AsyncBroker):
    """A broker of Taskiq: tasks are messages of one topic, and workers are members of one group.

    It works with CometMQ's brokers and with those of RocketMQ 5. A worker receives one task for
    each free slot, and extends its invisible time until it is acknowledged. If the worker crashes,
    the task is redelivered after that time; the setting ``retries_max`` limits how often.

    The label ``delay`` names seconds until a task is delivered. The label ``priority`` is refused.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses. If empty, the setting
            ``name_servers`` is used.
        topic: the topic of the tasks.
        group: the consumer group of the workers.
        client: the settings of connections.
        producer: the settings of the producer.
        consumer: the settings of the workers' consumer, such as ``invisible_ms``.
        config: a TOML file with settings.

    Example:
        broker = CometBroker("127.0.0.1:9876", topic="tasks")

        @broker.task
        async def greet(name: str) -> None:
            print(f"hello {name}")
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] = "",
        *,
        topic: str = "taskiq",
        group: str = "taskiq",
        client: ClientSettings | None = None,
        producer: ProducerSettings | None = None,
        consumer: SimpleSettings | None = None,
        config: Path | None = None,
    ) -> None:
        super().__init__()
        self.topic = topic
        self._new_producer = functools.partial(
            Producer, name_servers, settings=producer, client=client, config=config
        )
        self._new_consumer = functools.partial(
            SimpleConsumer,
            name_servers,
            group=group,
            topic=topic,
            start_from=StartFrom.FIRST,
            settings=consumer,
            client=client,
            config=config,
            renew=True,
            settle_again=True,
        )
        self._producer: Producer | None = None
        self._consumer: SimpleConsumer | None = None
        self._listening = False
        self._nacks = Supervisor(f"taskiq broker of {topic}")

    async def startup(self) -> None:
        """Start the producer, then run Taskiq's events and middlewares."""
        if self._producer is None:
            producer = self._new_producer()
            await producer.start()
            self._producer = producer
        await super().startup()

    async def shutdown(self) -> None:
        """Run Taskiq's events and middlewares, release unsettled tasks and close the clients."""
        try:
            await super().shutdown()
        finally:
            try:
                if self._consumer is not None:
                    await self._consumer.close()
            finally:
                self._consumer = None
                await self._nacks.cancel()
                if self._producer is not None:
                    await self._producer.close()
                    self._producer = None

    def running_producer(self) -> Producer:
        """Return the producer; a broker that is not started raises `ConfigError`."""
        if self._producer is None:
            raise ConfigError("the broker is not started: await broker.startup() first")
        return self._producer

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task, and return when a broker has stored it."""
        producer = self.running_producer()
        delay, schedule = _delay_of(message), _schedule.get()
        if schedule is not None and schedule.task_id != message.task_id:
            schedule = None  # a middleware sends another task
        receipt = await producer.send(
            Message(
                topic=self.topic,
                body=message.message,
                keys=message.task_id.split(),
                properties={TASK_NAME: message.task_name},
                delay=delay if schedule is None else 0,
                deliver_at=None if schedule is None else _utc(schedule.time),
            )
        )
        if schedule is not None and receipt.recall_handle is not None:
            schedule.schedule_id = receipt.recall_handle

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks, each when the worker asks for it.

        When the generator is closed, no further task is received. Tasks that still run can be
        acknowledged until `shutdown`.
        """
        if self._consumer is None:
            consumer = self._new_consumer()
            await consumer.start()
            self._consumer = consumer
        consumer = self._consumer
        self._listening = True
        try:
            while True:
                for message in await _receive(consumer):
                    yield AckableMessage(data=message.body, ack=_Ack(self, consumer, message))
        finally:
            self._listening = False
            if not consumer.in_flight:
                self._consumer = None
                await consumer.close()

    def _dropped(self, consumer: SimpleConsumer, message: StoredMessage) -> None:
        """Have a task redelivered that can no longer be acknowledged, unless the worker ends."""
        if self._listening:  # else the close of the consumer releases it
            self._nacks.spawn(_nack(consumer, message), "nack", awaited=True)


class _Ack:
    """Acknowledges a task. Taskiq drops it without a call if a middleware raises, for example."""

    def __init__(
        self, broker: CometBroker, consumer: SimpleConsumer, message: StoredMessage
    ) -> None:
        self._broker, self._consumer, self._message = broker, consumer, message
        self._loop = asyncio.get_running_loop()
        self._done = False

    async def __call__(self) -> None:
        await self._consumer.ack(self._message)
        self._done = True

    def __del__(self) -> None:  # in any thread
        if not self._done:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(
                    self._broker._dropped, self._consumer, self._message
                )


async def _nack(consumer: SimpleConsumer, message: StoredMessage) -> None:
    with contextlib.suppress(CometError):  # settled or expired
        await consumer.nack(message)
        log.warning(
            "a task ended without an acknowledgement, it is redelivered task=%s id=%s",
            message.properties.get(TASK_NAME),
            message.message_id,
        )


async def _receive(consumer: SimpleConsumer) -> list[StoredMessage]:
    """Receive one task, or none; failures are retried unless the consumer cannot go on."""
    failed = False
    while True:
        try:
            return await consumer.receive(1, RECEIVE_S)
        except CometError as error:
            if not consumer.healthy:
                raise
            if not failed:  # else it was logged
                log.warning("cannot receive tasks, retrying error=%s", error)
            failed = True
            await asyncio.sleep(RETRY_S)


class TimerScheduleSource(ScheduleSource):
    """Keeps schedules with a time as timer messages at the broker; no scheduler process is needed.

    The id of a schedule is the recall handle of its message, so each process can delete it. An id
    that the caller has chosen is replaced. Schedules with ``cron`` or ``interval`` are refused:
    they need Taskiq's scheduler and another source, such as ``LabelScheduleSource``.

    Args:
        broker: the broker that sends the tasks.

    Example:
        source = TimerScheduleSource(broker)
        schedule = await remind.schedule_by_time(source, tomorrow, "order-1")
        await schedule.unschedule()
    """

    def __init__(self, broker: CometBroker) -> None:
        self._broker = broker

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return no schedules: the broker delivers the tasks by itself."""
        return []

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Send a task that is delivered at its time; ``schedule_id`` becomes its recall handle.

        A time without a zone is in UTC, as in Taskiq.

        Raises:
            ConfigError: the schedule has a cron or an interval.
            SendTaskError: no broker has stored the task, or the time is beyond the longest delay.
        """
        if schedule.time is None or schedule.cron is not None or schedule.interval is not None:
            raise ConfigError(
                f"the schedule of {schedule.task_name} has a cron or an interval: expected only a "
                "time; use LabelScheduleSource and the command `taskiq scheduler`"
            )
        kicker = AsyncKicker[..., object](schedule.task_name, self._broker, schedule.labels)
        schedule.task_id = schedule.task_id or self._broker.id_generator()
        token = _schedule.set(schedule)
        try:
            await kicker.with_task_id(schedule.task_id).kiq(*schedule.args, **schedule.kwargs)
        finally:
            _schedule.reset(token)

    async def delete_schedule(self, schedule_id: str) -> None:
        """Recall a task by the id that its schedule has after `add_schedule`.

        Raises:
            InvalidMessageError: it is not such an id.
            ResponseError: the task was due already, or the broker does not serve recalls.
        """
        await self._broker.running_producer().recall(self._broker.topic, schedule_id)


def _utc(time: datetime | None) -> datetime | None:
    return time.replace(tzinfo=UTC) if time is not None and time.tzinfo is None else time


def _delay_of(message: BrokerMessage) -> float:
    """Return the seconds of the label ``delay``, or 0; a priority is refused."""
    where = f"task {message.task_name}"
    if message.labels.get("priority") is not None:
        raise ConfigError(
            f"{where} has the label priority: brokers deliver the messages of a topic without "
            "priorities; send urgent tasks through a broker with a topic of its own"
        )
    given = message.labels.get("delay", 0)
    try:
        delay = float(given)
    except (TypeError, ValueError):
        delay = math.nan
    if not 0 <= delay < math.inf:
        raise ConfigError(f"{where} has the label delay={given!r}: expected seconds, 0 or more")
    return delay
