"""The handle with which a producer recalls a timer message.

    handle := URL-safe base 64 of: v1 topic broker-name time unique-id, with blanks in between

Source: RecallMessageHandle, RocketMQ 5.3.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from cometmq.model.errors import InvalidMessageError

VERSION = "v1"
_PARTS = 5


class RecallHandle(NamedTuple):
    """The parts of a handle."""

    topic: str
    broker_name: str
    timestamp_ms: str
    """When it is due."""
    message_id: str

    def encode(self) -> str:
        """Return the handle as brokers write it."""
        return base64.urlsafe_b64encode(" ".join((VERSION, *self)).encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """Read a handle.

    Raises:
        InvalidMessageError: it is none, or of another version.
    """
    try:
        parts = base64.b64decode(text, altchars=b"-_", validate=True).decode().split(" ")
    except (binascii.Error, UnicodeDecodeError, ValueError, TypeError):
        parts = []
    if len(parts) != _PARTS or parts[0] != VERSION:
        raise InvalidMessageError(f"recall handle {text!r}: a receipt's handle is expected")
    return RecallHandle(*parts[1:])
