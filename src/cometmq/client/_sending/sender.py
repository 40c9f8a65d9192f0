"""Sends a prepared message: chooses a queue, calls its broker, and retries on other brokers.

A send whose caller waits for the receipt is retried after network failures, and after refusals that
another broker may not share. A send whose caller got a future is retried after network failures
only. If the caller chose the queue, every attempt uses that queue.

Source: DefaultMQProducerImpl and MQClientAPIImpl.onExceptionImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence

from cometmq.client._callbacks import call_hooks
from cometmq.client._connection.instance import ClientCore
from cometmq.client._connection.routes import Route
from cometmq.client._sending.outgoing import (
    Item,
    Outgoing,
    batch_of,
    check_fields,
    copy_message,
    kind_of,
    prepare,
    prepare_batch,
    prepare_item,
)
from cometmq.client._sending.retry_policy import (
    BackOff,
    Pauses,
    RetryPolicy,
    SendAttempts,
    loop_time,
    seconds_left,
)
from cometmq.client._sending.targets import ANY_QUEUE, SendTarget, Targets
from cometmq.client._supervision import SupervisedFailureLog
from cometmq.client.errors import (
    NameServerError,
    NoMasterError,
    QueueNotFoundError,
    SendTimeoutError,
)
from cometmq.client.hooks import ForbiddenHook, SendContext, SendHook, SendKind
from cometmq.client.receipt import SendReceipt, SendStatus, receipt_from
from cometmq.client.settings import ProducerSettings
from cometmq.model import property_names as names
from cometmq.model.errors import (
    CometError,
    InvalidMessageError,
    ProtocolError,
    RemotingError,
    ResponseError,
)
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.protocol.compression import INFLATED_BYTES_MAX
from cometmq.protocol.headers.send import SendMessageV2Request
from cometmq.protocol.refusals import permanent_refusal

log = logging.getLogger(__name__)

INNER_GROUP = "CLIENT_INNER_PRODUCER"
"""The group of the messages that the client itself sends."""
_FAILED_ATTEMPT = (RemotingError, ResponseError, ProtocolError)


class Sender:
    """Sends for one group over one instance.

    Args:
        instance: connections and routes.
        group: the producer's group.
        settings: limits, retries and compression.
        hooks: called around each send, or forbid it.
    """

    def __init__(
        self,
        instance: ClientCore,
        group: str,
        settings: ProducerSettings,
        *,
        hooks: Sequence[SendHook | ForbiddenHook] = (),
    ) -> None:
        self.instance = self._instance = instance
        """Connections and routes."""
        self.namespace = self._namespace = instance.namespace
        """The namespace in which names are wrapped."""
        self._group = group
        self._wire_group = self._namespace.wrap_group(group)
        self.settings = self._settings = settings
        """Limits, retries and compression."""
        self.ids = self._ids = instance.unique_ids()
        """Makes the ids of messages."""
        self.targets = Targets(instance, settings)
        """Finds queues and brokers."""
        self.refusals = SendRefusals(group)
        """Sends that brokers refuse for good."""
        self.pauses = Pauses()
        """The pauses of sends that wait before a retry."""
        self._forbidden_hooks = [hook for hook in hooks if isinstance(hook, ForbiddenHook)]
        self._send_hooks = [hook for hook in hooks if isinstance(hook, SendHook)]
        self.has_hooks = bool(self._send_hooks or self._forbidden_hooks)
        """Whether hooks are called around the sends."""
        self.awaited = RetryPolicy.of_awaited(settings)
        """For sends whose caller waits for the receipt."""
        self.started = RetryPolicy.of_started(settings)
        """For sends whose caller got a future."""
        self.attempt_s_max = math.inf
        """The longest time of one attempt."""
        if settings.try_timeout_ms > 0:
            self.attempt_s_max = settings.try_timeout_ms / 1000

    def add_hook(self, hook: SendHook) -> None:
        """Call one more hook for further sends, after the others."""
        self._send_hooks.append(hook)
        self.has_hooks = True

    # --- sending messages: checks, encoding and hooks ---------------------------------------------

    async def send_message(
        self,
        message: Message,
        target: SendTarget = ANY_QUEUE,
        *,
        timeout: float,
        reserved: Mapping[str, str] | None = None,
        trusted: bool = False,
        compressed: int = 0,
        policy: RetryPolicy | None = None,
    ) -> SendReceipt:
        """Check, encode and send a message, with the hooks around it; see `Producer.send`.

        Args:
            message: what to send.
            target: the queue or the selector, if the caller chose.
            timeout: seconds for all of it.
            reserved: properties that applications cannot set.
            trusted: whether the message itself may have such properties.
            compressed: how the body is compressed already, as for `prepare`.
            policy: when to retry; None for the policy of awaited sends.
        """

        def prepare(messages: Sequence[Message]) -> Outgoing:
            return self.prepare(
                messages[0], reserved=reserved, trusted=trusted, compressed=compressed
            )

        policy = policy or self.awaited
        if not self.has_hooks:
            return await self.send(prepare((message,)), target, timeout=timeout, policy=policy)
        check_fields(message)
        kind = kind_of(message, reserved or {})
        return await self._send_with_hooks((message,), prepare, target, timeout, policy, kind)

    async def send_batch(
        self, messages: Sequence[Message], target: SendTarget = ANY_QUEUE, *, timeout: float
    ) -> SendReceipt:
        """Check, encode and send messages as one request; see `Producer.send_batch`."""
        if not (self.has_hooks and messages):
            return await self.send(self.prepare_batch(messages), target, timeout=timeout)
        return await self._send_with_hooks(
            messages, self.prepare_batch, target, timeout, self.awaited, SendKind.NORMAL
        )

    async def send_items(
        self,
        messages: Sequence[Message],
        items: Sequence[Item],
        target: SendTarget,
        *,
        timeout: float,
        policy: RetryPolicy,
    ) -> SendReceipt:
        """Send prepared messages as one request.

        Args:
            messages: passed to hooks.
            items: the same messages, as `item` made them.
            target: the queue or the selector, if the caller chose.
            timeout: seconds for all of it.
            policy: when to retry; None for the policy of awaited sends.
        """
        if len(messages) == 1:
            reserved = {names.UNIQ_KEY: items[0].message_id}
            return await self.send_message(
                messages[0], target, timeout=timeout, reserved=reserved, policy=policy
            )
        if not self.has_hooks:
            batch = batch_of(messages[0], items, self._settings.body_bytes_max)
            return await self.send(batch, target, timeout=timeout, policy=policy)
        return await self._send_with_hooks(
            messages, self.prepare_batch, target, timeout, policy, SendKind.NORMAL
        )

    def item(self, message: Message) -> Item:
        """Check and encode a message of a batch.

        Raises:
            InvalidMessageError, InvalidNameError: it breaks a limit.
        """
        return prepare_item(message, self._settings, self._ids, namespace=self.namespace)

    async def send_message_oneway(
        self, message: Message, target: SendTarget = ANY_QUEUE, *, timeout: float
    ) -> str:
        """Check, encode and send a message without waiting; see `Producer.send_oneway`."""
        if not self.has_hooks:
            outgoing = self.prepare(message)
            await self.send_oneway(outgoing, target, timeout=timeout)
            return outgoing.message_id
        check_fields(message)
        context = self._context((message,), kind_of(message, {}), oneway=True)
        async with SendHookCalls(context, self._forbidden_hooks, self._send_hooks):
            outgoing = self.prepare(_kept(context, 1)[0])
            context.message_id = outgoing.message_id
            await self.send_oneway(outgoing, target, timeout=timeout, context=context)
        return outgoing.message_id

    async def _send_with_hooks(
        self,
        messages: Sequence[Message],
        prepare: Callable[[Sequence[Message]], Outgoing],
        target: SendTarget,
        timeout: float,
        policy: RetryPolicy,
        kind: SendKind,
    ) -> SendReceipt:
        context = self._context(messages, kind)
        async with SendHookCalls(context, self._forbidden_hooks, self._send_hooks):
            outgoing = prepare(_kept(context, len(messages)))
            context.message_id = outgoing.message_id
            context.receipt = await self.send(
                outgoing, target, timeout=timeout, policy=policy, context=context
            )
        return context.receipt

    def _context(
        self, messages: Sequence[Message], kind: SendKind, *, oneway: bool = False
    ) -> SendContext:
        """Make the context of hooks, with copies of the messages: hooks may change them."""
        return SendContext(
            group=self._group,
            client_id=self._instance.client_id,
            messages=list(map(copy_message, messages)),
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
        compressed: int = 0,
    ) -> Outgoing:
        """Check and encode a message.

        Raises:
            InvalidMessageError, InvalidNameError: nothing was sent.
        """
        return prepare(
            message,
            self._settings,
            self._ids,
            namespace=self.namespace,
            reserved=reserved,
            trusted=trusted,
            compressed=compressed,
        )

    def prepare_batch(self, messages: Sequence[Message]) -> Outgoing:
        """Check messages and encode them as one batch.

        Raises:
            InvalidMessageError, InvalidNameError: nothing was sent.
        """
        return prepare_batch(messages, self._settings, self._ids, namespace=self.namespace)

    # --- sending encoded messages: queues, attempts and retries -----------------------------------

    async def send(
        self,
        outgoing: Outgoing,
        target: SendTarget = ANY_QUEUE,
        *,
        timeout: float,
        policy: RetryPolicy | None = None,
        context: SendContext | None = None,
    ) -> SendReceipt:
        """Send and retry until a broker has stored the message, or no retry or no time is left."""
        policy, deadline = policy or self.awaited, loop_time() + timeout
        attempts = self._attempts(outgoing, target, deadline, policy)
        return await self._attempt_all(outgoing, target, deadline, policy, attempts, context)

    async def retry_after_failure(
        self,
        outgoing: Outgoing,
        target: SendTarget,
        deadline: float,
        failed: tuple[str, CometError] | None,
        *,
        policy: RetryPolicy,
    ) -> SendReceipt:
        """Retry a send whose first attempt has failed.

        Args:
            outgoing: what to send.
            target: the queue or the selector, if the caller chose.
            deadline: until when, by the loop's clock.
            failed: the broker and the error of the first attempt; None if it does not count.
            policy: when to retry.
        """
        attempts = self._attempts(outgoing, target, deadline, policy)
        if failed is not None and not attempts.fail(*failed):
            raise self._failure(outgoing.topic, attempts, target.queue)
        if self._is_closed():
            raise attempts.closed_error()
        return await self._attempt_all(outgoing, target, deadline, policy, attempts, None)

    def _attempts(
        self, outgoing: Outgoing, target: SendTarget, deadline: float, policy: RetryPolicy
    ) -> SendAttempts:
        back_off = BackOff(deadline, self.pauses)
        return SendAttempts(outgoing.topic, policy, back_off, is_fixed=target.is_fixed)

    def _is_closed(self) -> bool:
        """Whether nothing is retried any more."""
        return self.pauses.is_closed or not self._instance.running

    async def _attempt_all(
        self,
        outgoing: Outgoing,
        target: SendTarget,
        deadline: float,
        policy: RetryPolicy,
        attempts: SendAttempts,
        context: SendContext | None,
    ) -> SendReceipt:
        try:
            route = await self._route(outgoing.topic, deadline, policy, attempts)
            fixed = self.targets.fixed_queue(outgoing, route, target)
            return await self._attempt_on(
                outgoing, route, fixed, deadline, policy, attempts, context
            )
        except asyncio.CancelledError:
            if self.pauses.is_closed:  # the time of `close` for sends in flight is over
                raise attempts.closed_error() from None
            raise

    async def _route(
        self, topic: str, deadline: float, policy: RetryPolicy, attempts: SendAttempts
    ) -> Route:
        """Return the route of a topic; wait until the deadline for a name server or a master."""
        reason: NameServerError | NoMasterError | None = None
        while True:
            try:
                return await self.targets.route(topic, seconds_left(deadline))
            except (NameServerError, NoMasterError) as error:
                if not policy.waits_for_broker:
                    raise
                # The deadline may have cut the last attempt short: then it knows no reason.
                if reason is None or attempts.is_time_left():
                    reason = error
                await attempts.pause()
                if self._is_closed():
                    raise attempts.closed_error() from None
                if not attempts.is_time_left():
                    raise reason from None

    async def _attempt_on(
        self,
        outgoing: Outgoing,
        route: Route,
        fixed: MessageQueue | None,
        deadline: float,
        policy: RetryPolicy,
        attempts: SendAttempts,
        context: SendContext | None,
    ) -> SendReceipt:
        stored: SendReceipt | None = None
        while True:
            refused = attempts.refused_brokers
            queue = fixed or self.targets.next(route, attempts.failed_brokers | refused)
            if queue.broker_name in refused:
                queue = fixed or self.targets.next(route, refused)
                if queue.broker_name in refused:
                    break
            must_pause = queue.broker_name in attempts.failed_brokers
            if must_pause:
                await attempts.pause()
            if attempts.has_failed and self._is_closed():
                if stored is None:
                    raise attempts.closed_error()
                break
            if must_pause:
                await self.targets.refresh_old(outgoing.topic, deadline)
            if not attempts.is_time_left():
                break
            failure: CometError | None = None
            try:
                receipt = await self._attempt(outgoing, queue, deadline, policy, attempts, context)
            except _FAILED_ATTEMPT as error:
                failure = error
            else:
                if fixed or receipt.status is SendStatus.SEND_OK or not policy.retry_not_stored:
                    return receipt
                stored = receipt
            if not attempts.fail(queue.broker_name, failure):
                break
        if stored is not None:
            return stored
        raise self._failure(outgoing.topic, attempts, fixed)

    def _failure(
        self, topic: str, attempts: SendAttempts, fixed: MessageQueue | None
    ) -> CometError:
        """Return the error of a send, which may be that the chosen queue does not exist.

        A broker refuses such a queue with a code that says less. The route alone does not decide:
        the queue may be newer.
        """
        error = attempts.error()
        self.refusals.failed(topic, error)
        if isinstance(error, SendTimeoutError):  # another broker may have taken its place
            self.targets.refresh_soon(topic)
        if not isinstance(error, ResponseError) or fixed is None:
            return error
        queue = self._namespace.wrap_queue(fixed)
        if not self.targets.lacks(queue):
            return error
        shown = self._namespace.unwrap_queue(queue)
        missing = QueueNotFoundError(
            f"{shown} is no queue of the topic that can be written to,"
            f" and the broker refused the message (response code {error.code}): fetch_queues "
            "returns the queues"
        )
        missing.__cause__ = error
        return missing

    async def send_oneway(
        self,
        outgoing: Outgoing,
        target: SendTarget = ANY_QUEUE,
        *,
        timeout: float,
        context: SendContext | None = None,
    ) -> None:
        """Write the request to a broker's connection; see `Producer.send_oneway`."""
        deadline = loop_time() + timeout
        route = await self.targets.route(outgoing.topic, timeout)
        queue = self.targets.fixed_queue(outgoing, route, target)
        queue = queue or self.targets.next(route)
        address, broker_name = await self.targets.master(queue, deadline)
        if context is not None:
            context.queue, context.address, context.attempts = (
                self._namespace.unwrap_queue(queue),
                address,
                1,
            )
        header = self.header(outgoing, queue, broker_name, born_time_ms=now_ms())
        send_to = self._instance.send_address(address)
        await self._instance.remoting.oneway(send_to, outgoing.code, header, outgoing.body)
        self._instance.heartbeat_soon(address)

    async def _attempt(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        deadline: float,
        policy: RetryPolicy,
        attempts: SendAttempts,
        context: SendContext | None,
    ) -> SendReceipt:
        began_s = loop_time()
        address = ""
        try:
            address, broker_name = await self.targets.master(queue, deadline)
            send_address = self._instance.send_address(address)
            remoting = self._instance.remoting
            connection = await remoting.connection(send_address, timeout=self._attempt_s(deadline))
            attempts.is_written = True
            response = await remoting.call(
                send_address,
                outgoing.code,
                self.header(outgoing, queue, broker_name, born_time_ms=now_ms()),
                outgoing.body,
                timeout=self._attempt_s(deadline),
                connection=connection,
            )
            receipt = receipt_from(
                response, self._namespace.unwrap_queue(queue), outgoing.message_id
            )
        except _FAILED_ATTEMPT as error:
            if isinstance(error, ResponseError):
                error.address = address
            refused = isinstance(error, ResponseError) and not policy.refusal_counts_as_slow
            self._note_latency(queue.broker_name, began_s, None if refused else error)
            self._report_attempt(context, queue, address, began_s, error)
            raise
        self._note_latency(queue.broker_name, began_s, None)
        if self.refusals.is_failing:
            self.refusals.accepted(outgoing.topic)
        self._instance.heartbeat_soon(address)
        self._report_attempt(context, queue, address, began_s, receipt)
        return receipt

    def _attempt_s(self, deadline: float) -> float:
        return min(seconds_left(deadline), self.attempt_s_max)

    def header(
        self, outgoing: Outgoing, queue: MessageQueue, broker_name: str, *, born_time_ms: int
    ) -> SendMessageV2Request:
        """Make the header of one attempt, for a queue that this broker serves."""
        return outgoing.header(
            self._wire_group,
            queue,
            broker_name=broker_name,
            born_time_ms=born_time_ms,
            new_topic_queues=self._settings.new_topic_queues,
            unit_mode=self._instance.settings.unit_mode,
        )

    def _note_latency(self, broker: str, began_s: float, error: CometError | None) -> None:
        if self.targets.latency is None:
            return
        now_s = loop_time()
        isolated = error is not None and not (
            isinstance(error, NoMasterError) and self._settings.rocketmq_version != 4
        )
        self.targets.latency.record(
            broker,
            (now_s - began_s) * 1000,
            isolated=isolated,
            reachable=not (isolated and self._marks_unreachable(error)),
            now_s=now_s,
        )

    def _marks_unreachable(self, error: CometError | None) -> bool:
        """A refusal always does; a network failure only if the detector finds out its end."""
        return isinstance(error, ResponseError) or self._settings.detector

    def _report_attempt(
        self,
        context: SendContext | None,
        queue: MessageQueue,
        address: str,
        began_s: float,
        result: SendReceipt | CometError,
    ) -> None:
        if context is None:
            return
        context.queue, context.address = self._namespace.unwrap_queue(queue), address
        context.attempts += 1
        context.cost_ms = (loop_time() - began_s) * 1000
        context.receipt = result if isinstance(result, SendReceipt) else None
        context.error = None if isinstance(result, SendReceipt) else result
        call_hooks(self._send_hooks, SendHook.after_attempt, context)


class SendRefusals:
    """Sends that brokers refuse for a reason that no retry cures: the account, a right, a setting.

    It logs when sends of a topic begin to be refused, and when they are accepted again.

    After `PERMANENT_FAILURES` refusals of a topic in a row, over at least `REFUSED_S` seconds, the
    last of them is the failure of the producer, until a send of that topic succeeds.

    Args:
        group: the producer's group.
    """

    def __init__(self, group: str) -> None:
        self._log = SupervisedFailureLog(
            log,
            fails="sends are refused",
            works="sends are accepted again",
            name="topic",
            more=f"group={group}",
            on_permanent=self._is_permanent,
        )
        self.failure: BaseException | None = None
        """The refusal after which no retry helps; None while there is none."""
        self._topic = self._failed_topic = ""
        self.on_refused: Callable[[], object] = _ignore
        """Called after a refusal."""

    @property
    def is_failing(self) -> bool:
        """Whether sends of any topic are refused: then `accepted` needs to be called."""
        return self._log.is_failing

    def failed(self, topic: str, error: BaseException) -> None:
        """Note the error of a send; all but permanent refusals are ignored."""
        if permanent_refusal(error) is not None:
            self._topic = topic
            self._log.failed(topic, error)
            self.on_refused()

    def accepted(self, topic: str) -> None:
        """Note that a send of a topic has succeeded."""
        self._log.succeeded(topic)
        if topic == self._failed_topic:
            self.failure = None

    def _is_permanent(self, error: BaseException) -> None:
        self.failure, self._failed_topic = error, self._topic


def _ignore() -> None:
    """Do nothing: there is no fast path."""


class InnerProducer:
    """Sends the messages of the client itself, such as messages for redelivery.

    There is one for each instance, returned by `of`; it needs no start and no close.
    """

    def __init__(self, instance: ClientCore) -> None:
        # What a broker has stored may be larger than what a producer sends by default.
        settings = ProducerSettings(body_bytes_max=INFLATED_BYTES_MAX)
        self._sender = Sender(instance, INNER_GROUP, settings)

    @classmethod
    def of(cls, instance: ClientCore) -> InnerProducer:
        """Return the inner producer of an instance."""
        return instance.shared(cls, lambda: cls(instance))

    async def send(
        self,
        message: Message,
        *,
        timeout: float,
        allow_reserved: bool = True,
        compressed: int = 0,
    ) -> SendReceipt:
        """Send a message, which may have properties that applications cannot set.

        ``compressed`` says how its body is compressed already, as for `prepare`.

        For a retry topic, RECONSUME_TIME and MAX_RECONSUME_TIMES travel in the header.

        Raises:
            InvalidMessageError: the message breaks a limit; nothing was sent.
            Everything else as `Producer.send`.
        """
        return await self._sender.send_message(
            message, timeout=timeout, trusted=allow_reserved, compressed=compressed
        )


def _kept(context: SendContext, count: int) -> Sequence[Message]:
    """Return the messages, which hooks may have changed; their number must be the same.

    Raises:
        InvalidMessageError: a hook changed their number; nothing was sent.
    """
    if len(context.messages) != count:
        raise InvalidMessageError(
            f"a hook changed the number of messages from {count} to {len(context.messages)}:"
            " before_send may change messages, but neither add nor remove one"
        )
    return context.messages


class SendHookCalls:
    """Calls the hooks of one send: before it, and when it has ended."""

    def __init__(
        self,
        context: SendContext,
        forbidden_hooks: Sequence[ForbiddenHook],
        send_hooks: Sequence[SendHook],
    ) -> None:
        self._context = context
        self._forbidden_hooks = forbidden_hooks
        self._send_hooks = list(send_hooks)
        self._began_s = loop_time()

    async def __aenter__(self) -> None:
        for hook in self._forbidden_hooks:
            hook.check(self._context)
        call_hooks(self._send_hooks, SendHook.before_send, self._context)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        context = self._context
        context.cost_ms = (loop_time() - self._began_s) * 1000
        context.error = error
        if error is not None:
            context.receipt = None
        call_hooks(self._send_hooks, SendHook.after_send, context)
