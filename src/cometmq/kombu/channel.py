"""A channel of Kombu: publishes, receives and settles messages by a session."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from queue import Empty
from typing import Any

import msgspec
from kombu.exceptions import BatchPublishError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.virtual.base import Message

from cometmq.client import ClientClosedError, CometError, RemotingError
from cometmq.client import Message as Outgoing
from cometmq.kombu.calls import ROOM_MIN, Fetcher, SessionCalls
from cometmq.kombu.link import ETA, EXPIRES, ShortQueue
from cometmq.kombu.messages import MalformedMessageError, decode_message
from cometmq.kombu.session import POP_MAX, Held, Session
from cometmq.model.times import now_ms

PUMP_S = 0.01
"""After this time of deliveries a worker's loop looks at its signals and timers."""
HAND_OVER_S = 0.0003
"""The same if it hands tasks to processes, which wait for them."""
_tags = count(1)


def _epoch_ms(text: object) -> int | None:
    """Return an ISO time in ms since 1970; None if it is none. Without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _release_all(session: Session, found: deque[tuple[str, Held]]) -> None:
    while found:
        session.release(found.popleft()[1])


class QoS(virtual.QoS):
    """Settles messages at the broker. Any thread may acknowledge."""

    channel: Channel

    def ack(self, delivery_tag: Any) -> None:
        """Acknowledge a message."""
        self.channel.settle(delivery_tag)
        super().ack(delivery_tag)
        self.channel.fetch(ROOM_MIN)

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Dead-letter a message, or let it be received again at once."""
        if requeue:
            self.channel.requeue(delivery_tag)
        else:
            self.channel.settle(delivery_tag, Session.dead_letter)
        virtual.QoS.ack(self, delivery_tag)
        self.channel.fetch()

    def restore_unacked(self) -> list[Any]:
        """Let the broker redeliver all messages that are not settled."""
        self._flush()
        for delivery_tag in list(self._delivered):
            self.channel.settle(delivery_tag, Session.release)
        self._delivered.clear()
        return []


class PublishBatch:
    """The messages of ``producer.batch()``, which are sent together, in their order.

    Args:
        channel: on which they are published.
        max_size: the number that is sent without waiting for more.
    """

    def __init__(self, channel: Channel, max_size: int) -> None:
        self.channel = channel
        self._max_size = max_size
        self._messages: list[Outgoing] = []

    def publish(self, message: Any, **named: Any) -> None:
        """Collect a message."""
        self.channel.batch = self._messages
        try:
            self.channel.basic_publish(message, **named)
        finally:
            self.channel.batch = None
        if len(self._messages) >= self._max_size:
            self.flush()

    def flush(self) -> None:
        """Send what is collected, and wait until the brokers have stored it.

        Raises:
            BatchPublishError: a broker did not confirm it; some messages may be stored.
        """
        messages, self._messages = self._messages, []
        connection = self.channel.connection
        try:
            connection.run(connection.link.put(*messages))
        except CometError as error:
            raise BatchPublishError(f"some of {len(messages)} messages: {error}") from error

    def discard(self) -> None:
        """Send nothing of what is collected."""
        self._messages.clear()

    def close(self) -> None:
        """End; what is not flushed is discarded."""
        self.discard()


class Channel(virtual.Channel):
    """A virtual channel."""

    QoS = QoS
    connection: SessionCalls
    supports_fanout = True

    def __init__(self, connection: SessionCalls, **named: Any) -> None:
        super().__init__(connection, **named)
        self._unsettled = connection.unsettled
        self._called: dict[str, dict[str, Callable[[Any], object]]] = {}
        """The consumers of each queue; the newest one is called."""
        self._buffer: deque[tuple[str, Held]] = deque()
        """Received messages that are not delivered yet."""
        self._fetcher: Fetcher | None = None
        self.batch: list[Outgoing] | None = None
        """Where messages are collected while a batch publishes them."""

    # --- queues and bindings ------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: Any, **named: Any) -> Any:
        """Return the arguments of a queue under the names of RabbitMQ."""
        return to_rabbitmq_queue_arguments(arguments, **named)

    def _new_queue(self, queue: str, **declared: Any) -> None:
        arguments = declared.get("arguments") or {}
        auto_delete = bool(declared.get("auto_delete"))
        if declared.get("passive") or queue in self.connection.link.short_queues:
            return
        priority_max = int(arguments.get("x-max-priority") or 0)
        if declared.get("exclusive") or (auto_delete and "x-expires" in arguments):
            self._make_short(queue, priority_max)
        elif auto_delete:
            self.connection.undecided[queue] = priority_max
        else:
            self._declare(queue, priority_max)

    def _make_short(self, queue: str, priority_max: int) -> None:
        link = self.connection.link
        link.short_queues.setdefault(queue, ShortQueue(priority_max))
        try:  # the default exchange binds each queue by its name
            self.connection.run(link.bind(queue, "", queue, "direct"))
        except BaseException:
            self._forget_short(queue)  # a second try declares it again
            raise

    def _forget_short(self, queue: str) -> None:
        """Remove a short-lived queue before the application declares it again."""
        with contextlib.suppress(ClientClosedError):
            self.connection.call(self.connection.link.forget_short, queue)

    def _declare(self, queue: str, priority_max: int) -> None:
        self.connection.undecided.pop(queue, None)
        self.connection.run(self.connection.link.declare_queue(queue, priority_max))

    def _decide(self, queue: str) -> None:
        """Make a topic for a queue that might have been a short-lived one."""
        if queue in self.connection.undecided:
            self._declare(queue, self.connection.undecided[queue])

    def _has_queue(self, queue: str, **_: Any) -> bool:
        link = self.connection.link
        return queue in self.connection.undecided or self.connection.run(link.has_queue(queue))

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **named: Any,
    ) -> None:
        """Bind a queue to an exchange, for all processes."""
        name = exchange or "amq.direct"
        kind = self.state.exchanges[name]["type"]
        self.state.binding_declare(queue, name, routing_key or "", arguments)
        if queue in self.connection.undecided and kind == "fanout":
            self._make_short(queue, self.connection.undecided.pop(queue))
        self._decide(queue)
        self.connection.run(self.connection.link.bind(queue, name, routing_key or "", kind))

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """Return the routing key, no pattern, and the queue of each binding to an exchange."""
        return [(key, None, queue) for key, queue in self.connection.link.bindings_of(exchange)]

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **named: Any,
    ) -> None:
        """Remove a binding, for all processes."""
        name = exchange or "amq.direct"
        self.state.binding_delete(queue, name, routing_key or "")
        self.connection.run(self.connection.link.unbind(queue, name, routing_key or ""))

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Remove an exchange and its bindings, but none of the queues."""
        self.connection.run(self.connection.link.unbind_all(exchange))
        self.state.exchanges.pop(exchange, None)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> None:
        """Remove a queue and its messages."""
        if if_empty and self._count(queue):
            return
        self.state.queue_bindings_delete(queue)
        if queue in self.connection.link.short_queues:
            self._forget_short(queue)
        elif self.connection.undecided.pop(queue, None) is None:
            self.connection.run(self.connection.session.delete_queue(queue))

    def _size(self, queue: str) -> int:
        """Return a queue's number of messages for its declaration.

        It is 0 if a broker does not respond, so that a worker starts with the other brokers.
        """
        try:
            return self._count(queue)
        except RemotingError:
            return 0

    def _count(self, queue: str) -> int:
        link = self.connection.link
        if queue in link.short_queues:
            return len(link.short_queues[queue])
        if queue in self.connection.undecided:
            return 0
        return self.connection.run(link.size(queue))

    def _purge(self, queue: str) -> int:
        link = self.connection.link
        found = link.short_queues.get(queue)
        if found is None:
            self._decide(queue)
            return self.connection.run(self.connection.session.purge(queue))
        return found.clear()

    # --- publishing ---------------------------------------------------------------------------

    def basic_publish(self, message: Any, exchange: str, routing_key: str, **_: Any) -> None:
        """Publish a message, and wait until the brokers have stored it."""
        self._inplace_augment_message(message, exchange, routing_key)
        expiration = message["properties"].get("expiration")
        if expiration:
            message["properties"]["expires_ms"] = now_ms() + int(expiration)
        link = self.connection.link
        if not exchange and (
            routing_key in self.connection.undecided or link.priority_max(routing_key) is not None
        ):
            self._put(routing_key, message)
            return
        route = self.connection.run(link.route(exchange, routing_key))
        queues = list(route.queues)
        if not exchange and link.priority_max(routing_key) is not None:
            self._put(routing_key, message)  # it is known now
            return
        if not exchange and not route.short:
            queues = [routing_key]
        elif not queues and not route.short and self.deadletter_queue:
            queues = [self.deadletter_queue]
        if route.short:
            self.connection.run(link.publish_short(exchange, routing_key, message))
        for queue in queues:
            self._put(queue, message)

    def _put(self, queue: str, message: Any, **_: Any) -> None:
        self._decide(queue)
        link = self.connection.link
        highest = link.priority_max(queue)
        if highest is None:
            self._declare(queue, 0)
        priority = min(self._get_message_priority(message), highest or 0)
        topic = link.names.priority(queue, priority)
        headers = message["headers"]
        task_id = headers.get("id")
        keys = [task_id] if isinstance(task_id, str) and not any(map(str.isspace, task_id)) else []
        body = msgspec.json.encode(message, enc_hook=str)
        properties, delay_min = self._properties(message), link.options.delay_min
        found = link.message(topic, body, keys=keys, properties=properties, delay_min=delay_min)
        if self.batch is not None:
            self.batch.append(found)
        else:
            self.connection.run(link.put(found))

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """Return what collects the messages of ``producer.batch()``."""
        return PublishBatch(self, max_size)

    def _properties(self, message: Any) -> dict[str, str]:
        """Return what the session reads, and the task's name for people."""
        headers, found = message["headers"], {}
        if headers.get("task"):
            found["task"] = str(headers["task"])
        if message["properties"].get("expires_ms"):
            found[EXPIRES] = str(message["properties"]["expires_ms"])
        eta_ms = _epoch_ms(headers.get("eta"))
        if eta_ms is not None:
            found[ETA] = str(eta_ms)
        return found

    # --- receiving ----------------------------------------------------------------------------

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        link = self.connection.link
        short = link.short_queues.get(queue)
        if short is not None:
            if (message := short.pop()) is None:
                raise Empty
            return self._short_message(message)
        self._decide(queue)
        while True:
            if (held := self._take_buffered(queue)) is None:
                topics = link.topics_of(queue)
                found = self.connection.run(self.connection.session.receive(topics, 1, 0.0))
                if not found:
                    raise Empty
                held = found[0]
                self._buffer.extend((queue, each) for each in found[1:])
            if (raw := self._raw(held)) is not None:
                return raw

    def _take_buffered(self, queue: str) -> Held | None:
        for index, (name, held) in enumerate(list(self._buffer)):
            if name == queue:
                del self._buffer[index]  # the session's thread only appends
                return held
        return None

    def _short_message(self, raw: Any) -> Any:
        raw["properties"]["delivery_tag"] = next(_tags)
        return raw

    def _raw(self, held: Held) -> Any:
        """Return a message as Kombu wants it, under a tag of this delivery.

        What is not a message of Kombu is dead-lettered; the result is None then.
        """
        try:
            raw = decode_message(held.message.body)
        except MalformedMessageError as error:
            self.connection.soon(self.connection.session.dead_letter, held, error)
            return None
        delivery_tag = next(_tags)
        raw["properties"]["delivery_tag"] = delivery_tag
        if held.message.reconsume_times:
            raw["properties"]["delivery_info"]["redelivered"] = True
        self._unsettled[delivery_tag] = held
        return raw

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **named: Any
    ) -> None:
        """Consume from a queue."""
        self._decide(queue)
        short = self.connection.link.short_queues.get(queue)
        if short is not None:
            short.consumers += 1
        super().basic_consume(queue, no_ack, self._settled_first(callback, no_ack), consumer_tag)
        self._called.setdefault(queue, {})[consumer_tag] = self.connection._callbacks[queue]
        self._fetch_anew()

    def _settled_first(self, callback: Any, no_ack: bool) -> Any:
        def called(message: Message) -> Any:
            self.settle(message.delivery_tag)
            return callback(message)

        return called if no_ack else callback

    def basic_get(self, queue: str, no_ack: bool = False, **named: Any) -> Any:
        """Return the next message of a queue, or None."""
        message = super().basic_get(queue, no_ack=no_ack, **named)
        if message is not None and no_ack:
            self.settle(message.delivery_tag)
        return message

    def basic_qos(self, *counts: Any, **named: Any) -> None:
        """Set the prefetch count."""
        super().basic_qos(*counts, **named)
        self.fetch()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Cancel a consumer. Messages that were received for it are redelivered.

        A short-lived queue ends with its last consumer.
        """
        queue = self._tag_to_queue.get(consumer_tag)
        if queue is None:
            return  # cancelled before, perhaps because the channel is closed
        short = self.connection.link.short_queues.get(queue)
        if short is not None:
            short.consumers -= 1
            if short.consumers <= 0:
                self._forget_short(queue)
        super().basic_cancel(consumer_tag)
        del self._called[queue][consumer_tag]
        if not self._called[queue]:
            del self._called[queue]
        self._fetch_anew()

    def _fetch_anew(self) -> None:
        """Fetch from the queues that are consumed now, and from no others."""
        if self._fetcher is not None:
            self._fetcher.cancel()
            self._fetcher = None
        link = self.connection.link
        queues = [each for each in self._called if each not in link.short_queues]
        if queues and not self.closed:
            self._fetcher = Fetcher(self.connection, queues, self._room, self._buffer)
            self._fetcher.ask()
        self.connection.wake()

    def _room(self) -> tuple[int, int]:
        """Return how many more messages are taken, and of how many."""
        most = self.qos.prefetch_count
        room = self.qos.can_consume_max_estimate() if most else POP_MAX
        return room - len(self._buffer), most or POP_MAX

    def fetch(self, room_min: float = 0.0) -> None:
        """Deliver and receive if there is room, at least this part of all; any thread calls it."""
        if self._buffer:
            self.connection.wake()
        fetcher = self._fetcher
        if fetcher is not None:
            fetcher.ask(room_min)

    def pump(self) -> bool:
        """Deliver what has been received, as far as the prefetch count allows, and fetch more.

        After some time the worker's loop has its turn: each delivery may run a task.
        """
        pause_s = HAND_OVER_S if self.connection.feeds_processes() else PUMP_S
        delivered, until = False, time.monotonic() + pause_s
        while self._buffer and self.qos.can_consume():
            queue, held = self._buffer.popleft()
            if queue not in self._called:
                self.connection.soon(self.connection.session.release, held)
            elif (raw := self._raw(held)) is not None:
                delivered = True
                self._call(queue, raw)
            if time.monotonic() > until:
                self.connection.wake()
                return True
        short_queues = self.connection.link.short_queues
        for queue in [each for each in self._called if each in short_queues]:
            waiting = short_queues[queue]
            while queue in self._called and self.qos.can_consume():
                if (message := waiting.pop()) is None:
                    break
                delivered = True
                self._call(queue, self._short_message(message))
                if time.monotonic() > until:
                    self.connection.wake()
                    return True
        if self._fetcher is not None:
            self._fetcher.ask(ROOM_MIN)  # what was delivered may need no acknowledgement
        return delivered

    def _call(self, queue: str, raw: Any) -> None:
        *_, newest = self._called[queue].values()
        newest(raw)

    # --- settling -----------------------------------------------------------------------------

    def settle(
        self, delivery_tag: Any, settle: Callable[[Session, Held], None] | None = None
    ) -> None:
        """Acknowledge a message, or settle it in another way."""
        held = self._unsettled.pop(delivery_tag, None)
        if held is None:
            return  # of a short-lived queue, or settled before
        if settle is None:
            self.connection.ack(held)
        else:
            self.connection.soon(settle, self.connection.session, held)

    def requeue(self, delivery_tag: Any) -> None:
        """Store a copy of a message in its place."""
        held = self._unsettled.get(delivery_tag)
        if held is None:
            return
        raw = msgspec.json.decode(held.message.body)
        raw["properties"]["delivery_info"]["redelivered"] = True
        body = msgspec.json.encode(raw)
        session = self.connection.session
        self.connection.run(session.requeue(held, body, self._properties(raw)))
        self._unsettled.pop(delivery_tag, None)  # unless that failed: it may be tried again

    def close(self) -> None:
        """Close the channel. Messages that are not settled are redelivered."""
        if not self.closed:
            if self._fetcher is not None:
                self._fetcher.cancel()
                self._fetcher = None
            # In the session's thread, after the last receive has ended.
            self.connection.soon(_release_all, self.connection.session, self._buffer)
        super().close()
