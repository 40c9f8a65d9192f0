# cython: annotation_typing=False
"""Offers received bytes to several short ways in turn, as long as one of them takes some.

Source: ours.
"""

from __future__ import annotations

from cometmq.remoting.wire import FastPath, Wire


class FastPaths(FastPath):
    """Short ways, one behind the other.

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
        at = start
        while at < end:
            before = at
            at += self._first.take(data, at, end, wire)
            at += self._second.take(data, at, end, wire)
            if at == before:
                break
        return at - start
