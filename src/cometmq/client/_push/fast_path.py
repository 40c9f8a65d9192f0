# cython: annotation_typing=False
"""The fast path of pulls: encodes only what changes, and reads responses in the receive buffer.

It serves a pull if the broker's connection takes requests and no hook needs to be called;
`pull_once` makes all others. The requests for one queue differ in a few numbers: the bytes between
them are encoded once.

Compiled, a response in the common form is read in the receive buffer: see `ResponseScanner`.
`result_from` reads all others. The tests compare both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.pulls import (
    STATUS,
    Pull,
    PullResult,
    PullStatus,
    added_properties,
    code_of,
    leads_on,
    pull_once,
    result_from,
)
from cometmq.model.errors import ResponseError
from cometmq.model.offsets import QueueOffset
from cometmq.protocol import header_scanner, octets
from cometmq.protocol.codes import LanguageCode
from cometmq.protocol.command import Command, cut_head, encode_head
from cometmq.protocol.compression import CompressionError
from cometmq.protocol.frame import JSON_HEADER, PREFIX_BYTES, frame_prefix
from cometmq.protocol.header_scanner import HeaderScanner
from cometmq.protocol.headers.base import encode_fields
from cometmq.protocol.headers.pull import PullMessageResponse
from cometmq.protocol.lazy_record import check_packages, check_rising, decode_between
from cometmq.protocol.octets import Memory, copy_of, put_bytes, put_decimal, put_u32
from cometmq.protocol.record import RecordError
from cometmq.protocol.wrapped_batch import WRAPPED
from cometmq.remoting import CallTimeoutError, Connection
from cometmq.remoting.inflight import Call, Inflight

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

_OFFSET, _FLAGS, _COMMIT, _OPAQUE = (
    1_444_444_444_444,
    1_222_222_222,
    1_111_111_111_111,
    1_333_333_333,
)
"""Stand for the numbers that differ, until the head is cut where they are."""
_MARKS = tuple(b"%d" % number for number in (_OFFSET, _FLAGS, _COMMIT, _OPAQUE))
_NUMBERS_BYTES_MAX = 80
"""Four numbers in decimal digits."""
_PREFIX_BYTES, _NOT_PLAIN = PREFIX_BYTES, header_scanner.NOT_PLAIN
_TEXT, _WRAPPED = header_scanner.TEXT, WRAPPED
_FOUND, _STATUS = PullStatus.FOUND, {int(code): status for code, status in STATUS.items()}

# The fields of a response that are read in the receive buffer.
_SUGGESTED, _NEXT, _MIN, _MAX = range(4)
_NAMES = (b"suggestWhichBrokerId", b"nextBeginOffset", b"minOffset", b"maxOffset")
_CHECKED = (b"topicSysFlag", b"groupSysFlag", b"forbiddenType")
"""Fields that are not used. The general path raises if one is not a number."""
_OTHERS = tuple(
    name.encode()
    for name in PullMessageResponse.__struct_encode_fields__
    if name.encode() not in (*_NAMES, *_CHECKED)
)
"""Fields that only the general path reads."""
_REQUIRED = 0b1111
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


class QueuePulls:
    """The pulls of one queue: what they request, and the bytes of their requests.

    Args:
        pull: what they request.
        language: what requests name.
    """

    __slots__ = ("commit_flags", "fixed_bytes", "flags", "pieces", "pull")

    def __init__(self, pull: Pull, language: LanguageCode) -> None:
        self.pull = pull
        self.flags = pull.flags(commits=False)
        self.commit_flags = pull.flags(commits=True)
        header = pull.header(QueueOffset(_OFFSET), QueueOffset(_COMMIT))
        head = encode_head(
            code_of(pull, 0),
            opaque=_OPAQUE,
            fields=encode_fields(msgspec.structs.replace(header, sys_flag=_FLAGS)),
            language=language,
        )
        self.pieces = cut_head(head, _MARKS) or ()
        """The bytes between the numbers; empty if a name in the head contains such a number."""
        self.fixed_bytes = sum(map(len, self.pieces))

    def encode(self, offset: int, flags: int, commit_offset: int, opaque: int) -> bytes:
        """Encode a request when this module is not compiled."""
        one, two, three, four, five = self.pieces
        values = (one, offset, two, flags, three, commit_offset, four, opaque, five)
        header = b"%b%d%b%d%b%d%b%d%b" % values
        return frame_prefix(JSON_HEADER, len(header), 0) + header


class ResponseScanner(HeaderScanner):
    """Reads the header of a response to a pull if it is a common one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.suggested = self.next_offset = self.min_offset = self.max_offset = 0

    def read(self, memory: Memory, at: int, end: int) -> bool:
        """Read the header from ``at`` to ``end``; False if the general path must."""
        self.seen = 0
        return self.scan_json(memory, at, end) and self.flag == 1 and self.seen == _REQUIRED

    def note(self, memory: Memory, name: int, name_end: int, at: int, end: int, kind: int) -> bool:
        """Read one field; False if the general path must read the response."""
        field = header_scanner.find_name(memory, name, name_end, _NAMES)
        value = header_scanner.plain_number(memory, at, end)
        if field < 0:
            if header_scanner.find_name(memory, name, name_end, _CHECKED) >= 0:
                return kind == _TEXT and _INT32_MIN <= value <= _INT32_MAX
            return header_scanner.find_name(memory, name, name_end, _OTHERS) < 0
        if kind != _TEXT or value == _NOT_PLAIN or self.seen & 1 << field:
            return False
        self.seen |= 1 << field
        if field == _SUGGESTED:
            self.suggested = value
        elif field == _NEXT:
            self.next_offset = value
        elif field == _MIN:
            self.min_offset = value
        else:
            self.max_offset = value
        return True


class FastPull(Call):
    """A pull in flight; receives the response itself."""

    __slots__ = (
        "began_s", "connection", "future", "inflight", "offset", "on_read", "opaque", "path", "pull"
    )  # fmt: skip

    path: PullFastPath
    pull: Pull
    connection: Connection
    inflight: Inflight
    future: asyncio.Future[PullResult | Command]
    offset: QueueOffset
    on_read: Callable[[PullResult], None]
    began_s: float
    opaque: int

    def done(self) -> bool:
        """Return whether the response is not awaited any more."""
        return self.future.done()

    def set_result(self, response: Command) -> None:
        """The broker has responded in another form than the common one, or nothing is compiled."""
        if response.code in _STATUS:
            try:
                result = result_from(response, self.pull, self.offset)
            except Exception:  # `PullFastPath.pull` raises it
                pass
            else:
                self.on_read(result)
                self.future.set_result(result)
                return
        self.future.set_result(response)

    def set_exception(self, error: Exception) -> None:
        """No response will arrive."""
        self.future.set_exception(error)

    def read_response(
        self, data: bytearray, header_at: int, body_at: int, end: int, opaque: int
    ) -> bool:
        """Complete the pull from the receive buffer; False if the response is not common."""
        scanner, pull = self.path.scanner, self.pull
        memory = octets.start_of(data)
        if not scanner.read(memory, header_at, body_at) or scanner.opaque != opaque:
            return False
        status = _STATUS.get(scanner.code)
        if status is None:
            return False
        if self.future.done():
            return True
        messages: list[Any] = []
        if status is _FOUND:
            added = self.path.added(scanner.min_offset, scanner.max_offset)
            found = decode_between(data, body_at, end, pull.queue.broker_name, added)
            if found is None:
                return False
            try:
                if check_rising(found, _WRAPPED):
                    return False
                check_packages(found)
            except (RecordError, CompressionError):
                return False
            if not leads_on(found, scanner.next_offset):
                return False
            messages = pull.wanted.selected(found)
        result = PullResult(
            status,
            messages,
            QueueOffset(scanner.next_offset),
            QueueOffset(scanner.min_offset),
            QueueOffset(scanner.max_offset),
            scanner.suggested,
        )
        self.on_read(result)
        self.future.set_result(result)
        return True


class PullFastPath:
    """Makes the pulls of one client's consumers."""

    def __init__(self, instance: ClientCore) -> None:
        self._remoting = instance.remoting
        self._brokers = instance.brokers
        self._language = LanguageCode[instance.settings.language]
        self.scanner = ResponseScanner()
        self._space = bytearray(1_024)
        self._added: dict[str, str] = {}
        self._added_min = self._added_max = _NOT_PLAIN

    @classmethod
    def of(cls, instance: ClientCore) -> PullFastPath:
        """Return the object that all consumers of a client share."""
        return instance.shared(cls, lambda: cls(instance))

    def pulls_of(self, pull: Pull) -> QueuePulls:
        """Prepare the pulls of a queue."""
        return QueuePulls(pull, self._language)

    async def pull(
        self,
        address: str,
        pulls: QueuePulls,
        offset: QueueOffset,
        commit_offset: QueueOffset | None,
        timeout: float,
        on_read: Callable[[PullResult], None],
    ) -> PullResult:
        """Pull from a broker, as `pull_once` does.

        A result is passed to ``on_read`` while it is received, one iteration of the event loop
        sooner than it is returned. ``on_read`` must neither raise nor wait.
        """
        call = self._start(address, pulls, offset, commit_offset, timeout)
        if call is not None:
            call.offset, call.on_read = offset, on_read
            try:
                response = await call.future
            except CallTimeoutError:
                self._remoting.note_silence(call.connection, call.began_s)
                raise
            finally:
                call.inflight.forget(call.opaque)
            if not isinstance(response, Command):
                return response
            left_s = call.deadline_s - call.connection._loop.time()
            retired = self._remoting.retire_leaving(address, call.connection, response)
            if not retired or left_s <= 0:
                try:
                    return result_from(response, pulls.pull, offset)
                except ResponseError as error:
                    error.address = address
                    raise
            timeout = left_s
        return await pull_once(
            self._brokers,
            address,
            pulls.pull,
            offset,
            commit_offset=commit_offset,
            timeout=timeout,
        )

    def _start(
        self,
        address: str,
        pulls: QueuePulls,
        offset: QueueOffset,
        commit_offset: QueueOffset | None,
        timeout: float,
    ) -> FastPull | None:
        """Write the request of a pull; None if the general path must."""
        connection = self._remoting.ready(address)
        if connection is None or timeout <= 0 or not pulls.pieces:
            return None
        inflight = connection.inflight
        inflight.has_readers = True
        loop = connection._loop
        call = FastPull.__new__(FastPull)
        call.path, call.pull = self, pulls.pull
        call.connection, call.inflight = connection, inflight
        call.future = loop.create_future()
        call.began_s = loop.time()
        call.opaque = inflight.add_call(call, timeout, call.began_s)
        flags, commits = pulls.flags, 0
        if commit_offset is not None:
            flags, commits = pulls.commit_flags, commit_offset
        if cython.compiled:
            connection.write(self._encoded(pulls, offset, flags, commits, call.opaque))
        else:
            connection.write(pulls.encode(offset, flags, commits, call.opaque))
        return call

    def _encoded(
        self, pulls: QueuePulls, offset: int, flags: int, commit_offset: int, opaque: int
    ) -> bytes:
        """Encode a request when this module is compiled."""
        size_max = _PREFIX_BYTES + pulls.fixed_bytes + _NUMBERS_BYTES_MAX
        if size_max > len(self._space):
            self._space = bytearray(2 * size_max)
        space, pieces = self._space, pulls.pieces
        end = put_bytes(space, _PREFIX_BYTES, pieces[0])
        end = put_decimal(space, end, offset)
        end = put_bytes(space, end, pieces[1])
        end = put_decimal(space, end, flags)
        end = put_bytes(space, end, pieces[2])
        end = put_decimal(space, end, commit_offset)
        end = put_bytes(space, end, pieces[3])
        end = put_decimal(space, end, opaque)
        end = put_bytes(space, end, pieces[4])
        put_u32(space, 0, end - 4)
        put_u32(space, 4, end - _PREFIX_BYTES)
        return copy_of(space, 0, end)

    def added(self, min_offset: int, max_offset: int) -> dict[str, str]:
        """Return what `added_properties` returns, the last one again for the same offsets."""
        if min_offset != self._added_min or max_offset != self._added_max:
            self._added = added_properties(min_offset, max_offset)
            self._added_min, self._added_max = min_offset, max_offset
        return self._added
