"""What one Kombu connection receives, until it is settled.

It runs in the event loop of the blocking client, which has a thread of its own. So invisible times
are extended and acknowledgements are sent while the thread of the application is busy.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cometmq.client import (
    ClientClosedError,
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
    RETRY_S,
    WAITING_MAX,
    Link,
    LinkOptions,
    acquire_link,
    new_instance,
    release_link,
)
from cometmq.model.times import now_ms
from cometmq.remoting import Supervisor
from cometmq.remoting.tasks import raise_unless_failure

log = logging.getLogger(__name__)

POP_MAX = 32
SETTLING_MAX = 64
"""Acknowledgements and extensions that run at a time."""


@dataclass(slots=True, eq=False)
class Held:
    """A message that is received and not settled."""

    topic: str
    message: StoredMessage
    consumer: SimpleConsumer
    renewed_at: float
    eta_ms: int = 0
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
        self._held: dict[int, Held] = {}
        self._starting = asyncio.Lock()
        self._settling = asyncio.Semaphore(SETTLING_MAX)

    async def start(self) -> None:
        """Connect.

        Raises:
            CometError: no name server or broker responds.
        """
        self.link = await acquire_link(self.options)
        self.link.wakes.add(self._wake)
        self._tasks.spawn(self._renew(), "renew")

    async def close(self) -> None:
        """Settle what is being settled, and close the connections."""
        await self._settlements.drain(CLOSE_S)
        await self._settlements.cancel(CLOSE_S)
        await self._tasks.cancel(CLOSE_S)
        for consumer in self._consumers.values():
            await consumer.close()
        if self._instance is not None:
            await self._instance.close()
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
        consumers = [(topic, await self._consumer(topic)) for topic in topics]
        found: list[Held] = []
        if len(consumers) > 1 or not wait:
            for topic, consumer in consumers:
                room = count - len(found)
                messages = await consumer.receive(room, wait=0.0) if room else []
                found += self._hold(topic, consumer, messages)
        if found or not wait:
            return found
        waiting = {
            self._tasks.spawn(consumer.receive(count, wait=wait), "receive", awaited=True): (
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
            failure = None
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
        await self.link.ensure_topic(topic)
        async with self._starting:
            consumer = self._consumers.get(topic)
            if consumer is None:
                if self._instance is None:
                    # Its own: a client has one consumer of each group.
                    self._instance = new_instance(self.options)
                    await self._instance.start()
                consumer = SimpleConsumer(
                    instance=self._instance,
                    group=topic,
                    topic=topic,
                    start_from=StartFrom.FIRST,
                    invisible=self.options.visibility_timeout,
                    retries_max=self.options.delivery_limit,
                    hold_ms=5_000,
                )
                await consumer.start()
                self._consumers[topic] = consumer
        return consumer

    def _hold(
        self, topic: str, consumer: SimpleConsumer, messages: Sequence[StoredMessage]
    ) -> list[Held]:
        """Note received messages; those that are expired, or due much later, are not delivered."""
        found: list[Held] = []
        now = now_ms()
        for message in messages:
            eta_ms = int(message.properties.get(ETA, 0))
            held = Held(topic, message, consumer, time.monotonic(), eta_ms)
            self._held[id(message)] = held
            expires_ms = int(message.properties.get(EXPIRES, 0))
            if expires_ms and expires_ms <= now:
                self.ack(held)
            elif eta_ms > now + 1000 and self._waits_at_the_broker(eta_ms, now):
                self._tasks.spawn(self._next_step(held), "delay")
            else:
                found.append(held)
        return found

    def _waits_at_the_broker(self, eta_ms: int, now: int) -> bool:
        """Whether a message is due too late for its reader, or its reader has too many."""
        if eta_ms >= now + self.options.delay_min * 1000:
            return True
        return sum(each.eta_ms > now for each in self._held.values()) > WAITING_MAX

    async def _next_step(self, held: Held) -> None:
        message = held.message
        properties = {name: message.properties[name] for name in (ETA, EXPIRES)
                      if name in message.properties}  # fmt: skip
        try:
            await self.link.put(
                held.topic, message.body, keys=message.keys, properties=properties, delay_min=0.0
            )
        except BaseException as error:
            raise_unless_failure(error)
            log.warning(
                "a delayed message is tried again id=%s error=%s", message.message_id, error
            )
            self.release(held)
        else:
            self.ack(held)

    # --- settling -----------------------------------------------------------------------------

    def ack(self, held: Held) -> None:
        """Acknowledge a message, as often as needed."""
        self._settlements.spawn(self._ack(held), "ack")

    async def _ack(self, held: Held) -> None:
        try:
            async with self._settling:
                while True:
                    try:
                        await held.consumer.ack(held.message)
                    except (ReceiptExpiredError, ClientClosedError) as error:
                        log.warning("not acknowledged, it is redelivered: %s", error)
                    except CometError:
                        await asyncio.sleep(RETRY_S)
                        continue
                    return
        finally:
            self._held.pop(id(held.message), None)

    def release(self, held: Held) -> None:
        """Let the broker redeliver a message soon."""
        self._settlements.spawn(self._release(held), "release")

    async def _release(self, held: Held) -> None:
        try:
            async with self._settling:
                await held.consumer.nack(held.message, 0.0)
        except CometError as error:  # it is redelivered when its invisible time is over
            log.debug("not released: %s", error)
        finally:
            self._held.pop(id(held.message), None)

    async def requeue(self, held: Held, body: bytes, properties: dict[str, str]) -> None:
        """Store a copy, which is visible at once, and acknowledge the message."""
        keys = held.message.keys
        await self.link.put(held.topic, body, keys=keys, properties=properties, delay_min=math.inf)
        self.ack(held)

    async def _renew(self) -> None:
        """Extend the invisible times of held messages when a third of them is over."""
        timeout = self.options.visibility_timeout
        while True:
            await asyncio.sleep(min(timeout / 6, 5.0))
            due = time.monotonic() - timeout / 3
            old = [each for each in self._held.values() if each.renewed_at <= due]
            await asyncio.gather(*map(self._extend, old))

    async def _extend(self, held: Held) -> None:
        began = time.monotonic()
        try:
            async with self._settling:
                if id(held.message) not in self._held:
                    return
                await held.consumer.extend(held.message, self.options.visibility_timeout)
            held.renewed_at = began
        except ReceiptExpiredError as error:
            if self._held.pop(id(held.message), None) is not None:
                log.warning("held for too long without a connection: %s", error)
        except CometError as error:
            log.debug("not extended yet: %s", error)
