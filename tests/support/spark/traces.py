"""Traces of made-up messages, as clients write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from cometmq.client.hooks import ConsumeEnd
from cometmq.client.trace import ConsumeAfter, ConsumeBefore, Publish, Record
from cometmq.model.topic import TRACE_TOPIC
from support.spark.message_frames import START, message

PRODUCER, CONSUMER = "0A00000112340000", "0A00000256780000"
"""How the unique ids of two clients begin: 10.0.0.1, process 4660, and 10.0.0.2, process 22136."""


def at(seconds: float) -> int:
    """Milliseconds of a moment after the start."""
    return int((START + timedelta(seconds=seconds)).timestamp() * 1000)


def published(number: int, seconds: float = 0, **more: Any) -> Publish:
    """The record of one send."""
    values = {
        "time_ms": at(seconds), "region": "r", "group": "senders", "topic": "orders",
        "message_id": f"{PRODUCER}{number:016X}", "tags": None, "keys": f"k{number}",
        "store_host": "127.0.0.1:10911", "body_bytes": 10, "cost_ms": 4,
        "offset_message_id": "7F", "success": True,
    }  # fmt: skip
    return Publish(**(values | more))


def handled(
    number: int, seconds: float, *, turn: int = 0, group: str = "shippers", cost_ms: int = 20,
    end: ConsumeEnd = ConsumeEnd.SUCCESS,
) -> list[Record]:  # fmt: skip
    """The two records of one delivery."""
    request = f"{CONSUMER}{turn:04X}{number:012X}"
    unique = f"{PRODUCER}{number:016X}"
    before = ConsumeBefore(at(seconds), "r", group, request, unique, turn, f"k{number}")
    ended = at(seconds) + cost_ms
    good = end is ConsumeEnd.SUCCESS
    return [before, ConsumeAfter(request, unique, cost_ms, good, None, end, ended, group)]


def trace_messages(*texts: str) -> list[dict[str, Any]]:
    """Messages of the trace topic with these bodies."""
    return [message(number, text.encode(), topic=TRACE_TOPIC) for number, text in enumerate(texts)]
