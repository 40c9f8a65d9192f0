"""Brings a prepared message to a broker: chooses a queue, tries, tries elsewhere.

A send that is awaited is tried again elsewhere after refusals that another broker may not share,
and after every failure of the network. One that is only begun is tried again after failures of the
network alone. A queue that the caller chose is never exchanged for another one.

Source: DefaultMQProducerImpl and MQClientAPIImpl.onExceptionImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cometmq.client.config import ProducerSettings
from cometmq.client.errors import (
    QueueNotFoundError,
    SendAttempt,
    SendFailedError,
    SendTimeoutError,
    TopicNotFoundError,
)
from cometmq.client.hooks import ForbiddenHook, SendContext, SendHook, SendKind
from cometmq.client.instance import ClientInstance
from cometmq.client.latency import LatencyTable
from cometmq.client.outgoing import (
    Item,
    Outgoing,
    batch_of,
    kind_of,
    prepare,
    prepare_batch,
    prepare_item,
)
from cometmq.client.queue_choice import QueueSelector, Turn, chosen
from cometmq.client.receipt import SendReceipt, SendStatus, receipt_from
from cometmq.client.routes import Route
from cometmq.model import property_names as names
from cometmq.model.errors import CometError, RemotingError, ResponseError
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.protocol.command import Command
from cometmq.protocol.headers import Header, SendMessageV2Request
from cometmq.remoting import CallTimeoutError, ConnectError, TooManyCallsError, check

log = logging.getLogger(__name__)

INNER_GROUP = "CLIENT_INNER_PRODUCER"
"""The group under which a client sends on its own account."""

_NOT_SENT = (ConnectError, TooManyCallsError)


class NoMasterError(ConnectError):
    """The broker has no master now; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What is done when a try fails."""

    retries: int
    """Further tries where the queue is free to choose."""
    fixed_retries: int
    """Further tries where the caller has chosen the queue."""
    codes: frozenset[int]
    """Refusals after which there is another try."""
    retry_not_stored: bool
    """Whether there is another try when a message is not stored as safely as wanted."""
    retry_too_many: bool
    """Whether there is another try when too many calls wait already."""
    avoid_refusing: bool = True
    """Whether a broker that refused is left alone, where brokers are avoided at all."""

    def allows_another(self, error: CometError) -> bool:
        """Whether a try that ended like this may be followed by another."""
        if isinstance(error, ResponseError):
            return error.code in self.codes
        return self.retry_too_many or not isinstance(error, TooManyCallsError)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message is to go, if its sender says so."""

    queue: MessageQueue | None = None
    selector: QueueSelector | None = None


ANYWHERE = Place()


class Sender:
    """Sends for one group over one instance.

    Args:
        instance: connections and routes.
        group: the producer's group.
        settings: limits, retries and compression.
        hooks: watch the sends, or forbid them.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        settings: ProducerSettings,
        *,
        hooks: Sequence[SendHook | ForbiddenHook] = (),
    ) -> None:
        self.instance = self._instance = instance
        """Connections and routes."""
        self.namespace = self._namespace = instance.namespace
        """What names are wrapped in."""
        self._group = group
        self._wire_group = self._namespace.wrap_group(group)
        self._settings = settings
        self.ids = self._ids = instance.unique_ids()
        """Makes the ids of messages."""
        self._turns: dict[str, Turn] = {}
        self._forbidding = [hook for hook in hooks if isinstance(hook, ForbiddenHook)]
        self._watching = [hook for hook in hooks if isinstance(hook, SendHook)]
        self._awaited = Effort(
            settings.retries, 0, settings.retried, settings.retry_not_stored, retry_too_many=True
        )
        self._begun = Effort(
            settings.retries_async,
            settings.retries_async,
            frozenset(),
            retry_not_stored=False,
            retry_too_many=False,
            avoid_refusing=False,
        )
        self.latency = (
            LatencyTable.of_line(settings.latency_line) if settings.latency_avoidance else None
        )
        """How the brokers did of late, if they are avoided for it."""

    @property
    def is_watched(self) -> bool:
        """Whether hooks see the sends."""
        return bool(self._watching or self._forbidding)

    def watch(self, hook: SendHook) -> None:
        """Show further sends to one more hook, after the others."""
        self._watching.append(hook)

    # --- the whole way of a message --------------------------------------------------------------

    async def send_message(
        self,
        message: Message,
        place: Place = ANYWHERE,
        *,
        timeout: float,
        reserved: Mapping[str, str] | None = None,
        trusted: bool = False,
        awaited: bool = True,
    ) -> SendReceipt:
        """Check, encode and send a message, and let the hooks see it; see `Producer.send`.

        Args:
            message: what to send.
            place: where to, if that is said.
            timeout: seconds for all of it.
            reserved: properties that applications cannot set.
            trusted: whether the message itself may have such properties.
            awaited: whether refusals may be followed by another try.
        """

        def ready(messages: Sequence[Message]) -> Outgoing:
            return self.prepare(messages[0], reserved=reserved, trusted=trusted)

        effort = self._awaited if awaited else self._begun
        if not self.is_watched:
            return await self.send(ready((message,)), place, timeout=timeout, effort=effort)
        kind = kind_of(message, reserved or {})
        return await self._watched((message,), ready, place, timeout, effort, kind)

    async def send_batch(
        self, messages: Sequence[Message], place: Place = ANYWHERE, *, timeout: float
    ) -> SendReceipt:
        """Check, encode and send messages as one request; see `Producer.send_batch`."""
        if not (self.is_watched and messages):
            return await self.send(self.prepare_batch(messages), place, timeout=timeout)
        return await self._watched(
            messages, self.prepare_batch, place, timeout, self._awaited, SendKind.NORMAL
        )

    async def send_items(
        self,
        messages: Sequence[Message],
        items: Sequence[Item],
        place: Place,
        *,
        timeout: float,
        awaited: bool,
    ) -> SendReceipt:
        """Send messages that go together and are ready each, as one request.

        Args:
            messages: what hooks are shown.
            items: the same messages, as `item` made them.
            place: where to, if that is said.
            timeout: seconds for all of it.
            awaited: whether refusals may be followed by another try.
        """
        if len(messages) == 1:
            reserved = {names.UNIQ_KEY: items[0].message_id}
            return await self.send_message(
                messages[0], place, timeout=timeout, reserved=reserved, awaited=awaited
            )
        effort = self._awaited if awaited else self._begun
        if not self.is_watched:
            batch = batch_of(messages[0], items, self._settings.body_bytes_max)
            return await self.send(batch, place, timeout=timeout, effort=effort)
        return await self._watched(
            messages, self.prepare_batch, place, timeout, effort, SendKind.NORMAL
        )

    def item(self, message: Message) -> Item:
        """Check a message of a batch and make it ready.

        Raises:
            InvalidMessageError, InvalidNameError: it breaks a limit.
        """
        return prepare_item(message, self._settings, self._ids, namespace=self._namespace)

    async def send_message_oneway(
        self, message: Message, place: Place = ANYWHERE, *, timeout: float
    ) -> str:
        """Check, encode and send a message without waiting; see `Producer.send_oneway`."""
        if not self.is_watched:
            outgoing = self.prepare(message)
            await self.send_oneway(outgoing, place, timeout=timeout)
            return outgoing.message_id
        context = self._context((message,), kind_of(message, {}), oneway=True)
        async with _Watch(context, self._forbidding, self._watching):
            outgoing = self.prepare(context.messages[0])
            context.message_id = outgoing.message_id
            await self.send_oneway(outgoing, place, timeout=timeout, context=context)
        return outgoing.message_id

    async def _watched(
        self,
        messages: Sequence[Message],
        ready: Callable[[Sequence[Message]], Outgoing],
        place: Place,
        timeout: float,
        effort: Effort,
        kind: SendKind,
    ) -> SendReceipt:
        context = self._context(messages, kind)
        async with _Watch(context, self._forbidding, self._watching):
            outgoing = ready(context.messages)
            context.message_id = outgoing.message_id
            context.receipt = await self.send(
                outgoing, place, timeout=timeout, effort=effort, context=context
            )
        return context.receipt

    def _context(
        self, messages: Sequence[Message], kind: SendKind, *, oneway: bool = False
    ) -> SendContext:
        """Hooks see copies of the messages, so that the caller's stay as they are."""
        return SendContext(
            group=self._group,
            client_id=self._instance.client_id,
            messages=[
                dataclasses.replace(message, properties=dict(message.properties))
                for message in messages
            ],
            kind=kind,
            oneway=oneway,
            namespace=self._namespace.name,
        )

    def prepare(
        self,
        message: Message,
        *,
        reserved: Mapping[str, str] | None = None,
        trusted: bool = False,
    ) -> Outgoing:
        """Check a message and make it ready.

        Raises:
            InvalidMessageError, InvalidNameError: nothing was sent.
        """
        return prepare(
            message,
            self._settings,
            self._ids,
            namespace=self._namespace,
            reserved=reserved,
            trusted=trusted,
        )

    def prepare_batch(self, messages: Sequence[Message]) -> Outgoing:
        """Check messages and make them ready as one.

        Raises:
            InvalidMessageError, InvalidNameError: nothing was sent.
        """
        return prepare_batch(messages, self._settings, self._ids, namespace=self._namespace)

    # --- what is ready ---------------------------------------------------------------------------

    async def send(
        self,
        outgoing: Outgoing,
        place: Place = ANYWHERE,
        *,
        timeout: float,
        effort: Effort | None = None,
        context: SendContext | None = None,
    ) -> SendReceipt:
        """Send until a broker has stored it, tries run out or time does."""
        deadline = _now() + timeout
        route = await self.route(outgoing.topic, timeout)
        fixed = self._fixed_queue(outgoing, route, place)
        return await self._tries(
            outgoing, route, fixed, deadline, effort or self._awaited, [], context
        )

    async def go_on(
        self,
        outgoing: Outgoing,
        place: Place,
        deadline: float,
        attempts: list[SendAttempt],
        *,
        awaited: bool,
    ) -> SendReceipt:
        """Go on with a send whose first try has failed.

        Args:
            outgoing: what to send.
            place: the queue, if it was said.
            deadline: until when, by the loop's clock.
            attempts: the tries that have failed.
            awaited: whether refusals may be followed by another try.
        """
        effort = self._awaited if awaited else self._begun
        if attempts and not effort.allows_another(attempts[-1].error):
            raise _final_error(outgoing.topic, attempts, in_time=_now() < deadline)
        route = await self.route(outgoing.topic, max(deadline - _now(), 0.001))
        fixed = self._fixed_queue(outgoing, route, place)
        return await self._tries(outgoing, route, fixed, deadline, effort, attempts, None)

    async def _tries(
        self,
        outgoing: Outgoing,
        route: Route,
        fixed: MessageQueue | None,
        deadline: float,
        effort: Effort,
        attempts: list[SendAttempt],
        context: SendContext | None,
    ) -> SendReceipt:
        stored: SendReceipt | None = None
        avoid = attempts[-1].broker_name if attempts else None
        for _ in range(len(attempts), 1 + (effort.fixed_retries if fixed else effort.retries)):
            if _now() >= deadline:
                break
            target = fixed or self._next(route, avoid)
            avoid = target.broker_name
            try:
                receipt = await self._try(outgoing, target, deadline, effort, context)
            except (RemotingError, ResponseError) as error:
                attempts.append(attempt_of(target, error))
                if not effort.allows_another(error):
                    break
            else:
                if fixed or receipt.status is SendStatus.SEND_OK or not effort.retry_not_stored:
                    return receipt
                stored = receipt
        if stored is not None:
            return stored
        raise _final_error(outgoing.topic, attempts, in_time=_now() < deadline)

    async def send_oneway(
        self,
        outgoing: Outgoing,
        place: Place = ANYWHERE,
        *,
        timeout: float,
        context: SendContext | None = None,
    ) -> None:
        """Write the request to a broker's connection and be done; see `Producer.send_oneway`."""
        deadline = _now() + timeout
        route = await self.route(outgoing.topic, timeout)
        target = self._fixed_queue(outgoing, route, place) or self._next(route, None)
        address, broker_name = await self._master(target, deadline)
        if context is not None:
            context.queue, context.address, context.tries = self._shown(target), address, 1
        header = self._header(outgoing, target, broker_name)
        send_to = self._instance.send_address(address)
        await self._instance.remoting.oneway(send_to, outgoing.code, header, outgoing.body)
        self._instance.greet_soon(address)

    async def route(self, topic: str, timeout: float) -> Route:
        """Give the topic's route, which has queues to write to.

        Raises:
            ClientClosedError, TopicNotFoundError, NameServerError: nothing can be sent.
        """
        self._instance.check_running()
        route = await self._instance.routes.find_for_sending(
            topic, new_topic_queues=self._settings.new_topic_queues, timeout=timeout
        )
        if not route.publish_queues:
            raise TopicNotFoundError(topic, "it has no queue that may be written to")
        return route

    async def queues(self, topic: str, timeout: float) -> list[MessageQueue]:
        """Give the queues of a topic that can be sent to, as applications know them."""
        route = await self.route(self._namespace.wrap_topic(topic), timeout)
        return list(map(self._shown, route.publish_queues))

    async def introduce(self, topic: str, timeout: float) -> None:
        """Return once the topic's brokers know this client, or time is up.

        Raises:
            ClientClosedError, TopicNotFoundError, NameServerError: there are no such brokers.
        """
        deadline = _now() + timeout
        route = await self.route(self._namespace.wrap_topic(topic), timeout)
        for address in route.masters():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._instance.ensure_heartbeat(address)

    async def ask_master(
        self,
        broker_name: str,
        topic: str,
        code: int,
        header: Callable[[str, str], Header],
        *,
        timeout: float,
    ) -> Command:
        """Ask the master of this name, or any of the topic if none has it, and give its answer.

        Args:
            broker_name: who is asked.
            topic: as applications know it.
            code: of the request.
            header: makes the header from the names of topic and group on the wire.
            timeout: seconds for the whole call.

        Raises:
            TopicNotFoundError, RemotingError: nobody was asked, or nobody answered.
            ResponseError: the broker refused.
        """
        deadline = _now() + timeout
        wire_topic = self._namespace.wrap_topic(topic)
        route = await self.route(wire_topic, timeout)
        address = route.master(broker_name) or next(iter(route.masters()), None)
        if address is None:
            raise NoMasterError(f"no broker of {topic} has a master now")
        answer = await self._instance.remoting.call(
            address,
            code,
            header(wire_topic, self._wire_group),
            timeout=max(deadline - _now(), 0.001),
        )
        return check(answer)

    async def master_of(self, queue: MessageQueue, timeout: float) -> tuple[str, str]:
        """Give the address and the name of the broker that serves a queue.

        Raises:
            NoMasterError: it has no master now.
        """
        return await self._master(self._on_wire(queue), _now() + timeout)

    async def _try(
        self,
        outgoing: Outgoing,
        target: MessageQueue,
        deadline: float,
        effort: Effort,
        context: SendContext | None,
    ) -> SendReceipt:
        began_s = _now()
        address = ""
        try:
            address, broker_name = await self._master(target, deadline)
            answer = await self._instance.remoting.call(
                self._instance.send_address(address),
                outgoing.code,
                self._header(outgoing, target, broker_name),
                outgoing.body,
                timeout=self._time_of_try(deadline),
            )
            receipt = receipt_from(answer, self._shown(target), outgoing.message_id)
        except (RemotingError, ResponseError) as error:
            refused = isinstance(error, ResponseError) and not effort.avoid_refusing
            self._note_latency(target.broker_name, began_s, None if refused else error)
            self._tell_of_try(context, target, address, began_s, error)
            raise
        self._note_latency(target.broker_name, began_s, None)
        self._instance.greet_soon(address)
        self._tell_of_try(context, target, address, began_s, receipt)
        return receipt

    def _time_of_try(self, deadline: float) -> float:
        left_s = max(deadline - _now(), 0.001)
        limit_ms = self._settings.try_timeout_ms
        return min(left_s, limit_ms / 1000) if limit_ms > 0 else left_s

    async def _master(self, target: MessageQueue, deadline: float) -> tuple[str, str]:
        """Give the address of the broker that serves a queue, and its name."""
        routes = self._instance.routes
        route = routes.known(target.topic)
        address = _master_in(route, target)
        if address is None:
            left_s = max(deadline - _now(), 0.001)
            route = await routes.refresh(target.topic, timeout=left_s)
            address = _master_in(route, target)
        if address is None or route is None:
            raise NoMasterError(f"broker {target.broker_name} has no master now")
        return address, route.physical(target)

    def _next(self, route: Route, avoid: str | None) -> MessageQueue:
        """Choose a queue by the newest route, on another broker than the last try if possible."""
        newest = self._instance.routes.known(route.topic) or route
        return self.turn(route.topic).pick(
            newest.publish_queues or route.publish_queues, avoid_broker=avoid, now_s=_now()
        )

    def turn(self, topic: str) -> Turn:
        """Give whose turn it is among the queues of a topic, by its name on the wire."""
        turn = self._turns.get(topic)
        if turn is None:
            turn = self._turns[topic] = Turn(self.latency)
        return turn

    def _fixed_queue(self, outgoing: Outgoing, route: Route, place: Place) -> MessageQueue | None:
        if place.queue is not None:
            queue = self._on_wire(place.queue)
            if queue.topic != outgoing.topic:
                raise QueueNotFoundError(f"{place.queue} is no queue of {outgoing.message.topic}")
            return queue
        if place.selector is None:
            return None
        queues = tuple(map(self._shown, route.publish_queues))
        message = dataclasses.replace(outgoing.message)
        return self._on_wire(chosen(place.selector, queues, message))

    def _on_wire(self, queue: MessageQueue) -> MessageQueue:
        if not self._namespace:
            return queue
        topic = self._namespace.wrap_topic(queue.topic)
        return MessageQueue(topic, queue.broker_name, queue.queue_id)

    def _shown(self, queue: MessageQueue) -> MessageQueue:
        if not self._namespace:
            return queue
        topic = self._namespace.unwrap(queue.topic)
        return MessageQueue(topic, queue.broker_name, queue.queue_id)

    def _header(
        self, outgoing: Outgoing, target: MessageQueue, broker_name: str
    ) -> SendMessageV2Request:
        now_ms = time.time_ns() // 1_000_000
        return self.header(outgoing, target, broker_name, born_time_ms=now_ms)

    def header(
        self, outgoing: Outgoing, target: MessageQueue, broker_name: str, *, born_time_ms: int
    ) -> SendMessageV2Request:
        """Make the header for one try, to a queue that this broker serves."""
        return outgoing.header(
            self._wire_group,
            target,
            broker_name=broker_name,
            born_time_ms=born_time_ms,
            new_topic_queues=self._settings.new_topic_queues,
            unit_mode=self._instance.settings.unit_mode,
        )

    def _note_latency(self, broker: str, began_s: float, error: CometError | None) -> None:
        if self.latency is None:
            return
        now_s = _now()
        isolated = error is not None and not (
            isinstance(error, NoMasterError) and self._settings.latency_line != 4
        )
        self.latency.record(
            broker,
            (now_s - began_s) * 1000,
            isolated=isolated,
            reachable=not (isolated and self._marks_unreachable(error)),
            now_s=now_s,
        )

    def _marks_unreachable(self, error: CometError | None) -> bool:
        """A refusal always does; a failure of the network only when somebody finds out its end."""
        return isinstance(error, ResponseError) or self._settings.detector

    def _tell_of_try(
        self,
        context: SendContext | None,
        target: MessageQueue,
        address: str,
        began_s: float,
        result: SendReceipt | CometError,
    ) -> None:
        if context is None:
            return
        context.queue, context.address = self._shown(target), address
        context.tries += 1
        context.cost_ms = (_now() - began_s) * 1000
        context.receipt = result if isinstance(result, SendReceipt) else None
        context.error = None if isinstance(result, SendReceipt) else result
        _tell(self._watching, SendHook.after_try, context)


class _Watch:
    """Shows one send to the hooks: before it, and when it has ended."""

    def __init__(
        self,
        context: SendContext,
        forbidding: Sequence[ForbiddenHook],
        watching: Sequence[SendHook],
    ) -> None:
        self._context = context
        self._forbidding = forbidding
        self._watching = list(watching)
        self._began_s = _now()

    async def __aenter__(self) -> None:
        for hook in self._forbidding:
            hook.check(self._context)
        _tell(self._watching, SendHook.before_send, self._context)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        context = self._context
        context.cost_ms = (_now() - self._began_s) * 1000
        context.error = error
        if error is not None:
            context.receipt = None
        _tell(self._watching, SendHook.after_send, context)


class InnerProducer:
    """Sends what the client itself has to send: messages to be consumed again, and the like.

    One for each instance, which needs no start and no close: take it from `of`.
    """

    def __init__(self, instance: ClientInstance) -> None:
        self._sender = Sender(instance, INNER_GROUP, ProducerSettings())

    @classmethod
    def of(cls, instance: ClientInstance) -> InnerProducer:
        """Give the one of an instance."""
        return instance.shared(cls, lambda: cls(instance))

    async def send(
        self, message: Message, *, timeout: float, allow_reserved: bool = True
    ) -> SendReceipt:
        """Send a message, which may have properties that applications cannot set.

        For a retry topic, RECONSUME_TIME and MAX_RECONSUME_TIMES travel in the header.

        Raises:
            InvalidMessageError: the message breaks a limit; nothing was sent.
            Everything else as `Producer.send`.
        """
        return await self._sender.send_message(message, timeout=timeout, trusted=allow_reserved)


def _tell(
    hooks: Sequence[SendHook], what: Callable[[SendHook, SendContext], None], context: SendContext
) -> None:
    for hook in hooks:
        try:
            getattr(hook, what.__name__)(context)
        except Exception:
            log.exception("a hook failed hook=%s call=%s", type(hook).__name__, what.__name__)


def _master_in(route: Route | None, target: MessageQueue) -> str | None:
    return route.master(target) if route is not None else None


def attempt_of(target: MessageQueue, error: CometError) -> SendAttempt:
    """Note how a try failed, and whether it may have stored the message all the same."""
    maybe_stored = isinstance(error, RemotingError) and not isinstance(error, _NOT_SENT)
    return SendAttempt(target.broker_name, error, maybe_stored)


def _final_error(topic: str, attempts: list[SendAttempt], *, in_time: bool) -> CometError:
    """Turn the failed tries into the one error that tells of all of them."""
    last = attempts[-1].error if attempts else None
    if isinstance(last, ResponseError):
        for attempt in attempts[:-1]:
            state = "perhaps stored" if attempt.maybe_stored else "not stored"
            last.add_note(f"an earlier try failed, {state}: {attempt}")
        return last
    if in_time and not isinstance(last, CallTimeoutError):
        return SendFailedError(topic, attempts)
    return SendTimeoutError(topic, attempts)


def _now() -> float:
    return asyncio.get_running_loop().time()
