"""Calls handlers and hooks with messages, and reads what the result means.

Source: the inner ConsumeRequest of ConsumeMessageConcurrentlyService, processConsumeResult of both
consume services, and FilterMessageHook, RocketMQ 5.3. A result of None is success, and an exception
means redelivery.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from cometmq.client._callbacks import Caller, TraceTimes, call_hooks, is_async, unfinished
from cometmq.client._connection.identity import Namespace
from cometmq.client._supervision import class_and_text
from cometmq.client.errors import ConsumeLater, KeyMissingError
from cometmq.client.handlers import ConsumeContext, Consumed, ConsumedInOrder, OrderedContext
from cometmq.client.hooks import (
    ConsumeEnd,
    ConsumeHook,
    DeliveryContext,
    FailedMessage,
    FilterHook,
)
from cometmq.model.errors import ConfigError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.model.times import seconds
from cometmq.remoting.tasks import is_call_failure, raise_unless_failure
from cometmq.system.failure_log import RateLimitedLog

log = logging.getLogger(__name__)

DEAD_LETTER = -1
"""The delay level that makes a dead letter at once."""
NO_REDELIVERY, AS_DEAD_LETTER = "none", "dead-letter"
"""Words of the log for a failed message, instead of the time until its redelivery."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.01, 30.0


def has_meaning(result: object) -> bool:
    """Return whether a result has a meaning: None or one of the enumerations."""
    return result is None or isinstance(result, (Consumed, ConsumedInOrder))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a handler call that consumes in any order."""

    done: int
    """How many, from the first on, are done with; the others are to be delivered again."""
    delay_level: int
    """For those others: a level, 0 to let the broker choose, -1 for dead letters at once."""
    end: ConsumeEnd
    error: BaseException | None = None
    """The error that the handler raised, if it failed with one."""
    delay_s: float | None = None
    """For those others: the exact delay that the handler has chosen, or None."""


def outcome_of(
    result: object, error: BaseException | None, context: ConsumeContext, count: int
) -> Outcome:
    """Judge one call of a handler.

    Args:
        result: what it returned; anything but an enumeration's failure is success.
        error: what it raised, or None.
        context: what the handler was shown, and may have changed.
        count: how many messages it was given.

    A handler that has set a field of the context to something else than a number has failed.
    """
    is_set = context.done is not None or context.delay_level != 0
    if is_set and (wrong := _wrong_field(context)):
        log.warning("handler set %s group=%s queue=%s", wrong, context.group, context.queue)
        return Outcome(0, 0, ConsumeEnd.EXCEPTION, error or TypeError(wrong))
    if isinstance(error, ConsumeLater):
        return Outcome(
            0, error.delay_level, ConsumeEnd.FAILED, error.__cause__, delay_s=error.delay_s
        )
    if error is not None:
        level = DEAD_LETTER if isinstance(error, KeyMissingError) else context.delay_level
        return Outcome(0, level, ConsumeEnd.EXCEPTION, error)
    if _is_one_of(result, Consumed.LATER, ConsumedInOrder.SUSPEND, ConsumedInOrder.ROLLBACK):
        return Outcome(0, context.delay_level, ConsumeEnd.FAILED)
    done = count if context.done is None else min(max(context.done, 0), count)
    return Outcome(done, context.delay_level, ConsumeEnd.SUCCESS)


def _wrong_field(context: ConsumeContext) -> str:
    """Return what is wrong with the fields that a handler may set; empty if nothing is."""
    if context.done is not None and type(context.done) is not int:
        return f"context.done={context.done!r:.100}: expected None or a number of messages"
    if type(context.delay_level) is not int:
        level = f"{context.delay_level!r:.100}"
        return f"context.delay_level={level}: expected the number of a delay level"
    return ""


class OrderedAction(Enum):
    """The treatment of a queue after a call with its messages."""

    COMMIT = "commit"
    """The open messages are consumed."""
    LEAVE_OPEN = "leave open"
    """The messages stay open until a later call commits them or rolls them back."""
    SUSPEND = "suspend"
    """The call's messages are redelivered after a pause, or dead-lettered after the last retry."""
    ROLL_BACK = "roll back"
    """All open messages are redelivered after a pause."""


@dataclass(frozen=True, slots=True)
class OrderedOutcome:
    """The outcome of a handler call that consumes in order."""

    action: OrderedAction
    end: ConsumeEnd
    pause_s: float = 0.0
    """Until messages are redelivered."""
    error: BaseException | None = None
    delay_level: int = 0
    """-1 to dead-letter the messages at once."""


def ordered_outcome_of(
    result: object, error: BaseException | None, context: OrderedContext, *, suspend_ms: int
) -> OrderedOutcome:
    """Judge one call of a handler that consumes in order.

    Args:
        result: what it returned; anything but an enumeration's failure is success.
        error: what it raised, or None.
        context: what the handler was shown, and may have changed.
        suspend_ms: the pause that the settings say; also if the handler set a delay that is no
            duration.
    """
    if isinstance(error, ConsumeLater):
        return OrderedOutcome(
            OrderedAction.SUSPEND,
            ConsumeEnd.FAILED,
            _pause_s(context, suspend_ms, error.delay_s),
            error.__cause__,
            error.delay_level,
        )
    if error is not None:
        pause_s = _pause_s(context, suspend_ms)
        level = DEAD_LETTER if isinstance(error, KeyMissingError) else 0
        return OrderedOutcome(OrderedAction.SUSPEND, ConsumeEnd.EXCEPTION, pause_s, error, level)
    if _is_one_of(result, ConsumedInOrder.SUSPEND, Consumed.LATER):
        return OrderedOutcome(
            OrderedAction.SUSPEND, ConsumeEnd.FAILED, _pause_s(context, suspend_ms)
        )
    if context.auto_commit or result is ConsumedInOrder.COMMIT:
        return OrderedOutcome(OrderedAction.COMMIT, ConsumeEnd.SUCCESS)
    if result is ConsumedInOrder.ROLLBACK:
        return OrderedOutcome(
            OrderedAction.ROLL_BACK, ConsumeEnd.FAILED, _pause_s(context, suspend_ms)
        )
    return OrderedOutcome(OrderedAction.LEAVE_OPEN, ConsumeEnd.SUCCESS)


def _is_one_of(result: object, *meanings: Enum) -> bool:
    """Compare by identity: a result may be of any type, such as an array, whose ``==`` raises."""
    return any(result is each for each in meanings)


def _pause_s(context: OrderedContext, suspend_ms: int, asked_s: float | None = None) -> float:
    """Return a pause within limits; below zero means the settings' in Java, and the least here."""
    if asked_s is None:
        asked_s = suspend_ms / 1000
        if context.delay is not None:
            # A wrong one counts as an attempt all the same: so the last one ends the retries.
            try:
                asked_s = seconds(context.delay, "context.delay")
            except ConfigError as wrong:
                log.warning("handler set %s group=%s queue=%s", wrong, context.group, context.queue)
    return min(max(asked_s, PAUSE_S_MIN), PAUSE_S_MAX)


MessageFilter = Callable[[MessageQueue, list[StoredMessage]], list[StoredMessage]]
"""Returns the messages of a pull that are to be consumed; the others count as consumed."""


class FilterChain:
    """Keeps the messages that every filter hook keeps.

    A hook that raises, or returns anything but messages that it was given, drops no message.

    Args:
        hooks: the hooks of the consumer; only filter hooks are used.
        group: the consumer group, without a namespace.
        namespace: removed from queues before hooks see them.
    """

    def __init__(
        self, hooks: Sequence[ConsumeHook | FilterHook], group: str, namespace: Namespace
    ) -> None:
        self._hooks = [hook for hook in hooks if isinstance(hook, FilterHook)]
        self._group = group
        self._namespace = namespace

    def keep(self, queue: MessageQueue, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return the messages that every hook keeps, in their order."""
        for hook in self._hooks:
            try:
                shown = self._namespace.unwrap_queue(queue)
                messages = _kept(messages, hook.keep(self._group, shown, messages.copy()))
            except BaseException as error:
                raise_unless_failure(error)
                log.exception("filter hook failed queue=%s group=%s", queue, self._group)
        return messages


def _kept(messages: list[StoredMessage], found: object) -> list[StoredMessage]:
    """Return the messages that a filter hook has returned, in the order of the queue.

    Raises:
        TypeError: the hook has returned something else, such as None or changed copies.
    """
    if not isinstance(found, Iterable):
        raise TypeError(f"keep returned {found!r:.100}: expected a list of messages to consume")
    chosen = list(found)
    ids = {id(each) for each in chosen}
    kept = [message for message in messages if id(message) in ids]
    if len(kept) != len(ids):
        raise TypeError("keep returned messages that it was not given: change those in their place")
    return kept


class ConsumeHookCalls:
    """Calls the consume hooks of one consumer.

    Args:
        hooks: the hooks of the consumer; only consume hooks are used.
        group: the consumer group, without a namespace.
        client_id: the client id.
        namespace: the name of the client's namespace; empty for none.
        ordered: whether each queue is consumed in order.
    """

    def __init__(
        self,
        hooks: Sequence[ConsumeHook | FilterHook],
        *,
        group: str,
        client_id: str,
        namespace: str = "",
        ordered: bool,
    ) -> None:
        self.hooks = [hook for hook in hooks if isinstance(hook, ConsumeHook)]
        self._group = group
        self._client_id = client_id
        self._namespace = namespace
        self._ordered = ordered
        self._dead_letters = RateLimitedLog(log, "dead letters")

    def before(
        self, queue: MessageQueue, messages: Sequence[StoredMessage]
    ) -> DeliveryContext | None:
        """Call the hooks before a delivery; return None if there are none.

        Args:
            queue: the queue of the messages, without a namespace.
            messages: the messages.
        """
        if not self.hooks:
            return None
        context = DeliveryContext(
            group=self._group,
            client_id=self._client_id,
            queue=queue,
            messages=list(messages),
            ordered=self._ordered,
            namespace=self._namespace,
        )
        call_hooks(self.hooks, ConsumeHook.before, context)
        return context

    def after(
        self,
        context: DeliveryContext | None,
        end: ConsumeEnd,
        took_s: float,
        error: BaseException | None = None,
    ) -> None:
        """Call the hooks after a delivery."""
        if context is None:
            return
        context.cost_ms, context.end, context.error = took_s * 1000, end, error
        call_hooks(self.hooks, ConsumeHook.after, context)

    def failed(self, message: StoredMessage, error: BaseException | None, *, is_dead: bool) -> None:
        """Log a message that became a dead letter, and call the hooks; also if it is retried."""
        retries = message.reconsume_times
        if is_dead:
            self._dead_letters.add(
                "dead letter topic=%s id=%s keys=%s group=%s retries=%d error=%s",
                message.topic,
                message.message_id,
                ",".join(message.keys),
                self._group,
                retries,
                "-" if error is None else class_and_text(error),
            )
        if self.hooks:
            context = FailedMessage(self._group, self._client_id, message, retries, error)
            method = ConsumeHook.dead_lettered if is_dead else ConsumeHook.retried
            call_hooks(self.hooks, method, context)


ODD_RESULTS_MAX = 16
"""Types of results without a meaning that a consumer warns about."""

_FAILED = "topic=%s id=%s keys=%s group=%s retries=%d messages=%d redelivery=%s error=%s"

Call = Callable[[Sequence[StoredMessage], ConsumeContext | OrderedContext], Awaitable[object]]
"""Calls a handler of any type; returns its result or raises its exception."""


@dataclass(slots=True)
class Ended:
    """One call of a handler that has ended."""

    result: object
    error: BaseException | None
    seconds: float
    delivery: DeliveryContext | None
    """The context that the hooks got; None without hooks."""

    def __post_init__(self) -> None:
        """Make a result that was not awaited or iterated an error: its work was not done."""
        if self.error is None and self.result is not None:
            self.error = unfinished(self.result)


class CallLimits(NamedTuple):
    """The limits of handler calls."""

    concurrency: int
    """Calls that run at a time."""
    batch_max: int = 1
    """Messages of one call of a batch handler."""
    timeout_s: float = math.inf
    """Seconds after which the messages of a call are sent back, while it still runs."""


class HandlerCalls:
    """The handler of one consumer.

    A batch handler gets a list of its own: it may take messages out of it, and the client settles
    all of them.

    Args:
        handler: gets one message at a time; None if there is a batch handler.
        batch_handler: gets several messages of one queue and a context.
        group: the consumer's group.
        client_id: of its instance.
        hooks: watch each call.
        limits: the limits of its calls.
        ordered: whether each queue is consumed in order, for the hooks.
        namespace: whose names are taken out before the handler and the hooks see them.
    """

    def __init__(
        self,
        handler: Callable[..., Any] | None,
        batch_handler: Callable[..., Any] | None,
        *,
        group: str,
        client_id: str,
        hooks: Sequence[ConsumeHook | FilterHook] = (),
        limits: CallLimits,
        ordered: bool = False,
        namespace: Namespace | None = None,
    ) -> None:
        self.group = group
        self.takes_one = handler is not None
        """Whether each call is for just one message."""
        self.limits = limits._replace(batch_max=1) if self.takes_one else limits
        self.ordered = ordered
        """Whether each queue is consumed in order."""
        self._namespace = namespace or Namespace()
        self._hooks = ConsumeHookCalls(
            hooks,
            group=group,
            client_id=client_id,
            namespace=self._namespace.name,
            ordered=ordered,
        )
        function: Callable[..., Any] = handler or batch_handler  # type: ignore[assignment]
        for_group = getattr(function, "for_group", None)  # wrappers such as Idempotent need it
        self._function = for_group(group) if callable(for_group) else function
        self._caller = Caller(limits.concurrency, f"consume-{group}")
        self.plain = not is_async(self._function)
        """Whether the handler runs in a thread, and cannot be cancelled there."""
        self.direct = None if self.plain or self._hooks.hooks else self._function
        """The handler, if it is async and nothing has to happen around it: may be awaited as is."""
        self._call = self._chosen_call()
        self._traces = TraceTimes()
        self._requested = RateLimitedLog(log, "redeliveries were requested")
        self._odd_results: set[str] = set()

    def _chosen_call(self) -> Call:
        if self.takes_one:
            return self._plain_one if self.plain else self._async_one
        return self._plain_batch if self.plain else self._async_batch

    async def run(
        self,
        messages: Sequence[StoredMessage],
        context: ConsumeContext | OrderedContext,
    ) -> Ended:
        """Call the handler and wait for its end, however it ends.

        A `CancelledError` that the handler raises of its own is its failure; one that is meant for
        the calling task goes through, after the hooks were called.
        """
        delivery = self._hooks.before(context.queue, messages)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        result: object = None
        error: BaseException | None = None
        try:
            result = await self._call(messages, context)
        except BaseException as raised:
            error = raised
        ended = Ended(result, error, loop.time() - begun, delivery)
        if error is not None and not is_call_failure(error):
            self.after(ended, ConsumeEnd.EXCEPTION)
            raise error
        return ended

    def context(self, queue: MessageQueue) -> ConsumeContext:
        """Return the context of a call with messages of a queue, as brokers know it."""
        return ConsumeContext(self.group, self._namespace.unwrap_queue(queue))

    def ordered_context(self, queue: MessageQueue) -> OrderedContext:
        """Return the context of a call of a handler that consumes in order."""
        return OrderedContext(self.group, self._namespace.unwrap_queue(queue))

    def after(self, ended: Ended, end: ConsumeEnd) -> None:
        """Show the hooks how a call ended."""
        self._hooks.after(ended.delivery, end, ended.seconds, ended.error)

    def failed(self, message: StoredMessage, error: BaseException | None, *, is_dead: bool) -> None:
        """Log and show the hooks that a message is retried, or became a dead letter."""
        self._hooks.failed(message, error, is_dead=is_dead)

    def report(
        self,
        messages: Sequence[StoredMessage],
        ended: Ended,
        failed: int,
        redelivery: str,
    ) -> None:
        """Log what is wrong with a call: an error, a redelivery, or a result that means nothing.

        Args:
            messages: of the call.
            ended: how it ended.
            failed: how many of the messages, from the last one back, are to be delivered again.
            redelivery: after which time the first of those is delivered again, such as ``10s``.
        """
        if ended.error is None and not has_meaning(ended.result):
            self._warn_of(ended.result)
        if not failed:
            return
        error, is_requested = ended.error, False
        if error is None or isinstance(error, ConsumeLater):
            error, is_requested = getattr(error, "__cause__", None), True
        first = messages[len(messages) - failed]
        fields = (
            *(first.topic, first.message_id, ",".join(first.keys), self.group),
            *(first.reconsume_times, failed, redelivery),
            "-" if error is None else class_and_text(error),
        )
        if is_requested:
            self._requested.add(f"handler requested a redelivery {_FAILED}", *fields)
        else:
            assert error is not None
            log.warning(
                f"handler failed {_FAILED}",
                *fields,
                exc_info=error if self._traces.is_due(error) else None,
            )

    def _warn_of(self, result: object) -> None:
        kind = type(result).__name__
        if kind not in self._odd_results and len(self._odd_results) < ODD_RESULTS_MAX:
            self._odd_results.add(kind)
            log.warning(
                "handler returned %.100r (%s), which counts as success; expected None, Consumed or"
                " ConsumedInOrder group=%s",
                result,
                kind,
                self.group,
            )

    def note_blocked_loop(self, seconds: float) -> None:
        """Log that something, an async handler as a rule, has let nothing else run for so long."""
        if not self.plain:
            log.warning(
                "the event loop was blocked for %.0f s, perhaps in handler %s group=%s: make it a"
                " plain function, which runs in a thread, or use asyncio.to_thread for what blocks",
                seconds,
                getattr(self._function, "__qualname__", self._function),
                self.group,
            )

    def runs_here(self) -> bool:
        """Return whether this is a thread in which the handler runs."""
        return self._caller.is_calling()

    def resize(self, threads: int) -> None:
        """Let this many plain calls run at a time from now on."""
        self._caller.resize(threads)

    def end(self, left: int) -> None:
        """Take no further plain calls.

        Args:
            left: how many calls did not end by themselves; said in the log.
        """
        if left:
            what = "abandoned" if self.plain else "cancelled"
            log.warning("handlers still run and are %s group=%s calls=%d", what, self.group, left)
        self._caller.close()

    async def _async_one(
        self, messages: Sequence[StoredMessage], context: ConsumeContext | OrderedContext
    ) -> object:
        result: object = await self._function(messages[0])
        return result

    async def _async_batch(
        self, messages: Sequence[StoredMessage], context: ConsumeContext | OrderedContext
    ) -> object:
        result: object = await self._function(list(messages), context)
        return result

    async def _plain_one(
        self, messages: Sequence[StoredMessage], context: ConsumeContext | OrderedContext
    ) -> object:
        result: object = await self._caller.call(self._function, messages[0])
        return result

    async def _plain_batch(
        self, messages: Sequence[StoredMessage], context: ConsumeContext | OrderedContext
    ) -> object:
        result: object = await self._caller.call(self._function, list(messages), context)
        return result
