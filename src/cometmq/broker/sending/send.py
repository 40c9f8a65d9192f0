# cython: annotation_typing=False
"""One send on its way from the request to the store, whichever reader read it.

A reader fills in what the request says; body and properties stay where they lie. `SendValidation`
then says where the message goes and what is stored behind its properties. Source: ours.
"""

from __future__ import annotations

from typing import Any

from cometmq.protocol.headers import SendMessageRequest, SendMessageV2Request
from cometmq.protocol.octets import copy_of
from cometmq.protocol.properties import joined
from cometmq.remoting.wire import Wire

SendHeader = SendMessageRequest | SendMessageV2Request


class Send:
    """A message or a batch that a producer wants stored.

    Args:
        wire: where it came from.
    """

    def __init__(self, wire: Wire | None = None) -> None:
        self.wire: Any = wire
        self.header: SendHeader | None = None
        """The typed header; None where a fast reader did without."""
        self.asked_topic = ""
        self.asked_queue_id = 0
        self.sys_flag = 0
        self.born_ms = 0
        self.flag = 0
        self.reconsumed = 0
        self.is_batch = False
        self.source: bytes | bytearray = b""
        """What the body is in, from ``body_at`` to ``body_end``."""
        self.body_at = 0
        self.body_end = 0
        self.text: bytes | bytearray = b""
        """What the property string is in, from ``text_at`` to ``text_end``."""
        self.text_at = 0
        self.text_end = 0
        self.topic = ""
        """Where it goes: mostly where it was sent to."""
        self.queue_id = 0
        self.more = b""
        """What is stored behind the properties; with a batch, behind those of each message."""

    def take_header(self, header: SendHeader, body: bytes) -> None:
        """Take all that a request says."""
        self.header = header
        self.asked_topic = header.topic
        self.asked_queue_id = header.queue_id
        self.sys_flag = header.sys_flag
        self.born_ms = header.born_timestamp
        self.flag = header.flag
        self.reconsumed = header.reconsume_times or 0
        self.is_batch = header.batch is True
        self.source = body
        self.body_at, self.body_end = 0, len(body)
        self.text = (header.properties or "").encode()
        self.text_at, self.text_end = 0, len(self.text)

    def properties(self) -> bytes:
        """The property string that is stored, or that a batch adds to each of its messages."""
        return joined(copy_of(self.text, self.text_at, self.text_end), self.more)
