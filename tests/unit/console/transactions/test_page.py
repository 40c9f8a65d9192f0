"""Half messages by topic and producer group."""

from __future__ import annotations

from cometmq.console.transactions.page import Sender, half_of, senders_of
from cometmq.model.queue import MessageQueue
from support.clients.consumer_inputs import stored_in

HALF_QUEUE = MessageQueue("RMQ_SYS_TRANS_HALF_TOPIC", "broker-a", 0)
NOW = 1_000


def test_half_messages_are_counted_by_sender_and_the_oldest_is_first() -> None:
    halves = [
        half_of(
            stored_in(
                HALF_QUEUE, offset, born_time_ms=born_ms,
                properties={
                    "REAL_TOPIC": topic, "PGROUP": group, "TRANSACTION_CHECK_TIMES": checks,
                },
            ),
            NOW,
        )
        for offset, (born_ms, topic, group, checks) in enumerate(
            [(300, "paid", "bank", "2"), (100, "paid", "shop", ""), (200, "paid", "bank", "many")]
        )
    ]  # fmt: skip
    assert [each.checks for each in halves] == [2, 0, 0]
    assert [each.age_ms for each in halves] == [700, 900, 800]
    assert senders_of(halves) == [
        Sender("paid", "shop", 1, 100, 900), Sender("paid", "bank", 2, 200, 800),
    ]  # fmt: skip
