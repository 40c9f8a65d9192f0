# cython: annotation_typing=False
"""Receipts of popped messages, and the topics through which they are redelivered.

    receipt := start " " popTime " " invisibleTime " " reviveQueue " " flag " " broker " " queue
               " " offset

All numbers are decimal. ``start`` is where the pop began to read, ``flag`` says in which topic the
message is: 0 the topic, 1 and 2 a retry topic of the first and the second form.

Source: ExtraInfoUtil and KeyBuilder, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cometmq.model.errors import ResponseError
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.octets import put_decimal

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

ORDERED: Final = 999
"""The revive queue in the receipt of an ordered pop."""
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
RECEIPT_CHARS_MAX: Final = 1_024
_PARTS: Final = 8
_DIGITS_MAX: Final = 18
"""Numbers of more digits may not fit into 64 bits; no clock and no queue has them."""
_OFFSET_CHARS_MAX, _COMMA = 21, ord(",")


class Receipt:
    """What identifies one delivery of one message."""

    __slots__ = ("broker_name", "invisible_ms", "pop_ms", "revive_queue", "start")

    def __init__(
        self, start: int, pop_ms: int, invisible_ms: int, revive_queue: int, broker_name: str
    ) -> None:
        self.start = start
        self.pop_ms = pop_ms
        self.invisible_ms = invisible_ms
        self.revive_queue = revive_queue
        self.broker_name = broker_name


def read_receipt(text: str) -> Receipt:
    """Read a receipt; its flag, queue and offset are in the request, too.

    Raises:
        ResponseError: 1, it cannot be read.
    """
    parts = text.split(" ", _PARTS) if len(text) <= RECEIPT_CHARS_MAX else []
    if len(parts) >= _PARTS - 1:
        try:
            return Receipt(
                _number(parts[0]), _number(parts[1]), _number(parts[2]), _number(parts[3]), parts[5]
            )
        except ValueError:
            pass
    raise ResponseError(
        ResponseCode.SYSTEM_ERROR,
        f"met the receipt {text[:80]!r}, expected start, pop time, invisible time, revive queue,"
        " flag, broker, queue and offset with a blank between each two",
    )


def _number(text: str) -> int:
    if len(text) > _DIGITS_MAX:
        raise ValueError(f"a number of {len(text)} characters, expected at most {_DIGITS_MAX}")
    return int(text)


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


def offsets_text(offsets: Sequence[int]) -> str:
    """Return offsets as responses and records list them."""
    if not cython.compiled or type(offsets) is not range:
        return ",".join(map(str, offsets))
    space = bytearray(_OFFSET_CHARS_MAX * len(offsets))
    at = 0
    first: int = offsets[0]
    for number in range(len(offsets)):
        at = put_decimal(space, at, first + number)
        space[at] = _COMMA
        at += 1
    return space[: at - 1].decode()


def retry_topic_of(group: str, topic: str, *, is_second_form: bool) -> str:
    """Return the retry topic of a group and a topic."""
    return f"{RETRY_PREFIX}{group}{'+' if is_second_form else '_'}{topic}"
