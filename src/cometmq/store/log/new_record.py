# cython: annotation_typing=False
"""A message on its way into the log, from the request or feature that makes it to the encoder."""

from __future__ import annotations

from cometmq.model.errors import InvalidMessageError
from cometmq.protocol.octets import copy_of
from cometmq.protocol.properties import join_properties


class NewRecord:
    """A message, or a batch of messages, to store.

    Args:
        topic: its name; that it exists is the caller's to know.
        queue_id: the queue, 0 or more.
        body: as it is to be stored; of a batch, see ``protocol/batch.py``.
        properties: the property string; empty with a batch, whose messages have their own.
        more: properties to append to it, or to those of each message of a batch.
        flag: the application's own number; each message of a batch has its own.
        sys_flag: bits of `SysFlag`; the store sets those for IPv6, from the hosts.
        born_time_ms: when the producer made it.
        born_host: address and port of the producer, 8 bytes or 20.
        store_host: address and port of this broker, 8 bytes or 20.
        reconsume_times: how often it was delivered before.
        prepared_offset: the log offset of its half message, for a transaction's end.

    Raises:
        InvalidMessageError: a number does not fit its field; interpreted, only the store finds it.
    """

    def __init__(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes = b"",
        *,
        more: bytes = b"",
        flag: int = 0,
        sys_flag: int = 0,
        born_time_ms: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
    ) -> None:
        self.topic = topic
        """The target topic."""
        self.source: bytes | bytearray = body
        """Contains the body, from ``body_at`` to ``body_end``."""
        self.body_at, self.body_end = 0, len(body)
        self.text: bytes | bytearray = properties
        """Contains the property string, from ``text_at`` to ``text_end``."""
        self.text_at, self.text_end = 0, len(properties)
        self.more = more
        self.born_host = born_host
        self.store_host = store_host
        try:
            self.queue_id = queue_id
            self.flag = flag
            self.sys_flag = sys_flag
            self.born_time_ms = born_time_ms
            self.reconsume_times = reconsume_times
            self.prepared_offset = prepared_offset
        except OverflowError as problem:
            raise InvalidMessageError(f"a number does not fit its field: {problem}") from problem
        # Only the store sets and reads these, in each append anew.
        self.magic = 0
        self.body_crc = 0
        self.topic_field = b""
        """The topic with its length."""
        self.properties_bytes = 0
        """The size of all properties together."""
        self.size_bytes = 0
        self.log_offset = 0
        self.queue_offset = 0
        self.store_time_ms = 0

    @property
    def body(self) -> bytes:
        """A copy of the body."""
        return copy_of(self.source, self.body_at, self.body_end)

    @property
    def properties(self) -> bytes:
        """The property string to store; of a batch, the part added to each message."""
        return join_properties(copy_of(self.text, self.text_at, self.text_end), self.more)
