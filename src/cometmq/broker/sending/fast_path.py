# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""The fast path of sends: reads common headers in the receive buffer, without objects in between.

The header may be JSON in any order or binary, with the names of SEND_MESSAGE (10) or the letters of
SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320). All other sends (a number out of range, a topic
to be created, a delay, a message that is refused) stay in the buffer, and the general path handles
them: the same checks, the same store, the same responses. The responses to one read batch have one
write; with synchronous flush they share one group commit.

Interpreted, reading byte by byte would be slower: there the general parser reads JSON headers.
"""

from __future__ import annotations

from sys import intern
from time import perf_counter
from typing import Any

from cometmq.broker.sending.handler import SendHandler
from cometmq.broker.sending.send import Send
from cometmq.model.errors import CometError
from cometmq.model.topic import TOPIC_CHARS_MAX
from cometmq.protocol import header_scanner, octets
from cometmq.protocol.command import send_header
from cometmq.protocol.header_scanner import HeaderScanner
from cometmq.protocol.octets import copy_of, two_u32
from cometmq.protocol.signed_fields import RequestCheck, SignedFields
from cometmq.remoting.wire import FastPath, Wire

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

_PREFIX_BYTES = 8
_TOPICS_MAX = 20_000
_TOPIC_BYTES_MAX = TOPIC_CHARS_MAX
"""The longest name that is read here: a longer one names no topic, or the retries of a group."""
_FRAMES_MAX = 512
"""Sends that are handled at a time."""
_RUN_MAX = 32
"""Sends that are read before the first of them is stored."""
_INT32_MAX, _NOT_PLAIN = 2**31 - 1, header_scanner.NOT_PLAIN
_ESCAPED, _BARE = header_scanner.ESCAPED, header_scanner.BARE
_NO_DATA = bytearray()
_CODE_MEMBER = b'{"code":'

# The fields, in the order of their letters from a to n; each one's bit is 1 << its number.
_GROUP, _TOPIC, _TEMPLATE, _TEMPLATE_QUEUES, _QUEUE, _SYS_FLAG, _BORN, _FLAG = range(8)
_PROPERTIES, _RECONSUMED, _UNIT_MODE, _RETRIES_MAX, _BATCH, _BROKER = range(8, 14)
_REQUIRED = 0b11111111
_NUMBERS = 0b101011111000
"""The fields that are numbers."""
_LETTERS, _NAMES = 1 << 14, 1 << 15
"""Seen: a field named by its letter, a field with a long name."""
_NAME_OF = (
    b"producerGroup", b"topic", b"defaultTopic", b"defaultTopicQueueNums", b"queueId", b"sysFlag",
    b"bornTimestamp", b"flag", b"properties", b"reconsumeTimes", b"unitMode", b"maxReconsumeTimes",
    b"batch", b"producerSession",
)  # fmt: skip
_SESSION = 13
"""The number of the long name that stands where the letter n does: the general path checks it."""
_OTHER = -1


class SendHeaderReader(HeaderScanner):
    """Reads the headers of sends.

    Args:
        scans: whether it reads byte by byte, or calls the general parser.
        signed: gets each field of a header; None without access control.
        topics: the text of names, of all readers together.
    """

    def __init__(self, scans: bool, signed: SignedFields | None, topics: dict[bytes, str]) -> None:
        super().__init__()
        self.send = Send()
        self.signed = signed
        self.is_binary = False
        """Whether its frame has a binary header."""
        self._scans = scans
        self._seen = 0
        self._data = _NO_DATA
        self._topic = b""
        self._topics = topics

    def read(self, data: bytearray, at: int, end: int, is_binary: bool) -> bool:
        """Read the header from ``at`` to ``end`` into ``send``; False if it is not common.

        The caller fills in body and connection.
        """
        if self.signed is not None:
            self.signed.begin()
        if not self._scans:
            return not is_binary and self.signed is None and self._parse(data, at, end)
        memory = octets.start_of(data)
        send = self.send
        self._seen = 0
        self._data = data
        send.reconsume_times = 0
        send.is_batch = False
        send.text_at = send.text_end = 0
        if is_binary:
            if not self.scan_binary(memory, at, end):
                return False
        elif not self.scan_json(memory, at, end):
            return False
        form = _NAMES if self.code == 10 else _LETTERS
        if self.code != 10 and self.code != 310 and self.code != 320:
            return False
        return (
            self.flag == 0
            and self._seen & (_REQUIRED | _LETTERS | _NAMES) == _REQUIRED | form
            and send.sys_flag >= 0
            and send.reconsume_times >= 0
        )

    def release(self) -> None:
        """Drop the references to the connection that was read last."""
        self.send.wire = self.send.header = None
        self.send.source = self.send.text = b""
        self._data = _NO_DATA

    def _parse(self, data: bytearray, at: int, end: int) -> bool:
        found = send_header(copy_of(data, at, end))
        if found is None:
            return False
        header, self.opaque = found
        self.code = 320 if header.batch else 310  # the parser does not show that of short names
        if header.sys_flag < 0 or (header.reconsume_times or 0) < 0:
            return False
        if header.producer_session is not None:
            return False
        try:
            self.send.take_header(header, b"")
        except UnicodeEncodeError:
            return False
        return True

    def note(self, memory: Any, name: int, name_end: int, at: int, end: int, kind: int) -> bool:
        """Take one field of a send; return False if it is not common."""
        if self.signed is not None and self.signed.note(memory, name, name_end, at, end, kind):
            return kind != _ESCAPED
        field = _field_of(memory, name, name_end)
        if field < 0:
            return kind != _ESCAPED
        if field == _SESSION and name_end - name > 1:
            return False
        self._seen |= _LETTERS if name_end - name == 1 else _NAMES
        if self._seen & 1 << field:
            return False
        self._seen |= 1 << field
        if field == _PROPERTIES:
            return self._note_properties(memory, at, end, kind)
        if kind == _ESCAPED:
            return False
        if _NUMBERS & 1 << field:
            return self._note_number(field, memory, at, end)
        if field == _BATCH:
            self.send.is_batch = octets.equals(memory, at, end - at, b"true")
            return (
                self.send.is_batch
                or octets.equals(memory, at, end - at, b"false")
                or octets.equals(memory, at, end - at, b"0")
            )
        if field == _UNIT_MODE:
            return True
        if kind == _BARE:
            return False
        if field == _TOPIC:
            if not 0 < end - at <= _TOPIC_BYTES_MAX:
                return False
            self._note_topic(memory, at, end)
        return True

    def _note_topic(self, memory: Any, at: int, end: int) -> None:
        if not octets.equals(memory, at, end - at, self._topic):
            topic = octets.bytes_in(memory, at, end - at)
            text = self._topics.get(topic)
            if text is None:
                if len(self._topics) >= _TOPICS_MAX:
                    self._topics.clear()
                # Names in tables are interned, too: equal ones are found without a comparison.
                text = self._topics[topic] = intern(topic.decode("ascii"))
            self._topic, self.send.requested_topic = topic, text

    def _note_number(self, field: int, memory: Any, at: int, end: int) -> bool:
        value = header_scanner.plain_number(memory, at, end)
        send = self.send
        if value == _NOT_PLAIN:
            return False
        if field == _BORN:
            send.born_time_ms = value
            return True
        if not -_INT32_MAX <= value <= _INT32_MAX:
            return False
        if field == _QUEUE:
            send.requested_queue_id = value
        elif field == _SYS_FLAG:
            send.sys_flag = value
        elif field == _FLAG:
            send.flag = value
        elif field == _RECONSUMED:
            send.reconsume_times = value
        return True

    def _note_properties(self, memory: Any, at: int, end: int, kind: int) -> bool:
        send = self.send
        if kind == _BARE:
            return False
        send.text = self.space if kind == _ESCAPED else self._data
        send.text_at, send.text_end = at, end
        return True


class SendFastPath(FastPath):
    """Handles the common sends of received bytes.

    Args:
        handler: the handler of all other sends.
        scans: see `SendHeaderReader`; by default the faster one of this build.
        check: decides whether a send is allowed; None without access control.
    """

    def __init__(
        self,
        handler: SendHandler,
        *,
        scans: bool = bool(cython.compiled),
        check: RequestCheck | None = None,
    ) -> None:
        self._handler = handler
        self._validation = handler.validation
        self._flow = handler.flow
        self._check = check
        topics: dict[bytes, str] = {}
        self._readers = [
            SendHeaderReader(scans, None if check is None else SignedFields(), topics)
            for _ in range(_RUN_MAX)
        ]
        self._run_max = _RUN_MAX
        self._read_max = 0
        """How many of the readers were used."""
        self._count = 0
        self._code = 0
        """The request code of all sends of a batch."""
        self._responses_end = 0

    def take(self, data: bytearray, start: int, end: int, wire: Wire) -> int:
        """Store the common sends at ``start`` and respond; return how many bytes they take.

        Args:
            data: received bytes.
            start: where a frame begins.
            end: where the received bytes end.
            wire: their connection.
        """
        if not _may_begin(octets.start_of(data), start, end) or self._flow.refusal() is not None:
            return 0
        began_s = perf_counter()
        at = start
        handler = self._handler
        handler.apply_rules()
        self._validation.forget_topic()
        self._count = self._read_max = self._responses_end = 0
        handler.begin_batch()
        try:
            at = self._take_all(data, start, end, wire)
        finally:
            for number in range(self._read_max):
                reader = self._readers[number]
                reader.release()
            if self._check is not None:
                self._check.release()
            handler.end_batch(wire, self._responses_end, self._count, began_s, self._code)
        return at - start

    def finish_deferred(self) -> None:
        """Write the stored records to the log, and respond."""
        self._handler.finish_deferred()

    def _take_all(self, data: bytearray, at: int, end: int, wire: Wire) -> int:
        """Store the common sends from ``at`` on; return where the first other frame begins.

        A run of them is read and routed, then checked, then stored: the code of one step at a time
        fits in the innermost cache of a processor, that of all of them does not.
        """
        while self._count < _FRAMES_MAX:
            wanted = min(self._run_max, _FRAMES_MAX - self._count)
            found = self._read_run(data, at, end, wanted, wire)
            allowed = found if self._check is None else self._allowed_in_run(data, found, wire)
            stored = self._store_run(allowed)
            if stored:
                reader = self._readers[stored - 1]
                at = reader.send.body_end
            if stored < found:
                self._run_max = 1  # the others were read in vain
                break
            self._run_max = min(2 * self._run_max, _RUN_MAX)
            if found < wanted:
                break
        return at

    def _read_run(self, data: bytearray, at: int, end: int, wanted: int, wire: Wire) -> int:
        """Read and route the common sends from ``at`` on, up to a number; return how many."""
        memory = octets.start_of(data)
        found = 0
        while found < wanted and _may_begin(memory, at, end):
            length, word = two_u32(data, at)
            header_at = at + _PREFIX_BYTES
            body_at = header_at + (word & 0xFFFFFF)
            frame_end = at + 4 + length
            if word >> 24 > 1 or frame_end > end or body_at > frame_end:
                break
            if not wire.is_within_limits(frame_end - at, body_at - header_at):
                break
            reader = self._readers[found]
            reader.is_binary = word >> 24 == 1
            self._read_max = max(self._read_max, found + 1)
            if not reader.read(data, header_at, body_at, reader.is_binary):
                break
            if self._count + found == 0:
                self._code = reader.code
            elif reader.code != self._code:
                break  # the next batch begins with it
            send = reader.send
            send.wire, send.source = wire, data
            send.body_at, send.body_end = body_at, frame_end
            if not self._validation.route_common(send):
                break  # before those behind it are checked in vain
            found += 1
            at = frame_end
        return found

    def _allowed_in_run(self, data: bytearray, count: int, wire: Wire) -> int:
        """Return how many of the sends that were read, from the first on, are allowed."""
        check = self._check
        assert check is not None
        for number in range(count):
            reader = self._readers[number]
            send, signed = reader.send, reader.signed
            assert signed is not None
            if not check.allows(
                wire,
                signed,
                data,
                reader.space,
                send.body_at,
                send.body_end,
                send.requested_topic,
                None,
            ):
                return number
        return count

    def _store_run(self, count: int) -> int:
        """Store the sends that were read; return how many, from the first on, are stored."""
        for number in range(count):
            reader = self._readers[number]
            try:
                self._responses_end = self._handler.store(
                    reader.send, reader.opaque, reader.is_binary, self._responses_end
                )
            except CometError:
                return number  # the general path meets the same error, and responds with it
            self._count += 1
        return count


def _may_begin(memory: Any, at: int, end: int) -> bool:
    """Return whether a send may begin at ``at``; looks at a few bytes only."""
    header_at = at + _PREFIX_BYTES
    if header_at + 12 > end:
        return False
    if memory[at + 4] == 1:
        code = octets.i16_in(memory, header_at)
        return code == 310 or code == 320 or code == 10
    unit, next_unit, third = memory[header_at + 8], memory[header_at + 9], memory[header_at + 10]
    if not octets.equals(memory, header_at, 8, _CODE_MEMBER):
        found = memory[header_at] == 123  # JSON with another member ahead of the code
    elif unit == 49:
        found = next_unit == 48 and third == 44
    elif unit == 51:
        found = third == 48 and memory[header_at + 11] == 44
    else:
        found = unit == 32  # a blank
    return bool(found)


def _field_of(memory: Any, at: int, end: int) -> int:
    """Return the number of the field with this name; -1 if there is none."""
    size = end - at
    if size == 1:
        letter = memory[at]
        return letter - 97 if 97 <= letter <= 110 else _OTHER
    return header_scanner.find_name(memory, at, end, _NAME_OF)
