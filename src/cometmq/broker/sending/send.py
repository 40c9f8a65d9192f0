# cython: annotation_typing=False
"""One send, from the request to the store.

The fast path or the general path fills in the fields of the request; body and properties stay in
the receive buffer. `SendValidation` then sets topic, queue and the properties that the broker adds.
"""

from __future__ import annotations

from typing import Any

from cometmq.protocol.headers.send import SendMessageRequest, SendMessageV2Request
from cometmq.remoting.wire import Wire
from cometmq.store.log.new_record import NewRecord

SendHeader = SendMessageRequest | SendMessageV2Request


class Send(NewRecord):
    """A message or a batch that a producer sends: the record, and what its response needs.

    Args:
        wire: the connection of the request.
    """

    def __init__(self, wire: Wire | None = None) -> None:
        super().__init__("", 0, b"", born_time_ms=0, born_host=b"", store_host=b"")
        self.wire: Any = wire
        self.header: SendHeader | None = None
        """The typed header; None on the fast path."""
        self.request: Any = None
        """The request, whose account a timer message keeps; None on the fast path."""
        self.requested_topic = ""
        self.requested_queue_id = 0
        self.item: Any = None
        """The item of the logical queue that it is sent to; None for a physical queue."""
        self.is_batch = False
        self.is_one_record = False
        """Whether it is a batch that is stored as one record."""
        self.may_be_empty = False
        """Whether it may have no body, as a reply may."""
        self.id_source: bytes | bytearray = b""
        """Contains its unique id, which the response contains too; a batch may have none."""
        self.id_at = 0
        self.id_end = 0
        self.recall_handle = b""
        """The handle that recalls it; only a timer message has one."""

    def take_header(self, header: SendHeader, body: bytes) -> None:
        """Take the fields and the body of a request."""
        self.header = header
        self.requested_topic = header.topic
        self.requested_queue_id = header.queue_id
        self.sys_flag = header.sys_flag
        self.born_time_ms = header.born_timestamp
        self.flag = header.flag
        self.reconsume_times = header.reconsume_times or 0
        self.is_batch = header.batch is True
        self.source = body
        self.body_at, self.body_end = 0, len(body)
        self.text = (header.properties or "").encode()
        self.text_at, self.text_end = 0, len(self.text)

    def name(self, unique_id: bytes) -> None:
        """Take a unique id; empty for none."""
        self.id_source, self.id_at, self.id_end = unique_id, 0, len(unique_id)
