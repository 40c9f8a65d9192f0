# cython: annotation_typing=False
"""One send, from the request to the store.

The fast path or the general path fills in the fields of the request; body and properties stay in
the receive buffer. `SendValidation` then sets topic, queue and the properties that the broker adds.
"""

from __future__ import annotations

from typing import Any

from cometmq.protocol.headers.send import SendMessageRequest, SendMessageV2Request
from cometmq.protocol.octets import copy_of
from cometmq.protocol.properties import join_properties
from cometmq.remoting.wire import Wire

SendHeader = SendMessageRequest | SendMessageV2Request


class Send:
    """A message or a batch that a producer sends.

    Args:
        wire: the connection of the request.
    """

    def __init__(self, wire: Wire | None = None) -> None:
        self.wire: Any = wire
        self.header: SendHeader | None = None
        """The typed header; None on the fast path."""
        self.requested_topic = ""
        self.requested_queue_id = 0
        self.sys_flag = 0
        self.born_ms = 0
        self.flag = 0
        self.reconsumed = 0
        self.is_batch = False
        self.may_be_empty = False
        """Whether it may have no body, as a reply may."""
        self.source: bytes | bytearray = b""
        """Contains the body, from ``body_at`` to ``body_end``."""
        self.body_at = 0
        self.body_end = 0
        self.text: bytes | bytearray = b""
        """Contains the property string, from ``text_at`` to ``text_end``."""
        self.text_at = 0
        self.text_end = 0
        self.topic = ""
        """The target topic; mostly the requested one."""
        self.queue_id = 0
        self.id_source: bytes | bytearray = b""
        """Contains its unique id, which the response contains too; a batch may have none."""
        self.id_at = 0
        self.id_end = 0
        self.more = b""
        """Properties that the broker adds; with a batch, to each message."""

    def take_header(self, header: SendHeader, body: bytes) -> None:
        """Take the fields and the body of a request."""
        self.header = header
        self.requested_topic = header.topic
        self.requested_queue_id = header.queue_id
        self.sys_flag = header.sys_flag
        self.born_ms = header.born_timestamp
        self.flag = header.flag
        self.reconsumed = header.reconsume_times or 0
        self.is_batch = header.batch is True
        self.source = body
        self.body_at, self.body_end = 0, len(body)
        self.text = (header.properties or "").encode()
        self.text_at, self.text_end = 0, len(self.text)

    def name(self, unique_id: bytes) -> None:
        """Take a unique id; empty for none."""
        self.id_source, self.id_at, self.id_end = unique_id, 0, len(unique_id)

    def properties(self) -> bytes:
        """Return the property string to store; for a batch, the part added to each message."""
        return join_properties(copy_of(self.text, self.text_at, self.text_end), self.more)
