"""Receives for a simple consumer: pops at each broker in turn, then waits at all of them.

    receive -> pop at each broker, which responds at once
            -> nothing: a held NOTIFICATION request at each broker -> pop again

Only the short pops take messages, so a cancelled wait takes none. If the caller of a pop is
cancelled, the next `receive` gets the messages of this pop. After a second without a `receive` they
are released, which means that the broker redelivers them. Each broker has at most one pop and one
held request at a time, for any number of tasks: a broker notifies only one held request for each
message, and this must not be the request of a cancelled task.

As in RocketMQ 5's gRPC clients, all queues of a broker are popped at once, so that the number of
members is not limited by the number of queues.

Source: SimpleConsumerImpl of RocketMQ's Java client 5.0; ReceiveMessageActivity, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.consumer import Subscriptions
from cometmq.client._consuming.retries import DeadLetters
from cometmq.client._pop.calls import (
    ALL_QUEUES,
    Acks,
    Deliveries,
    Delivery,
    PopRequests,
    ReceiptHandle,
    not_served,
)
from cometmq.client._supervision import SupervisedFailureLog
from cometmq.client.errors import (
    ClientClosedError,
    ClientError,
    TopicNotFoundError,
)
from cometmq.client.filters import Filter
from cometmq.client.settings import SimpleSettings
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.protocol.refusals import is_account_refused
from cometmq.remoting.tasks import Supervisor, raise_unless_failure

log = logging.getLogger(__name__)

LEFTOVER_S = 1.0
"""How long messages of a cancelled `receive` wait for the next one."""
LOOK_S = 1.0
"""Interval at which a topic that does not exist yet is looked up while a task receives."""
QUICK_S = 0.05
"""A held request that returns sooner, and after which a pop finds nothing, is slowed down."""
SLOW_STEP_S, SLOW_MAX_S = 0.01, 0.2
STOP_S = 1.0


class _BrokerQueues:
    """All queues of a topic at one broker."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.lock = asyncio.Lock()
        """Held by the task that pops."""
        self.may_have_messages = True
        """Whether there may be something to pop."""
        self.ready = False
        """Whether the broker has fixed where the group starts."""
        self.failure: BaseException | None = None
        """The error of the last request."""
        self.retry_at = 0.0
        """When to send the next request after a failure, in seconds of the steady clock."""
        self.empty_wakeups = 0
        """Held requests in a row that returned at once and after which nothing was there."""
        self.held_request: asyncio.Task[None] | None = None
        """The request that the broker holds."""
        self.pop: asyncio.Task[list[StoredMessage]] | None = None
        """A pop whose task was cancelled."""

    @property
    def is_backing_off(self) -> bool:
        return time.monotonic() < self.retry_at


class Receiver:
    """Pops messages for any number of tasks.

    Args:
        instance: whose routes are used.
        requests: the requests of the group.
        deliveries: where received messages are noted.
        subscriptions: what to receive; may change.
        settings: of the consumer.
        dead_letters: which messages are dead-lettered instead of received, and how.
        name: of the consumer, for its tasks and errors.
        on_permanent: called with the error of a permanent failure.
    """

    def __init__(
        self,
        instance: ClientCore,
        requests: PopRequests,
        deliveries: Deliveries,
        *,
        subscriptions: Subscriptions,
        settings: SimpleSettings,
        dead_letters: DeadLetters,
        name: str,
        on_permanent: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._instance = instance
        self._requests = requests
        self._acks = Acks(requests)
        self._deliveries = deliveries
        self._subscriptions = subscriptions
        self._settings = settings
        self._dead_letters = dead_letters
        self._name = name
        self._sources: dict[MessageQueue, _BrokerQueues] = {}
        self._absent: dict[str, CometError] = {}
        """Topics whose route has no readable queue now, and why; each is being looked up."""
        self._next = 0
        self._leftover: deque[tuple[float, StoredMessage]] = deque()
        self._change: asyncio.Future[None] | None = None
        self._closed = False
        self.work = Supervisor(name)
        """Owns the requests that go on although their caller was cancelled."""
        self._background = Supervisor(name)
        self._failing = SupervisedFailureLog(
            log,
            fails="receive failed, retrying",
            works="receive succeeds again",
            name="queue",
            on_permanent=on_permanent,
        )

    # --- where messages come from -------------------------------------------------------------

    async def prepare(self, queue: MessageQueue, wanted: Filter) -> None:
        """Let a broker fix where the group starts: a pop of no messages does it.

        Raises:
            ResponseError: the broker does not serve pop, or refuses the subscription.
        """
        try:
            await self._requests.pop(
                queue,
                wanted,
                max_messages=0,
                invisible_ms=self._settings.invisible_ms,
            )
        except ResponseError as error:
            if is_account_refused(error):
                raise
            refusal = f"broker {queue.broker_name} refused to pop from {queue.topic}"
            raise not_served(error, refusal, "SimpleConsumer") from error
        except CometError as error:  # it is retried later
            self._failed(queue, error)
        else:
            if queue in self._sources:
                self._sources[queue].ready = True

    def queues_of(self, topic: str) -> list[MessageQueue]:
        """Return one queue for each broker that a topic can be read from; -1 stands for all."""
        route = self._instance.routes.known(topic)
        brokers = {route.physical(queue) for queue in route.read_queues} if route else set()
        return [MessageQueue(topic, broker, ALL_QUEUES) for broker in sorted(brokers)]

    def queues(self) -> list[MessageQueue]:
        """Return what is popped; -1 stands for all queues of a broker."""
        self.follow_routes()
        return sorted(self._sources)

    def follow_routes(self) -> None:
        """Take the brokers of the topics from the routes; topics without one are looked up."""
        found: set[MessageQueue] = set()
        for topic in self._subscriptions.topics():
            queues = self.queues_of(topic)
            found.update(queues)
            if not queues and topic not in self._absent:
                self._absent[topic] = TopicNotFoundError(topic, "its route has no readable queue")
                self._background.spawn(self._look_up(topic), f"look-up-{topic}")
        for queue in self._sources.keys() - found:
            self._failing.forget(str(queue))
            del self._sources[queue]
        for queue in sorted(found - self._sources.keys()):
            self._sources[queue] = _BrokerQueues(queue)

    async def _look_up(self, topic: str) -> None:
        """Look a topic up until a broker serves it, or it is not subscribed any more."""
        try:
            while topic in self._subscriptions.topics() and not self.queues_of(topic):
                try:
                    await self._instance.routes.find(topic)
                except CometError as error:
                    self._absent[topic] = error
                await asyncio.sleep(LOOK_S)
        finally:
            self._absent.pop(topic, None)
            self.notify()

    async def ready(self) -> None:
        """Return when each topic has a broker, and each broker has fixed where the group starts.

        Raises:
            ResponseError: a broker does not serve pop.
            ClientClosedError: the consumer was closed.
        """
        while True:
            self.check_open()
            change = self._next_change()
            self.follow_routes()
            for source in list(self._sources.values()):
                wanted = self._subscriptions.filter_of(source.queue.topic)
                if not source.ready and not source.is_backing_off and wanted is not None:
                    await self.prepare(source.queue, wanted)
            if not self._absent and all(source.ready for source in self._sources.values()):
                return
            await asyncio.wait({change}, timeout=self._settings.retry_ms / 1000)

    def failures(self) -> str:
        """Return which topics and brokers cannot receive requests now, and why."""
        failed = [
            f"{each.queue}: {each.failure}" for each in self._sources.values() if each.failure
        ]
        return (
            "; ".join([*map(str, self._absent.values()), *failed]) or "the broker did not respond"
        )

    # --- receiving ----------------------------------------------------------------------------

    async def receive(
        self, max_messages: int, wait_s: float, invisible_ms: int
    ) -> list[StoredMessage]:
        """Return up to this many messages as soon as there are any; none after ``wait_s``.

        Raises:
            BackPressureError: too many messages are in flight.
            ClientClosedError: the consumer was closed.
            CometError: no broker responded in all the time; this is the last failure.
        """
        deadline = time.monotonic() + wait_s
        responded, first = False, True
        while True:
            change = self._next_change()
            self.follow_routes()
            for source in self._rotated():
                messages = await self._pop_from(source, max_messages, invisible_ms, always=first)
                if messages:
                    return messages
                responded = responded or source.failure is None
            self.check_open()
            first, remaining = False, deadline - time.monotonic()
            if remaining > 0:
                self._hold_requests()
                await asyncio.wait({change}, timeout=remaining)
            elif responded:
                return []
            else:
                raise self._failure()

    def _failure(self) -> BaseException:
        """Return the error of a receive in which no broker responded."""
        failed = [each.failure for each in self._sources.values() if each.failure is not None]
        reasons: list[BaseException] = [*failed, *self._absent.values()]
        return reasons[0] if reasons else ClientError("no topic is subscribed: call subscribe")

    def _rotated(self) -> Sequence[_BrokerQueues]:
        """Return the sources in order; each call starts with the next one."""
        sources = [self._sources[queue] for queue in sorted(self._sources)]
        begin = self._next % len(sources) if sources else 0
        self._next = begin + 1
        return sources[begin:] + sources[:begin]

    async def _pop_from(
        self, source: _BrokerQueues, max_messages: int, invisible_ms: int, *, always: bool
    ) -> list[StoredMessage]:
        self.check_open()
        if found := self._take_leftover(max_messages):
            return found
        if source.is_backing_off or (source.failure is not None and source.lock.locked()):
            return []  # it fails; at most one task waits for it
        async with source.lock:
            if source.pop is not None:  # its task was cancelled
                await asyncio.wait({source.pop})
                source.pop = None
            self.check_open()
            if found := self._take_leftover(max_messages):
                return found
            if source.is_backing_off or not (always or source.may_have_messages):
                return []  # the task before found nothing
            room = self._deliveries.reserve(max_messages)
            pop = self.work.spawn(self._pop(source, room, invisible_ms), "pop", awaited=True)
            pop.add_done_callback(lambda _: self._deliveries.free(room))
            try:
                return await asyncio.shield(pop)
            except BaseException:
                # The request goes on, and the next receive gets what it brings.
                source.pop = pop
                pop.add_done_callback(self._keep_result)
                raise

    async def _pop(
        self, source: _BrokerQueues, room: int, invisible_ms: int
    ) -> list[StoredMessage]:
        """Pop once; a failure is noted at the source."""
        queue, began = source.queue, time.monotonic()
        wanted = self._subscriptions.filter_of(queue.topic)
        if wanted is None:
            return []
        source.may_have_messages = False
        try:
            popped = await self._requests.pop(
                queue, wanted, max_messages=room, invisible_ms=invisible_ms
            )
        except BaseException as error:
            raise_unless_failure(error)
            self._failed(queue, error)
            return []
        self._failing.succeeded(str(queue))
        source.failure, source.ready = None, True
        if popped:
            source.may_have_messages, source.empty_wakeups = True, 0
        kept: list[tuple[StoredMessage, ReceiptHandle]] = []
        exhausted: list[tuple[StoredMessage, ReceiptHandle]] = []
        unwanted: list[ReceiptHandle] = []
        for message, handle in popped:
            if not wanted.takes(message):  # another tag with the same hash
                unwanted.append(handle)
            elif self._dead_letters.rule.is_exceeded(message):
                exhausted.append((message, handle))
            else:
                kept.append((message, handle))
        if unwanted or exhausted:
            self.work.spawn(self._dispose(queue.topic, unwanted, exhausted), "dispose")
        noted = [self._note(queue.topic, message, handle, began) for message, handle in kept]
        self._keep_for_next(noted[room:])  # a broker may return more than was requested
        return noted[:room]

    def _note(
        self, topic: str, message: StoredMessage, handle: ReceiptHandle, began: float
    ) -> StoredMessage:
        self._instance.namespace.unwrap_topics([message])
        # The broker counts from a moment between the request and the response.
        until = began + handle.invisible_ms / 1000
        self._deliveries.add(Delivery(message, topic, handle, until))
        return message

    async def _dispose(
        self,
        topic: str,
        unwanted: list[ReceiptHandle],
        exhausted: list[tuple[StoredMessage, ReceiptHandle]],
    ) -> None:
        """Acknowledge what no task receives; dead-letter what was retried too often before."""
        for handle in unwanted:
            await self._acks.ack(topic, handle)
        for message, handle in exhausted:
            if await self._dead_letters.store(message, None):
                await self._acks.ack(topic, handle)
            # else it is redelivered, and tried again, when its invisible time is over

    def _failed(self, queue: MessageQueue, error: BaseException) -> None:
        self._failing.failed(str(queue), error)
        source = self._sources.get(queue)
        if source is not None:
            source.failure = error
            source.retry_at = time.monotonic() + self._settings.retry_ms / 1000

    # --- waiting ------------------------------------------------------------------------------

    def _next_change(self) -> asyncio.Future[None]:
        """Return the future that ends with the next change: waiting tasks check again then."""
        if self._change is None or self._change.done():
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def notify(self) -> None:
        """Wake all waiting tasks, which check again."""
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    def _hold_requests(self) -> None:
        for source in self._sources.values():
            if source.held_request is None or source.held_request.done():
                source.held_request = self._background.spawn(
                    self._hold_request(source), f"hold-{source.queue}"
                )

    async def _hold_request(self, source: _BrokerQueues) -> None:
        """Let the broker hold a request, then have the waiting tasks pop."""
        if source.is_backing_off:
            await asyncio.sleep(source.retry_at - time.monotonic())
        if source.empty_wakeups:
            await asyncio.sleep(min(SLOW_STEP_S * source.empty_wakeups, SLOW_MAX_S))
        began = time.monotonic()
        try:
            await self._requests.wait_for_messages(source.queue, self._settings.hold_ms)
        except BaseException as error:
            raise_unless_failure(error)
            self._failed(source.queue, error)
        # It is popped even if the broker saw nothing: it does not see all redelivered messages.
        source.empty_wakeups = source.empty_wakeups + 1 if time.monotonic() - began < QUICK_S else 0
        source.may_have_messages = True
        self.notify()

    # --- what is left for the next receive ----------------------------------------------------

    def _keep_result(self, pop: asyncio.Task[list[StoredMessage]]) -> None:
        """Keep the messages of a pop whose task was cancelled for the next receive."""
        if not pop.cancelled() and pop.exception() is None:
            self._keep_for_next(pop.result())

    def _keep_for_next(self, messages: Sequence[StoredMessage]) -> None:
        """Keep messages for the next receive; they are released if none comes soon."""
        if not messages:
            return
        until = time.monotonic() + LEFTOVER_S
        self._leftover.extend((until, message) for message in messages)
        self.notify()
        if not self._closed:
            self._background.spawn(self._release_late(), "release")

    def _take_leftover(self, max_messages: int) -> list[StoredMessage]:
        count = min(max_messages, len(self._leftover))
        return [self._leftover.popleft()[1] for _ in range(count)]

    async def _release_late(self) -> None:
        await asyncio.sleep(LEFTOVER_S)
        late = []
        while self._leftover and self._leftover[0][0] <= time.monotonic():
            late.append(self._leftover.popleft()[1])
        self.work.spawn(self._release(late), "release")

    async def _release(self, messages: Sequence[StoredMessage]) -> None:
        """Let the broker redeliver messages that no task received."""
        for message in messages:
            try:
                delivery = self._deliveries.of(message)
            except CometError:
                continue  # its invisible time is over: the broker redelivers it anyway
            self._deliveries.remove(message)
            await self._acks.nack(delivery.topic, delivery.handle, 0.0)

    # --- the end ------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise if the consumer was closed.

        Raises:
            ClientClosedError: it was.
        """
        if self._closed:
            raise ClientClosedError(f"{self._name} was closed: create a new one")

    async def stop(self) -> None:
        """End all receives, let requests end, and release what no task received."""
        self._closed = True
        self.notify()
        await self._background.cancel(STOP_S)
        await self.work.drain(self._settings.ack_ms / 1000)
        leftover = [message for _, message in self._leftover]
        self._leftover.clear()
        await self._release(leftover)
        await self.work.cancel(STOP_S)
