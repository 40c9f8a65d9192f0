"""Receipts of popped messages, and the topics through which they are redelivered.

    receipt := start " " popTime " " invisibleTime " " reviveQueue " " flag " " broker " " queue
               " " offset

All numbers are decimal. ``start`` is where the pop began to read, ``flag`` says in which topic the
message is: 0 the topic, 1 and 2 a retry topic of the first and the second form.

Source: ExtraInfoUtil and KeyBuilder, RocketMQ 5.3.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cometmq.model.errors import ResponseError
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.codes import ResponseCode

ORDERED: Final = 999
"""The revive queue in the receipt of an ordered pop."""
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
RECEIPT_CHARS_MAX: Final = 1_024
_PARTS: Final = 8


class Receipt(NamedTuple):
    """What identifies one delivery of one message."""

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    broker_name: str


def read_receipt(text: str) -> Receipt:
    """Read a receipt; its flag, queue and offset are in the request, too.

    Raises:
        ResponseError: 1, it cannot be read.
    """
    parts = text.split(" ", _PARTS) if len(text) <= RECEIPT_CHARS_MAX else []
    if len(parts) >= _PARTS - 1:
        try:
            return Receipt(int(parts[0]), int(parts[1]), int(parts[2]), int(parts[3]), parts[5])
        except ValueError:
            pass
    raise ResponseError(
        ResponseCode.SYSTEM_ERROR,
        f"met the receipt {text[:80]!r}, expected start, pop time, invisible time, revive queue,"
        " flag, broker, queue and offset with a blank between each two",
    )


def receipt_text(
    start: int,
    pop_ms: int,
    invisible_ms: int,
    revive_queue: int,
    flag: str,
    broker_name: str,
    queue_id: int,
    offset: int,
) -> str:
    """Return a receipt."""
    return (
        f"{start} {pop_ms} {invisible_ms} {revive_queue} {flag} {broker_name} {queue_id} {offset}"
    )


def retry_topic_of(group: str, topic: str, *, is_second_form: bool) -> str:
    """Return the retry topic of a group and a topic."""
    return f"{RETRY_PREFIX}{group}{'+' if is_second_form else '_'}{topic}"
