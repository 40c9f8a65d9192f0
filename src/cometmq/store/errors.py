"""The errors of the store; the broker chooses their response codes."""

from __future__ import annotations

from pathlib import Path

from cometmq.model.errors import StoreError


class StoreUnavailableError(StoreError):
    """The store takes no messages now: closed, disk full, or a sync failed; nothing was stored."""


class DeferredFullError(StoreError):
    """Deferred records must be committed before more can be appended; nothing was stored."""


class SegmentCreateError(StoreError):
    """The next file of the commit log could not be made; nothing was stored."""


class SegmentNotReadyError(SegmentCreateError):
    """The next file of the commit log is still being allocated; nothing was stored."""


class NoRecordBeginsError(StoreError):
    """No whole record begins where the log is to be truncated; nothing was changed."""


class StoreLockedError(StoreError):
    """Another process has the store open."""


class StoreCorruptError(StoreError):
    """A file of the store is corrupt; nothing was changed.

    Args:
        path: the file.
        position: the byte in it where the damage begins; None if that is not known, or if the file
            is damaged as a whole.
        met: what was met there.
        expected: what was expected there.
    """

    def __init__(self, path: Path, position: int | None, met: str, expected: str) -> None:
        where = f"{path}" if position is None else f"{path}, byte {position}"
        super().__init__(f"{where}: met {met}, expected {expected}")
        self.path = path
        self.position = position
        self.met = met
        self.expected = expected
