# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""The fast path of pulls: reads common headers in the receive buffer, without objects in between.

The header may be JSON in any order or binary. The general path handles headers that differ from
what clients usually write: an escape, an invalid number, a field that is missing. `PullHandler`
checks all pulls and responds to them.

Faster only if compiled; interpreted, only tests call it.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from cometmq.broker.prerequisites import PrerequisiteError
from cometmq.broker.pulling.handler import Pull, PullHandler
from cometmq.model.topic import GROUP_CHARS_MAX, RETRY_PREFIX
from cometmq.protocol import header_scanner, octets
from cometmq.protocol.header_scanner import HeaderScanner
from cometmq.protocol.octets import two_u32
from cometmq.protocol.signed_fields import RequestCheck, SignedFields
from cometmq.remoting.connection import respond_with_failure
from cometmq.remoting.wire import FastPath, Wire

_PREFIX_BYTES = 8
_INT32_MAX, _NOT_PLAIN = 2**31 - 1, header_scanner.NOT_PLAIN
_TEXTS_MAX = 10_000
_NAME_BYTES_MAX = GROUP_CHARS_MAX + len(RETRY_PREFIX)
_EXPRESSION_BYTES_MAX = 1024
"""The longest texts that are remembered: names of groups and of their retry topics, expressions."""
_FRAMES_MAX = 64
_WORK_S_MAX = 0.001
"""Pulls that are handled at a time, and for how long."""
_TEXT, _ESCAPED = header_scanner.TEXT, header_scanner.ESCAPED
_CODE_MEMBER = b'{"code":'
_PULL_MEMBER = b'{"code":11,'

# The fields that are read, in the order of their names; each one's bit is 1 << its number.
_GROUP, _TOPIC, _EXPRESSION, _KIND = 0, 1, 2, 3
_QUEUE, _OFFSET, _COUNT, _FLAGS, _COMMIT, _SUSPEND, _VERSION, _BYTES = 4, 5, 6, 7, 8, 9, 10, 11
_NAMES = (
    b"consumerGroup", b"topic", b"subscription", b"expressionType", b"queueId", b"queueOffset",
    b"maxMsgNums", b"sysFlag", b"commitOffset", b"suspendTimeoutMillis", b"subVersion",
    b"maxMsgBytes", b"requestSource", b"bulk", b"lo",
)  # fmt: skip
_TEXTS = 0b1111
_WIDE = 1 << _OFFSET | 1 << _COMMIT | 1 << _SUSPEND | 1 << _VERSION
"""The fields of 64 bits."""
_REQUIRED = 0b11111110011
_KNOWN = 12
"""The number of fields that are read here; a pull with any other takes the general path."""


class PullHeaderReader(HeaderScanner):
    """Reads the headers of pulls.

    Args:
        signed: gets each field of a header; None without access control.
    """

    def __init__(self, signed: SignedFields | None = None) -> None:
        super().__init__()
        self.signed = signed
        self.pull: Pull | None = None
        self._seen = 0
        self._texts: dict[bytes, str] = {}

    def read(self, pull: Pull, memory: Any, at: int, end: int) -> bool:
        """Read the header from ``at`` to ``end``; False if it is not common."""
        self.pull = pull
        self._seen = 0
        if self.signed is not None:
            self.signed.begin()
        if pull.is_binary:
            if not self.scan_binary(memory, at, end):
                return False
        elif not self.scan_json(memory, at, end):
            return False
        pull.opaque = self.opaque
        return self.code == 11 and self.flag == 0 and self._seen & _REQUIRED == _REQUIRED

    def note(self, memory: Any, name: int, name_end: int, at: int, end: int, kind: int) -> bool:
        """Take one field of a pull; return False if it is not common."""
        if self.signed is not None and self.signed.note(memory, name, name_end, at, end, kind):
            return kind != _ESCAPED
        field = header_scanner.find_name(memory, name, name_end, _NAMES)
        if field < 0:
            return kind != _ESCAPED
        if field >= _KNOWN or kind == _ESCAPED or self._seen & 1 << field:
            return False
        self._seen |= 1 << field
        if _TEXTS & 1 << field:
            return kind == _TEXT and self._note_text(field, memory, at, end)
        return self._note_number(field, memory, at, end)

    def _note_text(self, field: int, memory: Any, at: int, end: int) -> bool:
        """Set a text, if it is not too long; pulls with the same text share one string."""
        if end - at > (_EXPRESSION_BYTES_MAX if field == _EXPRESSION else _NAME_BYTES_MAX):
            return False
        raw = octets.bytes_in(memory, at, end - at)
        text = self._texts.get(raw)
        if text is None:
            if len(self._texts) >= _TEXTS_MAX:
                self._texts.clear()
            text = self._texts[raw] = raw.decode("ascii")
        pull = self.pull
        assert pull is not None
        if field == _GROUP:
            pull.group = text
        elif field == _TOPIC:
            pull.topic = text
        elif field == _EXPRESSION:
            pull.expression = text
        else:
            pull.kind = text
        return True

    def _note_number(self, field: int, memory: Any, at: int, end: int) -> bool:
        value = header_scanner.plain_number(memory, at, end)
        if value == _NOT_PLAIN:
            return False
        if not -_INT32_MAX <= value <= _INT32_MAX and not _WIDE & 1 << field:
            return False
        pull = self.pull
        assert pull is not None
        if field == _OFFSET:
            pull.offset = value
        elif field == _COMMIT:
            pull.commit_offset = value
        elif field == _SUSPEND:
            pull.suspend_ms = value
        elif field == _VERSION:
            pull.version = value
        elif field == _QUEUE:
            pull.queue_id = value
        elif field == _COUNT:
            pull.count_max = value
        elif field == _FLAGS:
            pull.flags = value
        else:
            pull.bytes_max = value
        return True


class PullFastPath(FastPath):
    """Handles the common pulls of received bytes.

    Args:
        pulls: their handler.
        check: decides whether a pull is allowed; None without access control.
    """

    def __init__(self, pulls: PullHandler, check: RequestCheck | None = None) -> None:
        self._pulls = pulls
        self._check = check
        self._reader = PullHeaderReader(None if check is None else SignedFields())

    def take(self, data: bytearray, start: int, end: int, wire: Wire) -> int:
        """Respond to the common pulls at ``start`` or hold them; return how many bytes they take.

        Args:
            data: received bytes.
            start: where a frame begins.
            end: where the received bytes end.
            wire: their connection.
        """
        at = start
        left = _FRAMES_MAX
        began_s = monotonic()
        check, signed = self._check, self._reader.signed
        memory = octets.start_of(data)
        while left and _may_begin(memory, at, end):
            left -= 1
            length, word = two_u32(data, at)
            frame_end = at + 4 + length
            header_end = at + _PREFIX_BYTES + (word & 0xFFFFFF)
            if frame_end > end or header_end != frame_end or word >> 24 > 1:
                break  # not all there, or not just a header
            if not wire.is_within_limits(frame_end - at, header_end - at - _PREFIX_BYTES):
                break
            pull = Pull(self._pulls, wire, 0, word >> 24 == 1)
            if not self._reader.read(pull, memory, at + _PREFIX_BYTES, frame_end):
                break
            if check is not None:
                assert signed is not None
                if not check.allows(
                    wire,
                    signed,
                    data,
                    self._reader.space,
                    frame_end,
                    frame_end,
                    pull.topic,
                    pull.group,
                ):
                    break
                self._pulls.note_access(pull, check.key)
            if not self._handle(pull):
                break
            at = frame_end
            if wire._frame_pauses:  # this pull waits for the disk
                break
            if wire._out_bytes > wire._made_bytes_max:  # the peer may not read them
                break
            if monotonic() - began_s > _WORK_S_MAX:
                break
        self._reader.pull = None
        if check is not None:
            check.release()
        return at - start

    def _handle(self, pull: Pull) -> bool:
        """Handle a pull; return False if the general path has to create its group first."""
        try:
            response = self._pulls.respond_to(pull)
        except PrerequisiteError:
            return False
        except Exception as problem:
            respond_with_failure(pull.request(), problem)
        else:
            if response is not None:
                pull.request().reply(response)
        return True


def _may_begin(memory: Any, at: int, end: int) -> bool:
    """Return whether a pull may begin at ``at``; looks at a few bytes only."""
    header_at = at + _PREFIX_BYTES
    if header_at + 12 > end:
        return False
    if memory[at + 4] == 1:
        found = octets.i16_in(memory, header_at) == 11
    elif octets.equals(memory, header_at, 11, _PULL_MEMBER):
        found = True
    else:  # JSON with another member ahead of the code, or a blank
        found = memory[header_at] == 123 and (
            memory[header_at + 8] == 32 or not octets.equals(memory, header_at, 8, _CODE_MEMBER)
        )
    return bool(found)
