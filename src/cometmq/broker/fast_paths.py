# cython: annotation_typing=False
"""Joins the fast paths of sends and pulls into one."""

from __future__ import annotations

from cometmq.remoting.wire import FastPath, Wire


class FastPaths(FastPath):
    """Two fast paths, one after the other.

    Args:
        first, second: the fast paths; they handle different frames.
    """

    def __init__(self, first: FastPath, second: FastPath) -> None:
        self._first = first
        self._second = second

    def take(self, data: bytearray, start: int, end: int, wire: Wire) -> int:
        """Handle the frames at ``start`` that one of them handles; return how many bytes they take.

        It ends before the first frame that none of them handles.
        """
        taken = self._first.take(data, start, end, wire)
        if start + taken < end:
            taken += self._second.take(data, start + taken, end, wire)
        return taken

    def finish_deferred(self) -> None:
        """Send the responses that they have deferred."""
        self._first.finish_deferred()
        self._second.finish_deferred()
