"""Committed offsets of a group, and the stores that hold them."""

from cometmq.client.offsets.local import LocalOffsetStore
from cometmq.client.offsets.remote import RemoteOffsetStore
from cometmq.client.offsets.start import StartFrom, consume_from_where, first_offset
from cometmq.client.offsets.store import OffsetStore

__all__ = [
    "OffsetStore",
    "RemoteOffsetStore",
    "LocalOffsetStore",
    "StartFrom",
    "consume_from_where",
    "first_offset",
]
