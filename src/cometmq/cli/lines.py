"""Formats a message as one line."""

from __future__ import annotations

from datetime import datetime

from cometmq.model.message import StoredMessage
from cometmq.protocol.compression import CompressionError
from cometmq.system.log_format import printable

BODY_CHARS_MAX = 200


def body_text(
    message: StoredMessage, charset: str = "utf-8", errors: str = "backslashreplace"
) -> str:
    """Return the body as text, or why it cannot be decompressed."""
    try:
        return message.body.decode(charset, errors)
    except CompressionError as error:
        return f"({error})"


def line_of(message: StoredMessage) -> str:
    """Show when it was stored, where, its tag and keys, and its body shortened."""
    when = datetime.fromtimestamp(message.store_time_ms / 1000).isoformat(timespec="milliseconds")
    text = body_text(message)
    shown = text if len(text) <= BODY_CHARS_MAX else f"{text[:BODY_CHARS_MAX]}…"
    broker = f"@{message.broker_name}" if message.broker_name else ""
    place = f"{message.topic}{broker}:{message.queue_id} offset={message.queue_offset}"
    tag = f" tag={message.tags}" if message.tags else ""
    keys = f" keys={','.join(message.keys)}" if message.keys else ""
    return printable(f"{when} {place}{tag}{keys} {shown!r}")
