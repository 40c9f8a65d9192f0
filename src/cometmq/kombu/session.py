"""What one Kombu connection receives, until it is settled.

It runs in the event loop of the blocking client: by steps in the loop of a worker, otherwise in the
threads that make calls, or in the client's own. So invisible times are extended while the thread of
the application is busy.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from cometmq.client import (
    ClientInstance,
    CometError,
    ReceiptExpiredError,
    SimpleConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.kombu.link import (
    CLOSE_S,
    ETA,
    EXPIRES,
    WAITING_MAX,
    Link,
    LinkOptions,
    acquire_link,
    new_instance,
    release_link,
)
from cometmq.kombu.messages import MalformedMessageError, milliseconds_of
from cometmq.model.times import now_ms
from cometmq.remoting import Supervisor
from cometmq.remoting.tasks import raise_unless_failure

log = logging.getLogger(__name__)

POP_MAX = 32
ACKS_MAX = 16
"""Requests with acknowledgements that run at a time, if brokers do not respond soon."""
ACK_S = 0.5
"""How long others wait for such a request, so that they are sent together."""


@dataclass(slots=True, eq=False)
class Held:
    """A message that is received and not settled; its consumer extends its invisible time."""

    topic: str
    message: StoredMessage
    consumer: SimpleConsumer
    eta_ms: int
    """The time for which its reader waits, if that is later."""


class Session:
    """Receives and settles messages.

    Args:
        options: of the transport.
        wake: called when short-lived queues have messages, in the loop's thread.
    """

    link: Link

    def __init__(self, options: LinkOptions, wake: Callable[[], object]) -> None:
        self.options = options
        self._wake = wake
        self._tasks = Supervisor("kombu")
        self._settlements = Supervisor("kombu")
        self._instance: ClientInstance | None = None
        self._consumers: dict[str, SimpleConsumer] = {}
        self._waiting: set[Held] = set()
        """Messages that were not due when they were received."""
        self._starting = asyncio.Lock()
        self.acks: deque[Held] = deque()
        """What is to be acknowledged; any thread may append."""
        self._acks_run = asyncio.Semaphore(ACKS_MAX)
        self._is_acking = False
        self.is_closed = False

    async def start(self) -> None:
        """Connect.

        Raises:
            CometError: no name server or broker responds.
        """
        self.link = await acquire_link(self.options)
        self.link.wakes.add(self._wake)

    async def close(self) -> None:
        """Settle what is being settled, release the rest, and close the connections."""
        self.is_closed = True
        self.send_acks()
        await self._settlements.drain(CLOSE_S)
        await self._settlements.cancel(CLOSE_S)
        await self._tasks.cancel(CLOSE_S)
        closing = [consumer.close() for consumer in self._consumers.values()]
        try:  # at once: each waits for a broker that does not respond
            await asyncio.gather(*closing, return_exceptions=True)
            if self._instance is not None:
                await self._instance.close()
        finally:
            self.link.wakes.discard(self._wake)
            await release_link(self.link)

    async def delete_queue(self, queue: str) -> None:
        """Remove a queue with its bindings and messages."""
        for topic in self.link.topics_of(queue):
            consumer = self._consumers.pop(topic, None)
            if consumer is not None:
                await consumer.close()
        await self.link.delete_queue(queue)

    async def purge(self, queue: str) -> int:
        """Remove the messages of a queue that no consumer has received; return how many."""
        count, most = 0, await self.link.size(queue) + POP_MAX
        for topic in self.link.topics_of(queue):
            consumer = await self._consumer(topic)
            while count < most and (found := await consumer.receive(POP_MAX, wait=0.0)):
                await consumer.ack(*found)
                count += len(found)
        return count

    # --- receiving ----------------------------------------------------------------------------

    async def receive(self, topics: Sequence[str], count: int, wait: float) -> list[Held]:
        """Receive up to this many messages, of the first topics first.

        It may return more if several topics have messages at once.
        """
        count = min(count, POP_MAX)
        if len(topics) == 1:
            [topic] = topics
            consumer = await self._consumer(topic)
            return self._hold(topic, consumer, await consumer.receive(count, wait))
        consumers: list[tuple[str, SimpleConsumer]] = []
        found: list[Held] = []
        failure: BaseException | None = None
        try:
            for topic in topics:
                room = count - len(found)
                try:
                    consumer = await self._consumer(topic)
                    messages = await consumer.receive(room, wait=0.0) if room else []
                except CometError as error:  # the other topics are received nevertheless
                    failure = error
                    continue
                consumers.append((topic, consumer))
                found += self._hold(topic, consumer, messages)
        except BaseException:  # cancelled: what is held would stay invisible
            for held in found:
                self.release(held)
            raise
        if failure is not None and not found:
            raise failure
        if found or not wait:
            return found
        waiting = {
            self._tasks.spawn(consumer.receive(count, wait), "receive", awaited=True): (
                topic,
                consumer,
            )
            for topic, consumer in consumers
        }
        is_cancelled = True
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            is_cancelled = False
        finally:  # what a broker hands out to a cancelled call goes to the next one
            for task, source in waiting.items():
                if not task.done():
                    task.cancel()
                elif task.exception() is None:
                    found += self._hold(*source, task.result())
                else:
                    failure = task.exception()
            for held in found if is_cancelled else ():
                self.release(held)
        if failure is not None and not found:
            raise failure
        return found

    async def _consumer(self, topic: str) -> SimpleConsumer:
        consumer = self._consumers.get(topic)
        if consumer is not None and consumer.failure is None:
            return consumer
        await self.link.ensure_topic(topic)
        async with self._starting:
            consumer = self._consumers.get(topic)
            if consumer is not None and consumer.failure is not None:
                del self._consumers[topic]  # such as: its account had no right
                await consumer.close()
                consumer = None
            if consumer is None:
                if self._instance is None:
                    # Its own: a client has one consumer of each group.
                    instance = new_instance(self.options)
                    await instance.start()
                    self._instance = instance
                consumer = SimpleConsumer(
                    instance=self._instance,
                    group=topic,
                    topic=topic,
                    start_from=StartFrom.FIRST,
                    invisible=self.options.visibility_timeout,
                    retries_max=self.options.delivery_limit,
                    hold_ms=5_000,
                    renew=True,
                    settle_again=True,
                )
                await consumer.start()
                self._consumers[topic] = consumer
        return consumer

    def _hold(
        self, topic: str, consumer: SimpleConsumer, messages: Sequence[StoredMessage]
    ) -> list[Held]:
        """Return received messages, but none that is expired, or due much later."""
        found: list[Held] = []
        now = now_ms()
        for message in messages:
            try:
                eta_ms = milliseconds_of(message.properties, ETA)
                expires_ms = milliseconds_of(message.properties, EXPIRES)
            except MalformedMessageError as error:
                self.dead_letter(Held(topic, message, consumer, 0), error)
                continue
            held = Held(topic, message, consumer, eta_ms)
            if expires_ms and expires_ms <= now:
                self.ack(held)
            elif eta_ms > now + 1000 and self._waits_at_the_broker(eta_ms, now):
                self._tasks.spawn(self._next_step(held), "delay")
            else:
                found.append(held)
                if eta_ms > now:
                    self._waiting.add(held)
        return found

    def _waits_at_the_broker(self, eta_ms: int, now: int) -> bool:
        """Whether a message is due too late for its reader, or its reader has too many."""
        if eta_ms >= now + self.options.delay_min * 1000:
            return True
        return sum(each.eta_ms > now for each in self._waiting) >= WAITING_MAX

    async def _next_step(self, held: Held) -> None:
        message = held.message
        properties = {name: message.properties[name] for name in (ETA, EXPIRES)
                      if name in message.properties}  # fmt: skip
        try:
            await self._replace(held, message.body, properties, delay_min=0.0)
        except BaseException as error:
            raise_unless_failure(error)
            log.warning(
                "a delayed message is tried again id=%s error=%s", message.message_id, error
            )
            self.release(held)

    async def _replace(
        self, held: Held, body: bytes, properties: dict[str, str], *, delay_min: float
    ) -> None:
        try:  # a broker redelivers the message itself if its invisible time is over
            await held.consumer.extend(held.message, self.options.visibility_timeout)
        except ReceiptExpiredError:
            self._waiting.discard(held)
            return
        copy = self.link.message(
            held.topic, body, keys=held.message.keys, properties=properties, delay_min=delay_min
        )
        await self.link.put(copy)
        self.ack(held)

    # --- settling -----------------------------------------------------------------------------

    def ack(self, held: Held) -> None:
        """Acknowledge a message."""
        self.acks.append(held)
        self.send_acks()

    def send_acks(self) -> None:
        """Begin to send acknowledgements, unless that runs."""
        if not self._is_acking:
            self._is_acking = True
            self._settlements.spawn(self._ack_all(), "ack")

    async def _ack_all(self) -> None:
        """Send acknowledgements, those that come meanwhile together."""
        while self.acks:
            await self._acks_run.acquire()
            some = [self.acks.popleft() for _ in range(min(POP_MAX, len(self.acks)))]
            sending = self._settlements.spawn(self._ack_some(some), "ack", awaited=True)
            sending.add_done_callback(lambda _: self._acks_run.release())
            await asyncio.wait({sending}, timeout=ACK_S)
        self._is_acking = False

    async def _ack_some(self, some: Sequence[Held]) -> None:
        messages: dict[SimpleConsumer, list[StoredMessage]] = defaultdict(list)
        for held in some:
            self._waiting.discard(held)
            messages[held.consumer].append(held.message)
        for consumer, of_consumer in messages.items():
            try:
                await consumer.ack(*of_consumer)
            except CometError as error:
                log.warning("not acknowledged, it is redelivered: %s", error)

    def release(self, held: Held) -> None:
        """Let the broker redeliver a message soon."""
        self._settle(held, held.consumer.nack(held.message, 0.0), "release")

    def dead_letter(self, held: Held, error: BaseException | None = None) -> None:
        """Store a message as a dead letter, with the reason, and acknowledge it."""
        if error is not None:
            log.warning("dead-lettered topic=%s id=%s error=%s",
                        held.topic, held.message.message_id, error)  # fmt: skip
        self._settle(held, self._dead_letter(held, error), "dead-letter")

    async def _dead_letter(self, held: Held, error: BaseException | None) -> None:
        try:
            await held.consumer.dead_letter(held.message, error)
        except CometError:  # its invisible time would be extended for ever
            await held.consumer.nack(held.message)
            raise

    def _settle(self, held: Held, request: Coroutine[Any, Any, None], name: str) -> None:
        async def settle() -> None:
            try:
                await request
            except CometError as error:  # it is redelivered when its invisible time is over
                log.warning("%s failed, the message is redelivered: %s", name, error)

        self._waiting.discard(held)
        self._settlements.spawn(settle(), name)

    async def requeue(self, held: Held, body: bytes, properties: dict[str, str]) -> None:
        """Store a copy, which is visible at once, and acknowledge the message."""
        await self._replace(held, body, properties, delay_min=math.inf)
