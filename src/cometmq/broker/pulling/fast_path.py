# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""Reads plain pulls straight from the receive buffer, without objects in between.

A pull is plain when its frame looks just like those of Java's consumers::

    {"code":11,"extFields":{ "name":"value" {,"name":"value"} },"flag":0,"language":"...",
     "opaque":n,"serializeTypeCurrentRPC":"JSON","version":n}

What differs in the least (an escape, a number that is none, a field that is missing) is left where
it is, and the general path handles it. Checked and answered are all pulls alike, by `PullHandler`.

Worth its while compiled only; interpreted, nothing calls it but tests. Source: ours.
"""

from __future__ import annotations

from cometmq.broker.creation import CreationNeededError
from cometmq.broker.pulling.handler import Pull, PullHandler
from cometmq.protocol.octets import copy_of, matches, two_u32
from cometmq.protocol.plain_json import NOT_PLAIN, end_of_number, end_of_text, number, opaque_in
from cometmq.remoting.connection import answer_failure
from cometmq.remoting.wire import FastPath, Wire

_HEAD = b'{"code":11,"extFields":{"'
_HEAD_BYTES = len(_HEAD)
_PREFIX_BYTES = 8
_INT32_MAX, _NOT_PLAIN = 2147483647, NOT_PLAIN
_TEXTS_MAX = 10_000
_FRAMES_MAX = 64
"""Pulls that are handled at a time."""

_GROUP, _TOPIC, _QUEUE, _OFFSET, _COUNT = 1, 2, 4, 8, 16
_FLAGS, _COMMIT, _SUSPEND, _VERSION, _BYTES = 32, 64, 128, 256, 512
_WIDE = _OFFSET | _COMMIT | _SUSPEND | _VERSION
"""Those of 64 bits."""
_REQUIRED = 511
"""One bit for each field that a pull must have: all but the last."""


class PullFastPath(FastPath):
    """Takes plain pulls out of received bytes.

    Args:
        pulls: answers them.
    """

    def __init__(self, pulls: PullHandler) -> None:
        self._pulls = pulls
        self._texts: dict[bytes, str] = {}

    def take(self, data: bytearray, start: int, end: int, wire: Wire) -> int:
        """Answer or hold the plain pulls at ``start``; returns how many bytes they take.

        Args:
            data: received bytes.
            start: where a frame begins.
            end: where the received bytes end.
            wire: where they came from.
        """
        at = start
        left = _FRAMES_MAX
        while left and matches(data, at + _PREFIX_BYTES, end, _HEAD):
            left -= 1
            length, word = two_u32(data, at)
            frame_end = at + 4 + length
            if frame_end > end or at + _PREFIX_BYTES + word != frame_end:
                break  # not all there, or not just a JSON header
            pull = self._read(data, at + _PREFIX_BYTES, frame_end, wire)
            if pull is None:
                break
            if not self._answer(pull):
                break
            at = frame_end
            if wire._holds:  # this pull waits for the disk
                break
        return at - start

    def _answer(self, pull: Pull) -> bool:
        """Answer a pull; False if its group has to be created first, on the general path."""
        try:
            response = self._pulls.answer(pull)
        except CreationNeededError:
            return False
        except Exception as problem:
            answer_failure(pull.request(), problem)
        else:
            if response is not None:
                pull.request().reply(response)
        return True

    # --- reading ------------------------------------------------------------------------------

    def _read(self, data: bytearray, at: int, end: int, wire: Wire) -> Pull | None:
        """Read the header that lies from ``at`` to ``end``; None if it is not plain."""
        pull = Pull(self._pulls, wire, 0)
        at = self._read_fields(data, at + _HEAD_BYTES, end, pull)
        if at == 0:
            return None
        pull.opaque = opaque_in(data, at, end)
        return None if pull.opaque == _NOT_PLAIN else pull

    def _read_fields(self, data: bytearray, at: int, end: int, pull: Pull) -> int:
        """Read the fields, ``at`` being the first one's name; returns the position behind them."""
        seen = 0
        memory = data
        while True:
            name_end = end_of_text(data, at, end)
            if name_end == 0 or name_end + 3 > end:
                return 0
            if memory[name_end + 1] != 58 or memory[name_end + 2] != 34:
                return 0
            start = name_end + 3
            stop = end_of_text(data, start, end)
            if stop == 0 or stop + 2 >= end:
                return 0
            found = self._note(data, at, name_end, start, stop, pull)
            if found < 0:
                return 0
            seen |= found
            if memory[stop + 1] == 125:
                return stop + 2 if seen & _REQUIRED == _REQUIRED else 0
            if memory[stop + 1] != 44 or memory[stop + 2] != 34:
                return 0
            at = stop + 3

    def _note(
        self, data: bytearray, at: int, name_end: int, start: int, stop: int, pull: Pull
    ) -> int:
        """Keep one field; returns its bit, 0 for one that nobody needs, -1 if it is not plain."""
        length = name_end - at
        if length == 5 and matches(data, at, name_end, b"topic"):
            pull.topic = self._text(data, start, stop)
            return _TOPIC
        if length == 13 and matches(data, at, name_end, b"consumerGroup"):
            pull.group = self._text(data, start, stop)
            return _GROUP
        if length == 12 and matches(data, at, name_end, b"subscription"):
            pull.expression = self._text(data, start, stop)
            return 0
        if length == 14 and matches(data, at, name_end, b"expressionType"):
            pull.kind = self._text(data, start, stop)
            return 0
        bit = _bit_of(data, at, name_end)
        if bit == 0:
            return -1 if _is_typed(data, at, name_end) else 0
        if end_of_number(data, start, stop) != stop:
            return -1
        value = number(data, start, stop)
        is_small = -_INT32_MAX <= value <= _INT32_MAX
        if not is_small and not bit & _WIDE:
            return -1
        self._keep(bit, value, pull)
        return bit

    def _keep(self, bit: int, value: int, pull: Pull) -> None:
        """Keep a number."""
        if bit == _OFFSET:
            pull.offset = value
        elif bit == _COMMIT:
            pull.commit_offset = value
        elif bit == _SUSPEND:
            pull.suspend_ms = value
        elif bit == _VERSION:
            pull.version = value
        elif bit == _QUEUE:
            pull.queue_id = value
        elif bit == _COUNT:
            pull.count_max = value
        elif bit == _FLAGS:
            pull.flags = value
        else:
            pull.bytes_max = value

    def _text(self, data: bytearray, start: int, stop: int) -> str:
        """The text, made once for as many pulls as say it."""
        raw = copy_of(data, start, stop)
        text = self._texts.get(raw)
        if text is None:
            if len(self._texts) >= _TEXTS_MAX:
                self._texts.clear()
            text = self._texts[raw] = raw.decode("ascii")
        return text


def _bit_of(data: bytearray, at: int, end: int) -> int:
    """The bit of the number with this name; 0 if there is none."""
    length = end - at
    if length == 11:
        if matches(data, at, end, b"queueOffset"):
            return _OFFSET
        return _BYTES if matches(data, at, end, b"maxMsgBytes") else 0
    if length == 7:
        if matches(data, at, end, b"queueId"):
            return _QUEUE
        return _FLAGS if matches(data, at, end, b"sysFlag") else 0
    if length == 10:
        if matches(data, at, end, b"maxMsgNums"):
            return _COUNT
        return _VERSION if matches(data, at, end, b"subVersion") else 0
    if length == 12:
        return _COMMIT if matches(data, at, end, b"commitOffset") else 0
    if length == 20:
        return _SUSPEND if matches(data, at, end, b"suspendTimeoutMillis") else 0
    return 0


def _is_typed(data: bytearray, at: int, end: int) -> bool:
    """Whether it is the name of a further field that is no text, and seldom sent."""
    return (
        matches(data, at, end, b"requestSource")
        or matches(data, at, end, b"lo")
        or matches(data, at, end, b"oway")
        or matches(data, at, end, b"nsd")
    )
