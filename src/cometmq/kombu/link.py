"""What all Kombu connections of a process to one cluster share: they send, and know the bindings.

It runs in the event loop of the blocking client. Short-lived queues are here, since Celery declares
the queue of its results with one connection and consumes it with another.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from cometmq.client import (
    AdminClient,
    ClientInstance,
    CometError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    TopicNotFoundError,
)
from cometmq.client.settings import ClientSettings, resolve_settings
from cometmq.kombu.bindings import NAME_MAX, PRIORITY_MAX, Bindings, Route, matches
from cometmq.kombu.messages import MalformedMessageError, check_message, decode_json
from cometmq.kombu.names import Names, tag
from cometmq.model import property_names as names
from cometmq.model.times import now_ms
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.recall_handle import RecallHandle
from cometmq.remoting import Supervisor
from cometmq.remoting.slices import batched

log = logging.getLogger(__name__)

READERS = "kombu-readers"
"""The group of those who read the topics of exchanges. It commits no offsets."""
HOLD_S = 20.0
"""How long one receive or pull waits for messages."""
RETRY_S = 0.5
FRESH_S = 1.0
"""How long a binding that another process has declared may stay unknown."""
SHORT_MAX = 10_000
SHORT_BYTES_MAX = 64 * 2**20
"""Messages of a short-lived queue; above it the oldest is dropped, as RabbitMQ's x-max-length."""
TAGS_MAX = 20
"""Routing keys of a direct exchange that the broker filters for; above it this process does."""
RECALLS_MAX = 64
"""Messages that are recalled at a time."""
LOOKED_UP_MAX = 10_000
SENDS_MAX = 256
"""Messages of a batch that are sent at a time."""
WRITE_S = 1.0
"""How long a master may take to store a record of the bindings."""
CLOSE_S = 5.0
LOOK_S = 30.0
"""Interval at which bindings, and the queues of the topics of exchanges, are looked up."""
RENEW_S = 3600.0
"""Interval at which old bindings are written again."""
WAITING_MAX = 1000
"""Messages that wait for their ETA in one process; those above it wait at the broker."""
ETA = "KOMBU_ETA_MS"
EXPIRES = "KOMBU_EXPIRES_MS"


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """The options of a transport."""

    name_servers: str
    client: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the client, such as the access key."""
    virtual_host: str = "/"
    visibility_timeout: float = 60.0
    """Seconds until a message of a killed process is redelivered. It is extended while a message is
    held."""
    delivery_limit: int = 16
    """Redeliveries after which a message is dead-lettered."""
    queues: int = 1
    """Queues of a topic on each broker; with one the messages stay in order."""
    delay_min: float = 10.0
    """Seconds; messages with a shorter delay wait for their ETA in a worker."""
    delay_step: float = 172_800.0
    """The longest delay of one timer message; a longer delay has several. At most the broker's
    ``timerMaxDelaySec``."""


def new_instance(options: LinkOptions) -> ClientInstance:
    """Return a client, not started.

    Raises:
        ConfigError: a setting of the client is unknown or out of range.
    """
    settings = resolve_settings(ClientSettings, keywords=options.client)
    return ClientInstance(options.name_servers, settings=settings)


@dataclass(slots=True)
class _Exchange:
    """The topic of an exchange while short-lived queues read it."""

    name: str
    offsets: dict[MessageQueue, int]
    since_ms: int
    """When it was bound: queues that are found later are read from then on."""
    bound: dict[tuple[str, str], str] = field(default_factory=dict)
    """Routing key and queue of each binding, and the exchange's type."""
    readers: list[asyncio.Task[None]] = field(default_factory=list)

    def filter(self) -> str:
        keys = {key for key, _ in self.bound}
        if set(self.bound.values()) != {"direct"} or len(keys) > TAGS_MAX:
            return "*"
        return " || ".join(sorted(map(tag, keys)))


class ShortQueue:
    """The messages of a queue that lives as long as its process, those of high priority first.

    Args:
        priority_max: the highest priority; 0 if the messages have one order.
    """

    def __init__(self, priority_max: int) -> None:
        highest = max(0, min(priority_max, PRIORITY_MAX))
        self.consumers = 0
        """How many consumers of this process it has; it ends with the last one."""
        self._steps: list[deque[tuple[int, dict[str, Any]]]] = [deque() for _ in range(highest + 1)]
        self._count = self._bytes = 0
        self._lock = threading.Lock()
        """The session's thread appends, the application's removes."""

    def __len__(self) -> int:
        return self._count

    def append(self, message: dict[str, Any], size: int = 0) -> None:
        """Add a message of this many bytes; if there are too many, drop the oldest one."""
        priority = message["properties"].get("priority")
        if not isinstance(priority, int):
            priority = 0
        with self._lock:
            self._steps[max(0, min(priority, len(self._steps) - 1))].append((size, message))
            self._count += 1
            self._bytes += size
            while self._count > SHORT_MAX or (self._bytes > SHORT_BYTES_MAX and self._count > 1):
                self._remove(next(step for step in self._steps if step))

    def _remove(self, step: deque[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        size, message = step.popleft()
        self._count -= 1
        self._bytes -= size
        return message

    def pop(self) -> dict[str, Any] | None:
        """Remove the next message and return it; None if there is none that has not expired."""
        with self._lock:
            for step in reversed(self._steps):
                while step:
                    message = self._remove(step)
                    if (message["properties"].get("expires_ms") or math.inf) > now_ms():
                        return message
        return None

    def clear(self) -> int:
        """Remove all messages; return how many there were."""
        with self._lock:
            count, self._count, self._bytes = self._count, 0, 0
            for step in self._steps:
                step.clear()
        return count


class Link:
    """Sends messages, creates topics, and reads bindings and the topics of exchanges.

    Args:
        options: of the transport.
    """

    def __init__(self, options: LinkOptions) -> None:
        self.options = options
        self.names = Names(options.virtual_host)
        self.short_queues: dict[str, ShortQueue] = {}
        self.wakes: set[Callable[[], object]] = set()
        """Called when short-lived queues have messages."""
        self.users = 0
        self.started: asyncio.Task[None] | None = None
        self.instance = new_instance(options)
        self.admin = AdminClient(instance=self.instance)
        self._producer = Producer(instance=self.instance)
        self._puller = PullConsumer(instance=self.instance, group=READERS)
        self._bindings = Bindings(self._write_binding)
        self._tasks = Supervisor("kombu")
        self._topics: set[str] = set()
        self._exchanges: dict[str, _Exchange] = {}
        self._creating = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._read_at = -FRESH_S
        self._offsets: dict[MessageQueue, int] = {}
        self._complete: set[str] | None = None
        """Masters that have all records of this process; None before the first one."""
        self._looked_up: set[str] = set()
        """Queues for which the log was read before their first message was sent."""

    # --- lifecycle ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect.

        Raises:
            CometError: no name server or broker responds.
        """
        await self.instance.start()
        await self.admin.start()
        await self.admin.cluster_info()
        await self._producer.start()
        await self._puller.start()
        self._tasks.every(RENEW_S, self._bindings.renew, "renew")
        self._tasks.every(LOOK_S, self._look, "look")

    async def close(self) -> None:
        """Close the connections."""
        await self._tasks.cancel(CLOSE_S)
        for closing in (self._puller, self._producer, self.admin, self.instance):
            await closing.close()

    # --- topics -------------------------------------------------------------------------------

    async def ensure_topic(self, topic: str) -> None:
        """Create a topic, unless it exists."""
        if topic in self._topics:
            return
        async with self._creating:
            try:
                await self._puller.fetch_queues(topic)
            except TopicNotFoundError:
                await self.admin.create_topic(topic, queues=self.options.queues)
            self._topics.add(topic)

    def priority_max(self, queue: str) -> int | None:
        """Return the highest priority of a queue; None if the queue is not known."""
        return self._bindings.priority_max(queue)

    def topics_of(self, queue: str) -> list[str]:
        """Return the topics of a queue, those of high priorities first."""
        highest = self._bindings.priority_max(queue) or 0
        return [self.names.priority(queue, each) for each in range(highest, -1, -1)]

    async def delete_queue(self, queue: str) -> None:
        """Remove a queue with its bindings and messages."""
        await self._read_bindings()
        topics = self.topics_of(queue)
        await self._bindings.forget_queue(queue)
        for topic in topics:
            self._topics.discard(topic)
            await self.admin.delete_topic(topic)

    async def size(self, queue: str) -> int:
        """Return how many messages of a queue no consumer has received yet."""
        count = 0
        for topic in self.topics_of(queue):
            try:
                lags = await self.admin.lag(topic, topic)
            except TopicNotFoundError:
                continue
            count += sum(each.lag for each in lags.values())
        return count

    # --- sending ------------------------------------------------------------------------------

    def message(
        self,
        topic: str,
        body: bytes,
        *,
        keys: Sequence[str],
        properties: dict[str, str],
        delay_min: float,
    ) -> Message:
        """Return a message to send.

        With an ETA that is at least ``delay_min`` seconds away it waits in the broker's timer, in
        steps if it is far.
        """
        message = Message(topic=topic, body=body, keys=keys, properties=properties)
        eta_ms, now = int(properties.get(ETA, 0)), now_ms()
        if eta_ms >= now + delay_min * 1000 and eta_ms > now:
            message.deliver_at = min(eta_ms, now + int(self.options.delay_step * 1000))
        return message

    async def put(self, *messages: Message) -> None:
        """Store messages, several at a time.

        Raises:
            CometError: a broker has not confirmed a message; the others are stored if they can be.
        """
        if len(messages) == 1:
            await self._send(messages[0])
            return
        for some in batched(messages, SENDS_MAX):
            sends = [self._send(each) for each in some]
            for failure in await asyncio.gather(*sends, return_exceptions=True):
                if isinstance(failure, BaseException):
                    raise failure

    async def publish_short(self, exchange: str, routing_key: str, message: Any) -> None:
        """Send a message to the short-lived queues of an exchange, of all processes."""
        topic = self.names.exchange(exchange)
        body = msgspec.json.encode({"key": routing_key, "message": message}, enc_hook=str)
        await self._send(Message(topic=topic, body=body, tags=tag(routing_key)))

    async def _send(self, message: Message) -> None:
        await self.ensure_topic(message.topic)
        try:
            await self._producer.send(message)
        except TopicNotFoundError:  # another process has deleted the queue
            self._topics.discard(message.topic)
            await self.ensure_topic(message.topic)
            await self._producer.send(message)

    async def recall_all(self, keys: Sequence[str]) -> tuple[dict[str, int], list[CometError]]:
        """Recall the messages with these keys; see `recall`.

        It ends at the first failure: the brokers may not respond, or recall nothing.

        Returns:
            The keys of which messages were recalled, and how many of each; the failures.
        """
        recalled: dict[str, int] = {}
        failures: list[CometError] = []
        for some in batched(keys, RECALLS_MAX):
            results = await asyncio.gather(*map(self.recall, some), return_exceptions=True)
            for key, result in zip(some, results, strict=True):
                if isinstance(result, CometError):
                    failures.append(result)
                elif isinstance(result, BaseException):
                    raise result
                elif result:
                    recalled[key] = result
            if failures:
                break
        return recalled, failures

    async def recall(self, key: str) -> int:
        """Recall the messages with a key that wait in the brokers' timers; return how many.

        Messages of others, who may use the same key, are not recalled.
        """
        try:
            waiting = await self.admin.messages_by_key(TIMER_TOPIC, key)
        except TopicNotFoundError:
            return 0
        count = 0
        for message in waiting:
            properties = message.properties
            due_ms = int(properties.get(names.TIMER_OUT_MS, 0)) + 1
            topic, unique_id = properties.get(names.REAL_TOPIC), message.unique_id
            if (
                due_ms > now_ms()
                and topic
                and self.names.is_queue(topic)
                and key in message.keys
                and unique_id
                and names.TIMER_DEL_UNIQKEY not in properties
            ):
                handle = RecallHandle(topic, message.broker_name, str(due_ms), unique_id)
                await self._producer.recall(topic, handle.encode())
                count += 1
        return count

    # --- bindings -----------------------------------------------------------------------------

    async def declare_queue(self, queue: str, priority_max: int) -> None:
        """Make a queue known to all processes."""
        await self._read_bindings()
        await self._bindings.declare(("queue", queue), max(0, min(priority_max, PRIORITY_MAX)))
        for topic in self.topics_of(queue):
            await self.ensure_topic(topic)

    async def has_queue(self, queue: str) -> bool:
        """Return whether some process has declared a queue."""
        if self._bindings.priority_max(queue) is None:
            await self._read_bindings()
        return queue in self.short_queues or self._bindings.priority_max(queue) is not None

    async def bind(self, queue: str, exchange: str, routing_key: str, kind: str) -> None:
        """Bind a queue to an exchange of this type."""
        if queue not in self.short_queues:
            await self._read_bindings()
            await self._bindings.declare(("bind", exchange, queue, routing_key), kind)
            return
        state = self._exchanges.get(exchange)
        if state is None:
            topic, since_ms = self.names.exchange(exchange), now_ms()
            await self.ensure_topic(topic)
            offsets: dict[MessageQueue, int] = {
                each: (await self._puller.bounds(each)).max_offset
                for each in await self._puller.fetch_queues(topic)
            }
            # Another task may have bound it meanwhile.
            state = self._exchanges.setdefault(exchange, _Exchange(exchange, offsets, since_ms))
        state.bound[routing_key, queue] = kind
        self._read_exchange(state)
        await self._read_bindings()
        await self._bindings.declare(("short", exchange), kind)

    async def unbind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Remove a binding."""
        state = self._exchanges.get(exchange)
        if state is not None and state.bound.pop((routing_key, queue), None) is not None:
            self._read_exchange(state)
        await self._read_bindings()
        await self._bindings.declare(("bind", exchange, queue, routing_key), None)

    async def unbind_all(self, exchange: str) -> None:
        """Remove all bindings to an exchange."""
        await self._read_bindings()
        for routing_key, queue in self._bindings.of_exchange(exchange):
            await self._bindings.declare(("bind", exchange, queue, routing_key), None)

    def bindings_of(self, exchange: str) -> list[tuple[str, str]]:
        """Return the routing key and the queue of each known binding to an exchange."""
        return self._bindings.of_exchange(exchange)

    def forget_short(self, queue: str) -> None:
        """Remove a short-lived queue."""
        self.short_queues.pop(queue, None)
        for state in list(self._exchanges.values()):
            mine = [each for each in state.bound if each[1] == queue]
            for each in mine:
                del state.bound[each]
            if mine:
                self._read_exchange(state)

    async def route(self, exchange: str, routing_key: str) -> Route:
        """Return where a message goes."""
        now = time.monotonic()
        is_new = not exchange and routing_key not in self._looked_up
        if is_new or now - self._read_at >= FRESH_S:
            await self._read_bindings()
        if is_new:
            if len(self._looked_up) >= LOOKED_UP_MAX:
                self._looked_up.clear()
            self._looked_up.add(routing_key)
        route = self._bindings.route(exchange, routing_key)
        if not route and self._read_at < now and self._bindings.type_of(exchange) != "topic":
            await self._read_bindings()  # perhaps its first binding is a moment old
            route = self._bindings.route(exchange, routing_key)
        return route

    async def _write_binding(self, body: bytes) -> None:
        """Store a record on each master, so that it is known while any of them is away."""
        topic = self.names.bindings()
        await self.ensure_topic(topic)
        masters = {each.broker_name: each for each in await self._puller.fetch_queues(topic)}
        sends = [
            self._producer.send(Message(topic=topic, body=body), queue=queue, timeout=WRITE_S)
            for queue in masters.values()
        ]
        found = await asyncio.gather(*sends, return_exceptions=True)
        stored = {name for name, each in zip(masters, found, strict=True)
                  if not isinstance(each, BaseException)}  # fmt: skip
        self._complete = stored if self._complete is None else self._complete & stored
        if not stored:
            await self._producer.send(Message(topic=topic, body=body))

    async def _read_bindings(self) -> None:
        """Read the log of the bindings to its end."""
        began = time.monotonic()
        async with self._reading:
            if self._read_at > began:
                return  # another task has read it meanwhile
            began = time.monotonic()
            topic = self.names.bindings()
            await self.ensure_topic(topic)
            bounds = {}
            try:
                queues = await self._puller.fetch_queues(topic)
            except TopicNotFoundError:
                self._topics.clear()
                await self.ensure_topic(topic)
                queues = await self._puller.fetch_queues(topic)
            failure: CometError | None = None
            for queue in queues:
                try:
                    bounds[queue] = await self._puller.bounds(queue)
                except CometError as error:  # each master has all records
                    failure = error
            if failure is not None and not bounds and not self._offsets:
                raise failure
            for queue in self._offsets.keys() - set(queues):
                del self._offsets[queue]
            is_older = any(self._offsets.get(each, 0) > bounds[each].max_offset for each in bounds)
            if is_older:
                self._topics.clear()
                self._offsets.clear()
                self._bindings.clear()
            for queue, (first, end) in bounds.items():
                offset = self._offsets.setdefault(queue, first)
                while offset < end:
                    result = await self._puller.pull(queue, offset)
                    self._bindings.read(each.body for each in result.messages)
                    if result.next_offset <= offset:
                        break
                    offset = self._offsets[queue] = result.next_offset
            self._read_at = began
        if is_older:
            log.warning("the log of the bindings has lost records: those of this process follow")
            await self._bindings.renew(young_ms=0)

    async def _look(self) -> None:
        """Find new bindings, and queues of brokers that were away when an exchange was bound.

        Brokers that were away when records were written get them now.
        """
        await self._read_bindings()
        if self._complete is not None:
            queues = await self._puller.fetch_queues(self.names.bindings())
            if masters := {each.broker_name for each in queues} - self._complete:
                self._complete |= masters  # unless a write fails
                await self._bindings.renew(young_ms=0)
        for state in list(self._exchanges.values()):
            for queue in await self._puller.fetch_queues(self.names.exchange(state.name)):
                if queue not in state.offsets:
                    offset = await self._puller.offset_at_time(queue, state.since_ms)
                    state.offsets[queue] = offset
                    self._read_exchange(state)

    # --- short-lived queues -------------------------------------------------------------------

    def _read_exchange(self, state: _Exchange) -> None:
        """Begin to read the topic of an exchange, with the filter of its bindings now."""
        for reader in state.readers:
            reader.cancel()
        if not state.bound and self._exchanges.get(state.name) is state:
            del self._exchanges[state.name]  # a later binding begins at the end of the topic
        state.readers = [
            self._tasks.spawn(self._read_queue(state, queue), f"read-{state.name}", awaited=True)
            for queue in state.offsets
            if state.bound
        ]

    async def _read_queue(self, state: _Exchange, queue: MessageQueue) -> None:
        wanted = state.filter()
        while True:
            try:
                result = await self._puller.pull(
                    queue, state.offsets[queue], filter=wanted, wait=HOLD_S
                )
            except CometError as error:
                log.debug("exchange %s is not read: %s", state.name, error)
                await asyncio.sleep(RETRY_S)
                continue
            state.offsets[queue] = result.next_offset
            for message in result.messages:
                self._deliver_short(state, message.body)
            if result.status is PullStatus.FOUND:
                for wake in list(self.wakes):
                    wake()

    def _deliver_short(self, state: _Exchange, body: bytes) -> None:
        try:
            record = decode_json(body)
            routing_key, message = record["key"], check_message(record["message"])
            if not isinstance(routing_key, str) or len(routing_key) > NAME_MAX:
                raise MalformedMessageError("the routing key is too long, or is none")
        except (MalformedMessageError, TypeError, KeyError) as error:
            log.warning("exchange %s: a message is skipped: %s", state.name, error)
            return
        takers = {
            name for (key, name), kind in state.bound.items() if matches(kind, key, routing_key)
        }
        for name in takers & self.short_queues.keys():
            # Each queue has a message of its own, which its reader may change.
            own = message if len(takers) == 1 else deepcopy(message)
            self.short_queues[name].append(own, len(body))


_links: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Link]] = WeakKeyDictionary()


async def acquire_link(options: LinkOptions) -> Link:
    """Return the link of this loop with these options, connected; see `release_link`.

    Raises:
        CometError: no name server or broker responds.
    """
    links = _links.setdefault(asyncio.get_running_loop(), {})
    link = links.setdefault(repr(options), Link(options))
    link.users += 1
    if link.started is None:
        link.started = asyncio.create_task(link.start())
    try:
        await asyncio.shield(link.started)
    except BaseException:
        await release_link(link)
        raise
    return link


async def release_link(link: Link) -> None:
    """End the use of a link; the last release closes it."""
    link.users -= 1
    links = _links.get(asyncio.get_running_loop(), {})
    if link.users and not (link.started and link.started.done() and link.started.exception()):
        return
    if links.get(repr(link.options)) is link:
        del links[repr(link.options)]
    if not link.users:
        if link.started is not None:
            link.started.cancel()
        await link.close()
