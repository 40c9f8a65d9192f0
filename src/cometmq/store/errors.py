"""What can go wrong in a store, named by what it means for the message at hand.

Source: ours; the response codes are for the broker to give.
"""

from __future__ import annotations

from pathlib import Path

from cometmq.model.errors import StoreError


class StoreUnavailableError(StoreError):
    """The store takes no messages now: shut, disk full, or a sync failed; nothing was stored."""


class HoldFullError(StoreError):
    """What is held back must be released before more can be appended; nothing was stored."""


class SegmentCreateError(StoreError):
    """The next file of the commit log could not be made; nothing was stored."""


class SegmentNotReadyError(SegmentCreateError):
    """The next file of the commit log is still being allocated; nothing was stored."""


class StoreLockedError(StoreError):
    """Another process has the store open."""


class StoreCorruptError(StoreError):
    """A file of the store is not what it must be; nothing was changed.

    Args:
        path: the file.
        position: the byte in it where the trouble begins.
        met: what was found there.
        expected: what should have been there.
    """

    def __init__(self, path: Path, position: int, met: str, expected: str) -> None:
        super().__init__(f"{path}, byte {position}: met {met}, expected {expected}")
        self.path = path
        self.position = position
        self.met = met
        self.expected = expected
