"""How far a group has come in each queue, and where that is kept."""

from cometmq.client.offsets.store import OffsetStore

__all__ = ["OffsetStore"]
