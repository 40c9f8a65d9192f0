# cython: annotation_typing=False
"""Offers received bytes to several fast paths in turn."""

from __future__ import annotations

from cometmq.remoting.wire import FastPath, Wire


class FastPaths(FastPath):
    """Fast paths, one behind the other.

    Args:
        first, second: they know different frames.
    """

    def __init__(self, first: FastPath, second: FastPath) -> None:
        self._first = first
        self._second = second

    def take(self, data: bytearray, start: int, end: int, wire: Wire) -> int:
        """Handle the frames at ``start`` that any of them knows; returns how many bytes they take.

        What comes behind a frame that none knows is left for the next time.
        """
        taken = self._first.take(data, start, end, wire)
        return taken + self._second.take(data, start + taken, end, wire)

    def settle(self) -> None:
        """Send the responses that either of them has left for later."""
        self._first.settle()
        self._second.settle()
