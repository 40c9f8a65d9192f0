"""Hooks of a consumer: what they raise changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.client._connection.identity import Namespace
from cometmq.client._consuming.handler_calls import ConsumeHookCalls, FilterChain
from cometmq.client.hooks import ConsumeEnd, ConsumeHook, DeliveryContext, FilterHook
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from support.consuming import QUEUE, stored

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
