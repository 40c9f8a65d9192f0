"""Hooks of a pull consumer: what they raise changes nothing."""

from __future__ import annotations

import pytest

from cometmq.client.hooks import ConsumeHook, DeliveryContext, FilterHook
from cometmq.client.pull.deliveries import Deliveries
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


def test_a_hook_that_fails_is_logged_and_keeps_none_from_hearing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counts = Counts()
    deliveries = Deliveries([Fails(), counts], group="g", client_id="c", namespace="")

    assert deliveries.keep(QUEUE, [MESSAGE]) == [MESSAGE]
    deliveries.begin(QUEUE, [MESSAGE])
    deliveries.end()

    assert (counts.begun, counts.ended) == (1, 1)
    assert len(caplog.records) == 3


def test_an_end_without_a_begin_is_none() -> None:
    counts = Counts()
    deliveries = Deliveries([counts], group="g", client_id="c", namespace="")

    deliveries.end()
    deliveries.begin(QUEUE, [MESSAGE])
    deliveries.end()
    deliveries.end()

    assert (counts.begun, counts.ended) == (1, 1)
