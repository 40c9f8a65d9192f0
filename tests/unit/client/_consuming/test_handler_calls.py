"""Results of handlers and their meaning; hooks that raise change nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from cometmq.client import ClientInstance
from cometmq.client._connection.identity import Namespace
from cometmq.client._connection.instance import core_of
from cometmq.client._consuming.handler_calls import (
    ConsumeHookCalls,
    FilterChain,
    OrderedAction,
    has_meaning,
    ordered_outcome_of,
    outcome_of,
)
from cometmq.client._consuming.retries import DeadLetterRule, Retries
from cometmq.client.errors import ConsumeLater, KeyMissingError
from cometmq.client.handlers import ConsumeContext, Consumed, ConsumedInOrder, OrderedContext
from cometmq.client.hooks import ConsumeEnd, ConsumeHook, DeliveryContext, FilterHook
from cometmq.model.errors import ConfigError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from support.brokers.scripted import ScriptedBroker, ScriptedCluster
from support.clients.consumer_inputs import QUEUE, stored


def context(*, done: int | None = None, delay_level: int = 0) -> ConsumeContext:
    return ConsumeContext("g", QUEUE, delay_level, done)


@pytest.mark.parametrize("result", [None, Consumed.SUCCESS, 42, ConsumedInOrder.SUCCESS])
def test_all_messages_are_done_when_a_handler_returns_success_or_nothing(result: object) -> None:
    outcome = outcome_of(result, None, context(), 5)

    assert (outcome.done, outcome.end) == (5, ConsumeEnd.SUCCESS)


class Array:
    """Compares as arrays do: with no single answer."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_a_result_that_cannot_be_compared_is_success() -> None:
    ordered = ordered_outcome_of(
        Array(), None, OrderedContext("g", QUEUE, auto_commit=True), suspend_ms=10
    )

    assert outcome_of(Array(), None, context(), 5).done == 5
    assert ordered.action is OrderedAction.COMMIT


@pytest.mark.parametrize(("said", "done"), [(0, 0), (2, 2), (5, 5), (9, 5), (-1, 0)])
def test_only_the_first_messages_are_done_when_the_handler_says_how_many(
    said: int, done: int
) -> None:
    assert outcome_of(Consumed.SUCCESS, None, context(done=said), 5).done == done


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("done", "3", "context.done='3': expected None or a number of messages"),
        ("done", True, "context.done=True: expected None"),
        ("delay_level", "5", "context.delay_level='5': expected the number of a delay level"),
        ("delay_level", None, "context.delay_level=None: expected the number"),
    ],
)
@pytest.mark.parametrize("raised", [None, ValueError("no such order")])
def test_a_context_that_is_set_to_nonsense_is_a_failed_call(
    field: str, value: Any, text: str, raised: ValueError | None, caplog: pytest.LogCaptureFixture
) -> None:
    shown = context()
    setattr(shown, field, value)

    outcome = outcome_of(None, raised, shown, 5)

    assert (outcome.done, outcome.delay_level, outcome.end) == (0, 0, ConsumeEnd.EXCEPTION)
    assert outcome.error is raised or (type(outcome.error) is TypeError and raised is None)
    assert text in caplog.text


def test_no_message_is_done_when_the_handler_says_later_whatever_it_says_of_how_many() -> None:
    outcome = outcome_of(Consumed.LATER, None, context(done=3, delay_level=4), 5)

    assert (outcome.done, outcome.delay_level, outcome.end) == (0, 4, ConsumeEnd.FAILED)


def test_a_message_without_a_key_is_a_dead_letter_at_once() -> None:
    """No retry adds a key."""
    error = KeyMissingError("the-id")

    assert outcome_of(None, error, ConsumeContext("g", QUEUE), 1).delay_level == -1
    ordered = ordered_outcome_of(None, error, OrderedContext("g", QUEUE), suspend_ms=100)
    assert ordered.delay_level == -1


def test_an_error_travels_on_when_the_handler_raises() -> None:
    error = ValueError("no such order")

    outcome = outcome_of(None, error, context(delay_level=2), 5)

    assert (outcome.done, outcome.delay_level) == (0, 2)
    assert (outcome.end, outcome.error) == (ConsumeEnd.EXCEPTION, error)


def test_the_cause_of_consume_later_is_recorded_with_the_message() -> None:
    cause = ValueError("no order")
    later = ConsumeLater(delay_level=-1)
    later.__cause__ = cause

    outcome = outcome_of(None, later, context(), 1)
    ordered = ordered_outcome_of(None, later, OrderedContext("g", QUEUE), suspend_ms=1000)

    assert (outcome.error, ordered.error) == (cause, cause)
    assert (outcome.delay_level, ordered.delay_level) == (-1, -1)


def test_no_error_travels_on_when_the_handler_orders_a_later_delivery() -> None:
    outcome = outcome_of(None, ConsumeLater(delay_level=-1), context(delay_level=2), 5)

    assert (outcome.done, outcome.delay_level) == (0, -1)
    assert (outcome.end, outcome.error) == (ConsumeEnd.FAILED, None)


@pytest.mark.parametrize(
    ("result", "auto_commit", "action"),
    [
        (None, True, OrderedAction.COMMIT),
        (ConsumedInOrder.SUCCESS, True, OrderedAction.COMMIT),
        (ConsumedInOrder.COMMIT, True, OrderedAction.COMMIT),
        (ConsumedInOrder.ROLLBACK, True, OrderedAction.COMMIT),
        (ConsumedInOrder.SUSPEND, True, OrderedAction.SUSPEND),
        (None, False, OrderedAction.LEAVE_OPEN),
        (ConsumedInOrder.SUCCESS, False, OrderedAction.LEAVE_OPEN),
        (ConsumedInOrder.COMMIT, False, OrderedAction.COMMIT),
        (ConsumedInOrder.ROLLBACK, False, OrderedAction.ROLL_BACK),
        (ConsumedInOrder.SUSPEND, False, OrderedAction.SUSPEND),
    ],
)
def test_an_ordered_result_means_what_it_means_in_java(
    result: object, auto_commit: bool, action: OrderedAction
) -> None:
    shown = OrderedContext("g", QUEUE, auto_commit=auto_commit)

    assert ordered_outcome_of(result, None, shown, suspend_ms=1000).action is action


def test_a_queue_is_suspended_when_an_ordered_handler_raises() -> None:
    error = ValueError("no such order")

    outcome = ordered_outcome_of(None, error, OrderedContext("g", QUEUE), suspend_ms=1000)

    assert (outcome.action, outcome.error, outcome.pause_s) == (OrderedAction.SUSPEND, error, 1.0)


@pytest.mark.parametrize(
    ("setting", "shown", "raised", "pause"),
    [
        (1000, None, None, 1.0),
        (1000, 0.05, None, 0.05),
        (1000, timedelta(milliseconds=50), None, 0.05),
        (1000, 0.05, 0.07, 0.07),
        (1000, 0.001, None, 0.01),
        (1000, 0, None, 0.01),
        (1000, -1, None, 0.01),
        (1000, 40, None, 30.0),
        (1000, timedelta(minutes=1), None, 30.0),
        (60_000, None, None, 30.0),
        (1000, None, 0.005, 0.01),
        (1000, None, timedelta(seconds=2.5), 2.5),
    ],
)
@pytest.mark.parametrize("result", [ConsumedInOrder.SUSPEND, ConsumedInOrder.ROLLBACK])
def test_a_pause_is_kept_between_10_ms_and_30_s(
    result: ConsumedInOrder,
    setting: int,
    shown: float | timedelta | None,
    raised: float | timedelta | None,
    pause: float,
) -> None:
    error = None if raised is None else ConsumeLater(delay=raised)
    context = OrderedContext("g", QUEUE, auto_commit=False, delay=shown)

    outcome = ordered_outcome_of(result, error, context, suspend_ms=setting)

    assert outcome.pause_s == pause


@pytest.mark.parametrize("error", [None, ValueError("no stock")])
def test_a_wrong_pause_is_logged_and_the_attempt_counts(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: Any = "5 s"
    context = OrderedContext("g", QUEUE, delay=wrong)

    outcome = ordered_outcome_of(ConsumedInOrder.SUSPEND, error, context, suspend_ms=1000)

    assert (outcome.action, outcome.pause_s) == (OrderedAction.SUSPEND, 1.0)
    assert outcome.error is error
    assert "handler set context.delay='5 s': expected a number of seconds" in caplog.text


def test_an_ordered_message_is_given_up_when_the_handler_orders_a_dead_letter() -> None:
    order = ConsumeLater(delay_level=-1)

    outcome = ordered_outcome_of(None, order, OrderedContext("g", QUEUE), suspend_ms=1000)

    assert outcome.delay_level == -1


@pytest.mark.parametrize(
    ("delay", "level"),
    [
        (0, 1),
        (1, 1),
        (1.001, 2),
        (45, 5),
        (timedelta(minutes=1), 5),
        (timedelta(minutes=11), 15),
        (timedelta(hours=2), 18),
        (timedelta(days=3), 18),
    ],
)
def test_a_delay_is_mapped_to_the_shortest_level_that_is_not_shorter(
    delay: float | timedelta, level: int
) -> None:
    outcome = outcome_of(None, ConsumeLater(delay=delay), context(), 5)

    assert outcome.delay_level == level
    assert outcome.delay_s == (delay if not isinstance(delay, timedelta) else delay.total_seconds())


@pytest.mark.parametrize(
    "options", [{"delay": 1, "delay_level": 3}, {"delay": -1}, {"delay": "5s"}], ids=str
)
def test_a_delay_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="delay="):
        ConsumeLater(**options)


@pytest.mark.parametrize(
    ("result", "means"),
    [
        (None, True),
        (Consumed.LATER, True),
        (ConsumedInOrder.COMMIT, True),
        (False, False),
        (0, False),
        ("ok", False),
    ],
)
def test_only_the_enumerations_and_none_have_a_meaning(result: object, *, means: bool) -> None:
    assert has_meaning(result) is means


@pytest.mark.parametrize(
    ("setting", "ordered", "times", "level", "dead"),
    [
        (3, False, 2, 0, False),
        (3, False, 3, 0, True),
        (3, True, 3, 0, True),
        (0, False, 0, 0, True),
        (-1, False, 15, 0, False),
        (-1, False, 16, 0, True),
        (-1, True, 1_000_000, 0, False),
        (-1, True, 0, -1, True),
        (3, False, 0, -1, True),
        (3, False, 0, 18, False),
    ],
)
def test_which_failed_messages_become_dead_letters(
    *, setting: int, ordered: bool, times: int, level: int, dead: bool
) -> None:
    message = stored(0)
    message.reconsume_times = times

    assert DeadLetterRule.of(setting, ordered=ordered).applies_to(message, level) is dead


async def test_the_largest_limit_on_retries_fits_into_requests() -> None:
    """Brokers refuse numbers of more than 32 bits."""
    broker = ScriptedBroker("a")
    async with ScriptedCluster([broker]) as cluster, ClientInstance(cluster.address) as instance:
        cluster.name_server.routes["%RETRY%g"] = cluster.name_server.routes["t"]
        retries = Retries(core_of(instance), "g", rule=DeadLetterRule.of(2**31 - 1))
        assert await retries.send(stored(0), 0, ValueError("no such order"))
        assert await retries.give_up(stored(0), ValueError("no such order"))

    retried, dead = [(sent.reconsume_times, sent.max_reconsume_times) for sent in broker.sends]
    assert retried == (1, 2**31 - 1)
    assert dead == (2**31 - 1, 2**31 - 2)


MESSAGE = stored(0)


class Fails(ConsumeHook, FilterHook):
    """Fails whatever it is told."""

    def before(self, context: DeliveryContext) -> None:
        raise LookupError("before")

    def after(self, context: DeliveryContext) -> None:
        raise LookupError("after")

    def keep(
        self, group: str, queue: MessageQueue, messages: list[StoredMessage]
    ) -> list[StoredMessage]:
        raise LookupError("keep")


class Counts(ConsumeHook):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    def before(self, context: DeliveryContext) -> None:
        self.begun += 1

    def after(self, context: DeliveryContext) -> None:
        self.ended += 1


def calls_of(*hooks: ConsumeHook) -> ConsumeHookCalls:
    return ConsumeHookCalls(hooks, group="g", client_id="c", ordered=True)


def end(calls: ConsumeHookCalls, context: DeliveryContext | None) -> None:
    calls.after(context, ConsumeEnd.SUCCESS, 0.0)


def test_a_hook_that_fails_is_logged_and_keeps_none_from_hearing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counts = Counts()
    calls = calls_of(Fails(), counts)
    chain = FilterChain([Fails(), counts], "g", Namespace())

    assert chain.keep(QUEUE, [MESSAGE]) == [MESSAGE]
    end(calls, calls.before(QUEUE, [MESSAGE]))

    assert (counts.begun, counts.ended) == (1, 1)
    assert len(caplog.records) == 3


Keep = Callable[[list[StoredMessage]], Any]


def removes_and_fails(messages: list[StoredMessage]) -> None:
    messages.clear()
    raise LookupError


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (lambda messages: messages, [0, 1, 2]),
        (lambda messages: (each for each in messages if each.queue_offset), [1, 2]),
        (lambda messages: {id(each): each for each in messages[:2]}.values(), [0, 1]),
        (lambda messages: messages[::-1], [0, 1, 2]),
        (lambda messages: [messages[2], messages[2]], [2]),
        (lambda messages: [], []),
        (lambda messages: messages.clear(), None),
        (lambda messages: True, None),
        (lambda messages: [copy.copy(each) for each in messages], None),
        (lambda messages: (1 / 0 for _ in messages), None),
        (removes_and_fails, None),
    ],
    ids=[
        *("all", "a generator", "a view", "in another order", "one twice", "none"),
        *("nothing", "a bool", "copies", "a generator that fails", "what it removed before"),
    ],
)
def test_a_filter_hook_that_returns_no_messages_of_its_own_removes_none(
    keep: Keep, kept: list[int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Removed messages count as consumed, and are committed."""

    class Chooses(FilterHook):
        def keep(self, group: str, queue: MessageQueue, messages: list[StoredMessage]) -> Any:
            return keep(messages)

    fetched = [stored(offset) for offset in range(3)]
    found = FilterChain([Chooses()], "g", Namespace()).keep(QUEUE, list(fetched))

    assert found == [fetched[offset] for offset in ([0, 1, 2] if kept is None else kept)]
    assert ("filter hook failed" in caplog.text) is (kept is None)


def test_deliveries_to_several_readers_end_one_by_one() -> None:
    counts = Counts()
    calls = calls_of(counts)

    end(calls, None)
    first, second = (calls.before(QUEUE, [MESSAGE]) for _ in range(2))
    assert (counts.begun, counts.ended) == (2, 0)

    end(calls, second)
    end(calls, first)
    assert (counts.begun, counts.ended) == (2, 2)


def test_without_hooks_there_is_nothing_to_tell() -> None:
    calls = calls_of()

    assert calls.before(QUEUE, [MESSAGE]) is None
