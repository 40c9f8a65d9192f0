# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""Stores plain sends straight from the receive buffer, without objects in between.

A send, of one message or of a batch, is plain when its frame looks just like those of Java's
producers and it needs no check beyond what `SendValidation` says of its topic and its properties::

    {"code":310 or 320,"extFields":{ "x":"value" {,"x":"value"} },"flag":0,"language":"...",
     "opaque":n,"serializeTypeCurrentRPC":"JSON","version":n}

Whatever differs in the least (another key, an escape, a number that is none, an unknown topic, a
message that is refused) is left where it is, and the general path handles it. All sends of one
read are answered in one write; with synchronous flush they share one wait for the disk.

Interpreted, looking at every byte would be the longer way: there the general parser reads the
header, and plain is what it finds nothing odd about. Source: ours.
"""

from __future__ import annotations

from time import perf_counter

from cometmq.broker.sending.handler import SendHandler
from cometmq.model.errors import CometError, StoreError
from cometmq.model.flags import SysFlag
from cometmq.protocol.command import plain_send_header
from cometmq.protocol.frame import FRAME_BYTES_MAX
from cometmq.protocol.octets import copy_of, matches, two_u32
from cometmq.protocol.plain_json import NOT_PLAIN, end_of_number, end_of_text, number, opaque_in
from cometmq.remoting.wire import FastPath, Wire
from cometmq.store.appending import Appended, AppendedBatch

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

_HEAD = b'{"code":3'
_AFTER_CODE = b'0,"extFields":{"'
_HEAD_BYTES = 26
_HEADS = (_HEAD + b"1" + _AFTER_CODE, _HEAD + b"2" + _AFTER_CODE)
_BATCH_NO, _BATCH_YES = b"false", b"true"
_PREFIX_BYTES = 8
_REQUIRED = 0b11111111
"""One bit for each of the fields a to h."""
_NEEDS_CARE = int(SysFlag.TRANSACTION_MASK | SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_INT32_MAX, _NOT_PLAIN = 2147483647, NOT_PLAIN
_TOPICS_MAX = 10_000
_FRAMES_MAX = 512
"""Sends that are handled at a time."""


class SendFastPath(FastPath):
    """Takes plain sends out of received bytes.

    Args:
        send: the processor of all other sends; they share what they work with.
        frame_bytes_max: larger frames are left for the connection to refuse.
    """

    def __init__(self, send: SendHandler, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._send = send
        self._frame_bytes_max = frame_bytes_max
        self._validation = send.validation
        self._appender = send.appender
        self._stats = send.stats
        self._flow = send.flow
        self._store_host = send.store_host
        self._names: dict[bytes, str] = {}
        self._properties = bytearray(64 * 1024)
        self._known_topic = b""
        self._name = ""
        self._queues = 0
        self._topic = b""
        self._text = b""
        self._queue_id = 0
        self._sys_flag = 0
        self._born_ms = 0
        self._flag = 0
        self._reconsumed = 0
        self._opaque = 0
        self._is_batch = False
        self._log_end = 0

    def take(self, data: bytearray, start: int, end: int, wire: Wire) -> int:
        """Store and answer the plain sends at ``start``; returns how many bytes they take.

        Args:
            data: received bytes.
            start: where a frame begins.
            end: where the received bytes end.
            wire: where they came from.
        """
        at = start
        if not _begins_plain(data, at, end) or self._flow.refusal() is not None:
            return 0
        began_s = perf_counter()
        self._send.follow_rules()
        self._known_topic, self._name, self._queues = b"", "", 0
        heads: list[bytes] = []
        places: list[tuple[int | bytes, int, int, int]] = []
        lost: StoreError | None = None
        self._appender.hold()
        try:
            at = self._take_all(data, start, end, wire, heads, places)
        finally:
            try:
                self._appender.release()
            except StoreError as problem:
                lost = problem
        if lost is not None:
            self._send.answer_lost(wire, places, lost)
        elif heads:
            self._send.answer_plain(wire, b"".join(heads), places, self._log_end, began_s)
        return at - start

    def _take_all(
        self,
        data: bytearray,
        at: int,
        end: int,
        wire: Wire,
        heads: list[bytes],
        places: list[tuple[int | bytes, int, int, int]],
    ) -> int:
        """Store the plain sends from ``at`` on; returns where the first other frame begins."""
        left = _FRAMES_MAX
        while left and _begins_plain(data, at, end):
            left -= 1
            length, word = two_u32(data, at)
            header_at = at + _PREFIX_BYTES
            body_at = header_at + word
            frame_end = at + 4 + length
            if word >> 24 or frame_end > end or body_at > frame_end:
                break
            if frame_end - at > self._frame_bytes_max:
                break
            if not self._read(data, header_at, body_at):
                break
            if self._topic != self._known_topic:
                self._look_up()
            if not 0 <= self._queue_id < self._queues:
                break
            if self._is_batch:
                batch = self._store_batch(data, body_at, frame_end, wire)
                if batch is None:
                    break
                ids = self._send.ids_of(batch)
                many = (ids, self._queue_id, batch.queue_offset, self._opaque)
                heads.append(self._send.batch_success.head(many))
                places.append(many)
                self._log_end = batch.log_offset_end
            else:
                stored = self._store(copy_of(data, body_at, frame_end), wire)
                if stored is None:
                    break
                place = (stored.log_offset, self._queue_id, stored.queue_offset, self._opaque)
                heads.append(self._send.success.head(place))
                places.append(place)
                self._log_end = stored.log_offset + stored.size_bytes
            at = frame_end
        return at

    def _store(self, body: bytes, wire: Wire) -> Appended | None:
        """Store the message that was read; None when the general path must see to it."""
        name = self._name
        properties = self._validation.plain_properties(self._text)
        if properties is None or not self._validation.sizes_fit(len(body), len(properties)):
            return None
        host = wire.peer_bytes
        flag = self._sys_flag | self._send.host_flags(host)
        try:
            stored = self._appender.append(
                name,
                self._queue_id,
                body,
                properties,
                self._flag,
                flag,
                self._born_ms,
                host,
                self._store_host,
                self._reconsumed,
                0,
            )
        except CometError:
            return None
        self._stats.put(name, self._queue_id, 1, stored.size_bytes)
        return stored

    def _store_batch(
        self, data: bytearray, start: int, stop: int, wire: Wire
    ) -> AppendedBatch | None:
        """Store the batch whose body lies from ``start`` to ``stop``; None as for `_store`."""
        properties = self._validation.plain_batch_properties(self._text)
        if properties is None or not self._validation.sizes_fit(stop - start, len(properties)):
            return None
        host = wire.peer_bytes
        try:
            stored = self._appender.append_items(
                self._name,
                self._queue_id,
                data,
                start,
                stop,
                properties,
                self._sys_flag | self._send.host_flags(host),
                self._born_ms,
                host,
                self._store_host,
                self._reconsumed,
            )
        except CometError:
            return None
        self._stats.put(self._name, self._queue_id, stored.count, stored.size_bytes)
        return stored

    def _look_up(self) -> None:
        """Find out about the topic that was read; good until the next read of the socket."""
        name = self._names.get(self._topic)
        if name is None:
            if len(self._names) >= _TOPICS_MAX:
                self._names.clear()
            name = self._names[self._topic] = self._topic.decode("ascii")
        self._known_topic = self._topic
        self._name = name
        self._queues = self._validation.plain_queues(name)

    # --- reading ------------------------------------------------------------------------------

    def _read(self, data: bytearray, at: int, end: int) -> bool:
        """Read the header that lies from ``at`` to ``end``; False if it is not plain."""
        if not cython.compiled:
            return self._read_typed(copy_of(data, at, end))
        self._text = b""
        self._reconsumed = 0
        self._is_batch = False
        at = self._read_fields(data, at + _HEAD_BYTES, end)
        if at == 0:
            return False
        self._opaque = opaque_in(data, at, end)
        return (
            self._sys_flag & _NEEDS_CARE == 0
            and 0 <= self._sys_flag <= _INT32_MAX
            and -_INT32_MAX <= self._flag <= _INT32_MAX
            and 0 <= self._reconsumed <= _INT32_MAX
            and self._opaque != _NOT_PLAIN
            and self._queue_id <= _INT32_MAX
        )

    def _read_typed(self, header: bytes) -> bool:
        """Do the same as the general path does, which checks that numbers fit; interpreted."""
        found = plain_send_header(header)
        if found is None:
            return False
        fields, self._opaque = found
        self._sys_flag = sys_flag = fields.sys_flag
        self._reconsumed = reconsumed = fields.reconsume_times or 0
        if sys_flag & _NEEDS_CARE or sys_flag < 0 or reconsumed < 0:
            return False
        text = fields.properties
        try:
            self._topic = fields.topic.encode("ascii")
            self._text = text.encode() if text else b""
        except UnicodeEncodeError:
            return False
        self._queue_id = fields.queue_id
        self._born_ms = fields.born_timestamp
        self._flag = fields.flag
        self._is_batch = fields.batch is True
        return fields.max_reconsume_times is None and len(self._topic) > 0

    def _read_fields(self, data: bytearray, at: int, end: int) -> int:
        """Read the fields, ``at`` being the first one's name; returns the position behind them."""
        seen = 0
        memory = data
        while at + 5 < end:
            key = memory[at]
            if memory[at + 1] != 34 or memory[at + 2] != 58 or memory[at + 3] != 34:
                return 0
            start = at + 4
            if key == 105:  # i: the properties
                stop = self._read_properties(data, start, end)
            else:
                stop = end_of_text(data, start, end)
            if stop == 0 or not self._note(key, data, start, stop):
                return 0
            if 97 <= key <= 104:  # a to h
                seen |= 1 << (key - 97)
            if stop + 2 >= end:
                return 0
            if memory[stop + 1] == 125:
                return stop + 2 if seen == _REQUIRED else 0
            if memory[stop + 1] != 44 or memory[stop + 2] != 34:
                return 0
            at = stop + 3
        return 0

    def _note(self, key: int, data: bytearray, start: int, stop: int) -> bool:
        """Keep one field's value; False if it is not plain."""
        if key == 98:  # b: the topic
            self._topic = copy_of(data, start, stop)
            return stop > start
        if key == 97 or key == 99 or key == 107 or key == 110 or key == 105:
            return True  # group, template topic, unit mode, broker name; properties are read
        if key == 109:  # m: batch
            self._is_batch = stop - start == 4 and matches(data, start, stop, _BATCH_YES)
            return self._is_batch or (stop - start == 5 and matches(data, start, stop, _BATCH_NO))
        if end_of_number(data, start, stop) != stop:
            return False
        value = number(data, start, stop)
        if key == 101:
            self._queue_id = value
        elif key == 102:
            self._sys_flag = value
        elif key == 103:
            self._born_ms = value
        elif key == 104:
            self._flag = value
        elif key == 106:
            self._reconsumed = value
        else:  # d: the queues of a topic to be created
            return key == 100 and -_INT32_MAX <= value <= _INT32_MAX
        return True

    def _read_properties(self, data: bytearray, at: int, end: int) -> int:
        """Read the property string with its two kinds of escapes; returns where its text ends."""
        memory = data
        out = self._properties
        filled = 0
        while at < end:
            unit = memory[at]
            if unit == 34:
                self._text = copy_of(self._properties, 0, filled)
                return at
            if unit == 92:
                # only \u0001 and \u0002 are plain
                if at + 6 > end or not matches(data, at, end, b"\\u000"):
                    return 0
                unit = memory[at + 5] - 48
                if unit != 1 and unit != 2:
                    return 0
                at += 5
            elif unit < 32 or unit > 126:
                return 0
            if filled >= 32768:
                return 0
            out[filled] = unit
            filled += 1
            at += 1
        return 0


def _begins_plain(data: bytearray, at: int, end: int) -> bool:
    at += _PREFIX_BYTES
    if not cython.compiled:
        return data[at : at + _HEAD_BYTES] in _HEADS and at + _HEAD_BYTES <= end
    if at + _HEAD_BYTES > end or not matches(data, at, end, _HEAD):
        return False
    unit = data[at + 9]
    return (unit == 49 or unit == 50) and matches(data, at + 10, end, _AFTER_CODE)
