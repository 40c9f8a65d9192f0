"""Lets all sends of one read share one write to the log, where no short way does; interpreted.

Sends that follow each other in what was received go to their processor as ever, but what they
append is brought into the log only behind the last of them, before any answer leaves. When that
fails, the connection is cut: no answer leaves then, and the sender knows nothing of its messages,
as after any lost connection.

Source: ours.
"""

from __future__ import annotations

import logging
from time import perf_counter

from cometmq.broker.processors.send import SendMessage
from cometmq.model.errors import StoreError
from cometmq.protocol.command import command_at
from cometmq.protocol.frame import FRAME_BYTES_MAX, PREFIX_BYTES
from cometmq.remoting.wire import FastPath, Wire

log = logging.getLogger(__name__)

_SENDS = (b'{"code":310,', b'{"code":320,', b'{"code":10,"')
_SEND_BYTES = len(_SENDS[0])


class HeldSends(FastPath):
    """Takes runs of sends out of received bytes.

    Args:
        send: their processor.
        frame_bytes_max: larger frames are left for the connection to refuse.
    """

    def __init__(self, send: SendMessage, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._appender = send.appender
        self._flow = send.flow
        self._frame_bytes_max = frame_bytes_max

    def take(self, data: bytearray, start: int, end: int, wire: Wire) -> int:
        """Handle the sends at ``start``; returns how many bytes they take.

        Args:
            data: received bytes.
            start: where a frame begins.
            end: where the received bytes end.
            wire: where they came from.

        Raises:
            ProtocolError: a frame cannot be read; the connection cannot go on.
        """
        if not _is_send(data, start, end):
            return 0
        at = start
        self._appender.hold()
        try:
            while _is_send(data, at, end):
                command = command_at(data, at, end, self._frame_bytes_max)
                if command is None:
                    break
                at += command.frame_bytes
                wire.receive(command)
        finally:
            self._release(wire)
        return at - start

    def _release(self, wire: Wire) -> None:
        began_s = perf_counter()
        try:
            self._appender.release()
        except StoreError as problem:
            log.error("cut a connection, its sends are lost: %s", problem)
            wire.abort()
        self._flow.append_took(int((perf_counter() - began_s) * 1000))


def _is_send(data: bytearray, at: int, end: int) -> bool:
    at += PREFIX_BYTES
    return at + _SEND_BYTES <= end and data[at : at + _SEND_BYTES] in _SENDS
