"""Hooks of a consumer: what they raise changes nothing."""

from __future__ import annotations

import pytest

from cometmq.client._connection.identity import Namespace
from cometmq.client._consuming.handler_calls import ConsumeHookCalls, FilterChain
from cometmq.client.hooks import ConsumeEnd, ConsumeHook, DeliveryContext, FilterHook
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import LogOffset, QueueOffset
from cometmq.model.queue import MessageQueue

QUEUE = MessageQueue("t", "a", 0)
MESSAGE = StoredMessage(
    topic="t", body=b"x", properties={}, queue_id=0, queue_offset=QueueOffset(0),
    log_offset=LogOffset(0), flag=0, sys_flag=0, born_time_ms=0, born_host="", store_time_ms=0,
    store_host="", reconsume_times=0, prepared_offset=0, body_crc=0, size_bytes=0,
    offset_message_id="", broker_name="a",
)  # fmt: skip


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
