# cython: annotation_typing=False
"""The bytes of one TCP connection: reads frames, and writes many responses together.

All frames of one read are handled before anything is written, so their responses leave in one
write. The responses to all connections that one iteration of the event loop reads form a write
batch, which is written at the end of the iteration. The reason: the first response wakes a client
process, which costs more than the response itself, and the next ones find it awake. A connection
that was read twice in a row is written at once. So are responses beyond the limits of a batch or of
a write buffer.

More than 256 KiB are written in bursts, one in each iteration of the event loop. All connections
together write 768 KiB of large responses in an iteration, so that others are served in between.

A server reads nothing from a peer that leaves its responses unread. If more responses pile up, for
instance of held pulls, the wire is closed. A client reads in any case: if both ends waited for the
other one to read, neither would. A wire is also not read while a request that others must not
overtake is handled, and after `work_s_max` seconds of work until the next iteration of the event
loop, so that other connections are served first.

Hot: plain control flow, compiled by Cython in pure Python mode.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from io import BytesIO
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

from cometmq.model.errors import ProtocolError
from cometmq.protocol.command import Command, command_at, command_of
from cometmq.protocol.frame import HEADER_BYTES_MAX, PREFIX_BYTES, FrameError
from cometmq.protocol.octets import copy_of, two_u32
from cometmq.remoting.buffer_budget import BufferBudget

log = logging.getLogger(__name__)

_PREFIX_BYTES = PREFIX_BYTES  # C numbers once compiled
READ_BYTES = 256 * 1024
PARTIAL_BYTES_MIN = 64 * 1024
SLOW_PARTIAL_BYTES = 4 * 1024
"""The buffer of an unfinished frame of which less than this has arrived: thousands of peers may
send a few bytes each. A peer that fills it gets one of `PARTIAL_BYTES_MIN`."""
PARTIAL_BYTES_KEPT_MAX = 4 * PARTIAL_BYTES_MIN
"""A buffer of unfinished frames is reused up to this size; a larger one is freed."""
STRANGER_BYTES_MAX = 64 * 1024
"""The largest frame of a sender without an account that is read in parts."""
LARGE_BYTES_MIN = 1024 * 1024
"""The body of a frame of this size is received in its final place."""
LARGE_BYTES_MIN_OF_CLIENT = 128 * 1024
"""The same at a client, which trusts its servers: a buffer that is made zeros first, and grows,
costs more than the copy of what one read brings. A server holds what many peers have begun."""
BURST_BYTES_MAX = 256 * 1024
"""Limit of what one connection writes in an iteration of the event loop: the kernel copies it."""
_BURST_BYTES_MAX = BURST_BYTES_MAX
BURSTS_BYTES_MAX = 768 * 1024
"""Limit of what all connections write of large responses in an iteration of the event loop."""
_BURSTS_BYTES_MAX = BURSTS_BYTES_MAX
JOIN_BYTES_MAX = 64 * 1024
"""Responses up to this size are copied into one piece, larger ones are written as slices, and
count for the limit of an iteration."""
_JOIN_BYTES_MAX = JOIN_BYTES_MAX
BATCH_BYTES_MAX = 64 * 1024
"""Limit of the responses in a write batch; those of a connection are counted when it joins."""
_BATCH_BYTES_MAX = BATCH_BYTES_MAX
WORK_S_MAX = 0.002
"""The time for which frames of one connection are handled before frames of others."""
_SAME_ITERATION_S = 0.0002
"""A read so soon after another of its connection may belong to the same iteration of the loop."""
UNSENT_FACTOR_MAX = 64
"""Limit of unsent responses, as a multiple of the write buffer's limit."""

Slice = bytes | memoryview


class FastPath:
    """Handles some frames straight from the receive buffer, before the general path."""

    def take(self, data: bytearray, start: int, end: int, wire: Wire) -> int:
        """Handle the frames at ``start`` that it supports; return how many bytes they take.

        It may leave their responses for `finish_deferred`, which `WriteBatch.at_end` then calls.
        """
        raise NotImplementedError

    def finish_deferred(self) -> None:
        """Send the responses that were left for later; other requests may be handled after it."""


class WriteBatch:
    """Wires with unwritten responses; they are written when this iteration of the event loop ends.

    It also has the receive buffer of all wires of its loop. One is enough, because each read is
    handled before the next one begins.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.budget = BufferBudget(loop)
        """Limits what all wires of the loop hold together."""
        self.buffer = bytearray(READ_BYTES)
        self.view = memoryview(self.buffer)
        self.last: Wire | None = None
        """The wire that was read last."""
        self._waiting: list[Wire] = []
        self._waiting_bytes = 0
        self._scheduled = False
        self._deferred: list[Callable[[], None]] = []
        self.room_bytes = BURSTS_BYTES_MAX
        """How much of large responses this iteration may still write."""
        self.bursting: deque[Wire] = deque()
        """Wires whose bursts wait for an iteration with room."""

    def is_alone(self, wire: Wire) -> bool:
        """Whether no other wire has been read since this one was, or waits to be written."""
        return self.last is wire and not self._waiting and not self._deferred

    def at_end(self, finish: Callable[[], None]) -> None:
        """Call ``finish`` at the end of the iteration, before the responses are written."""
        self._deferred.append(finish)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self.end)

    def add(self, wire: Wire, more_bytes: int) -> None:
        """Add a wire; flush all wires now if the batch is full."""
        self._waiting.append(wire)
        self._waiting_bytes += more_bytes
        if self._waiting_bytes > _BATCH_BYTES_MAX:
            self._flush_all()
        elif not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self.end)

    def end(self) -> None:
        """Finish what was deferred, and write: the iteration is over."""
        if self._deferred:
            deferred, self._deferred = self._deferred, []
            for finish in deferred:
                try:
                    finish()
                except Exception:  # the others must not wait for this one
                    log.exception("cannot finish a write batch")
        self._scheduled = False
        self._flush_all()

    def burst_bytes(self) -> int:
        """Return how much of large responses one wire may write now."""
        return min(self.room_bytes, _BURST_BYTES_MAX)

    def spend(self, large_bytes: int) -> None:
        """Count what was written of large responses; the next iteration has room again."""
        if self.room_bytes == _BURSTS_BYTES_MAX:
            self.loop.call_soon(self._write_bursts)
        self.room_bytes -= large_bytes

    def _write_bursts(self) -> None:
        """Write bursts while there is room; a wire that has more waits behind the others."""
        self.room_bytes = _BURSTS_BYTES_MAX
        for _ in range(len(self.bursting)):
            if self.room_bytes < _JOIN_BYTES_MAX:
                return
            wire = self.bursting.popleft()
            try:
                wire._write_burst()
            except Exception:  # the others must not wait for this one
                log.exception("cannot write peer=%s", wire.peer_text)
                wire.abort()

    def _flush_all(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        now_s = self.loop.time()
        for wire in waiting:
            try:
                wire.flush_at(now_s)
            except Exception:  # the others must not wait for this one
                log.exception("cannot write peer=%s", wire.peer_text)
                wire.abort()


_batches: WeakValueDictionary[int, WriteBatch] = WeakValueDictionary()
"""By the id of its loop, which lives as long as the batch does."""


def write_batch_of(loop: asyncio.AbstractEventLoop) -> WriteBatch:
    """Return the write batch that the wires of a loop share, whichever thread runs it."""
    batch = _batches.get(id(loop))
    if batch is None:
        batch = _batches[id(loop)] = WriteBatch(loop)
    return batch


class Wire:
    """Reads frames and writes responses, as asyncio's buffered protocols do, in the loop's thread.

    Args:
        loop: the event loop.
        frame_bytes_max: the largest frame that is read.
        out_bytes_max: responses of this size are written without waiting for more.
        fast_path: sees what was read before commands are made of it.

    A subclass overrides `receive`, which handles a command.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        frame_bytes_max: int,
        out_bytes_max: int,
        fast_path: FastPath | None,
    ) -> None:
        self._loop = loop
        self._frame_bytes_max = frame_bytes_max
        self._out_bytes_max = out_bytes_max
        self._made_bytes_max = min(out_bytes_max, _JOIN_BYTES_MAX)
        """Responses of this size are written before further requests are handled: a peer may read
        none of them. It grows with each large response that the peer takes."""
        self._fast_path = fast_path
        self._batch = write_batch_of(loop)
        self._buffer = self._batch.buffer
        self._view = self._batch.view
        self._transport: asyncio.Transport | None = None
        self._partial: bytearray | None = None
        self._partial_view: memoryview | None = None
        self._filled = 0
        self._large: Any = None
        """Receives the body of a large frame."""
        self._large_head = b""
        self._large_bytes = 0
        self._held_bytes = 0
        """The buffers of an unfinished frame, and of responses that the peer does not read."""
        self._out: list[Slice] = []
        self._out_bytes = 0
        self._unsent: deque[Slice] = deque()
        """Responses that are written in bursts, in the next iterations of the event loop."""
        self._unsent_bytes = 0
        self._burst_waits = False
        self._writing_paused = False
        """Whether the transport's write buffer is full."""
        self._reading = False
        self._in_batch = False
        self._back_pressure = False
        """Whether the peer has to read before more is written, and read from a server's wire."""
        self.is_client = False
        """Whether it is read although its peer does not read: mostly it receives responses."""
        self._frame_pauses = 0
        self._yielded = False
        self._ended = False
        self._work_began_s = 0.0
        self._worked_to_s = 0.0
        self._closing = False
        self.is_leaving = False
        """Whether no further requests may be written: the peer is shutting down, or another process
        uses the connection."""
        self.work_s_max = WORK_S_MAX
        self.header_bytes_max = HEADER_BYTES_MAX
        """The longest header that is read."""
        self.may_be_large: Any = None
        """Returns whether a large frame of this wire is read (`STRANGER_BYTES_MAX`), by its header;
        None: all. It is not bound to the wire: a cycle would keep the wire until a collection."""
        self.warn: Callable[..., None] = log.warning
        """Logs why the connection was closed."""
        self.slow: Any = None
        """Logs requests that took long (`SlowRequests`); None for no log."""
        self.peer_text = ""
        self.peer_bytes = b""
        self.certificate_names: tuple[tuple[str, str], ...] = ()
        """The names in the certificate of the peer, each with its kind; only if it is verified."""
        self.last_active_s = loop.time()
        self.received_s = monotonic()
        """The time of the last bytes from the peer, at first of the connection. It is read from the
        clock: the time of an event loop does not advance within one iteration."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._closing or self._transport is None or self._transport.is_closing()

    def is_within_limits(self, frame_bytes: int, header_bytes: int) -> bool:
        """Return whether a frame and its header are small enough to be handled."""
        return frame_bytes <= self._frame_bytes_max and header_bytes <= self.header_bytes_max

    def takes_requests(self) -> bool:
        """Whether a request can be written now."""
        return not (self._back_pressure or self._closing or self.is_leaving)

    def receive(self, command: Command) -> None:
        """Handle one command that has arrived."""
        raise NotImplementedError

    def close(self) -> None:
        """Close once what was written is sent; requests that are not handled yet are dropped."""
        if self._transport is not None:
            if self._fast_path is not None:
                self._fast_path.finish_deferred()
            self.flush()
            self._closing = True
            if self._unsent:
                self._stop_reading()
            else:
                self._close_transport()

    def _close_transport(self) -> None:
        """Close the transport once: a second time, TLS of asyncio would ignore an abort later."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """Close at once, losing what was not sent yet."""
        self._closing = True
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._transport is not None:
            self._transport.abort()

    # --- reading ------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the space for the next bytes: behind an unfinished frame, or the shared buffer."""
        if self._large is not None:
            missing = self._large_bytes - self._large.tell()
            return self._view[:missing] if missing < READ_BYTES else self._view
        if self._partial_view is None:
            return self._view
        return self._partial_view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the whole frames that have arrived and keep the rest."""
        self.last_active_s = self._loop.time()
        self.received_s = monotonic()
        if self._large is not None:
            self._large.write(self._view[:nbytes])
            self._hold(self._held_bytes + nbytes)
            self._receive_large()
        elif self._partial is None:
            self._consume(self._buffer, nbytes)
        else:
            self._filled += nbytes
            self._consume(self._partial, self._filled)

    def _consume(self, data: bytearray, end: int) -> None:
        self._reading = True
        try:
            start = self._handle_frames(data, end)
        except ProtocolError as problem:
            self.warn("closed a connection: malformed input peer=%s: %s", self.peer_text, problem)
            self._drop_partial()
            self.close()
            return
        finally:
            self._reading = False
            self._end_read()
        self._keep(data, start, end)

    def _receive_large(self) -> None:
        """Handle the large frame if all of it has arrived and it may be handled now."""
        if self._large.tell() < self._large_bytes or not self._may_handle():
            return
        body, head = self._large.getvalue(), self._large_head
        self._drop_partial()
        self._reading = True
        try:
            self._pass_on(command_of(head, body))
        except ProtocolError as problem:
            self.warn("closed a connection: malformed input peer=%s: %s", self.peer_text, problem)
            self.close()
        finally:
            self._reading = False
            self._end_read()

    def _handle_frames(self, data: bytearray, end: int) -> int:
        """Handle frame after frame; return where the first one begins that must wait."""
        start = taken = 0
        frame_bytes_max, out_bytes_max = self._frame_bytes_max, self._made_bytes_max
        fast_path = self._fast_path
        began_s = monotonic()
        if began_s - self._worked_to_s > _SAME_ITERATION_S:
            self._work_began_s = began_s
        while start < end and self._may_handle():
            if end - start >= _PREFIX_BYTES:
                header_bytes = two_u32(data, start)[1] & 0xFFFFFF
                if header_bytes > self.header_bytes_max:
                    raise FrameError(
                        f"a header of {header_bytes} bytes: at most {self.header_bytes_max} are"
                        " allowed"
                    )
            if fast_path is not None:
                taken = fast_path.take(data, start, end, self)
            if taken:
                start += taken
            else:
                command = command_at(data, start, end, frame_bytes_max)
                if command is None:
                    if self.may_be_large is not None:
                        self._check_sender(data, start, end)
                    break
                start += command.frame_bytes
                self._pass_on(command)
            if self._out_bytes > out_bytes_max:
                self.flush()
            self._worked_to_s = monotonic()
            if self._worked_to_s - self._work_began_s > self.work_s_max and not self._ended:
                self._yield_to_others()
        return start

    def _check_sender(self, data: bytearray, start: int, end: int) -> None:
        """Refuse the begin of a large frame whose sender is not known.

        Raises:
            FrameError: it is one.
        """
        if end - start < PREFIX_BYTES:
            return
        length, word = two_u32(data, start)
        head_bytes = PREFIX_BYTES + (word & 0xFFFFFF)
        if length <= STRANGER_BYTES_MAX:
            return
        if head_bytes <= STRANGER_BYTES_MAX:
            if end - start < head_bytes:
                return  # the header is not here yet
            head = copy_of(data, start, start + head_bytes)
            if self.may_be_large(self, command_of(head, b"")):
                return
        raise FrameError(
            f"a frame of {length + 4} bytes without an account: at most {STRANGER_BYTES_MAX} are"
            " allowed"
        )

    def _pass_on(self, command: Command) -> None:
        """Handle a command on the general path, after the fast path has finished its frames."""
        if self._fast_path is not None:
            self._fast_path.finish_deferred()
        self.receive(command)

    def _may_handle(self) -> bool:
        """Whether the next frame may be handled now."""
        if self._frame_pauses or self._yielded:
            return False
        is_unread = self._back_pressure and not self.is_client
        return self._ended or not (is_unread or self._closing)

    def _yield_to_others(self) -> None:
        """Handle no further frames in this iteration of the event loop."""
        if not self._yielded:
            self._yielded = True
            self._stop_reading()
            self._loop.call_soon(self._resume_frames)

    def _resume_frames(self) -> None:
        self._yielded = False
        self._worked_to_s = 0.0
        self._read_on()

    @property
    def is_paused(self) -> bool:
        """Whether frames wait for the end of an earlier one; see `pause_frames`."""
        return self._frame_pauses > 0

    def pause_frames(self) -> None:
        """Handle no further frames until `resume_frames` is called as often as this was called."""
        self._frame_pauses += 1
        self._stop_reading()

    def resume_frames(self) -> None:
        """Handle what has arrived meanwhile, then read on; see `pause_frames`."""
        self._frame_pauses -= 1
        self._read_on()

    def end(self) -> None:
        """The peer sends no more: handle what has arrived, then close.

        With TLS it may have arrived together with the end, and the transport closes by itself.
        """
        self._ended = True
        self._yielded = False
        self._read_on()

    def _stop_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Handle frames again, unless there is still a reason not to."""
        if self._reading:
            return
        if self._large is not None:
            self._receive_large()
        if self._partial is not None and self._may_handle():
            try:
                self._consume(self._partial, self._filled)
            except Exception:  # nothing else would end this connection
                log.exception("cannot handle frames peer=%s", self.peer_text)
                self._drop_partial()
                self.abort()
        if not self._may_handle():
            return
        if self._ended:
            self._drop_partial()
            self.close()
        elif self._transport is not None and not self.closed:
            self._transport.resume_reading()

    def _keep(self, data: bytearray, start: int, end: int) -> None:
        """Keep an unfinished frame in a buffer of its own that grows as the frame arrives."""
        rest = end - start
        if rest == 0 or (self._closing and not self._ended):
            self._drop_partial()
            return
        if data is self._partial and rest < len(data):
            if start == 0:
                return
            is_too_small = end == len(data) and end < PARTIAL_BYTES_MIN
            if len(data) <= PARTIAL_BYTES_KEPT_MAX and not is_too_small:
                data[:rest] = data[start:end]
                self._filled = rest
                return
        if self._begins_large(data, start, rest):
            return
        more = (
            rest if start == 0 else PARTIAL_BYTES_MIN
        )  # a frame that is larger, or some that wait
        if end < SLOW_PARTIAL_BYTES:
            size = SLOW_PARTIAL_BYTES
        else:
            size = max(PARTIAL_BYTES_MIN, rest + more)
        partial = bytearray(size)
        partial[:rest] = memoryview(data)[start:end]
        self._partial, self._partial_view, self._filled = partial, memoryview(partial), rest
        self._hold(len(partial))

    def _begins_large(self, data: bytearray, start: int, rest: int) -> bool:
        """Receive the body of a large frame apart: no copy is made of all of it."""
        if rest < PREFIX_BYTES:
            return False
        length, word = two_u32(data, start)
        head_bytes = PREFIX_BYTES + (word & 0xFFFFFF)
        least = LARGE_BYTES_MIN_OF_CLIENT if self.is_client else LARGE_BYTES_MIN
        if length < least or not head_bytes <= rest < 4 + length:
            return False
        self._drop_partial()
        self._large_head = copy_of(data, start, start + head_bytes)
        self._large_bytes = 4 + length - head_bytes
        # It grows in place, and gives its content away without a copy.
        self._large = BytesIO()
        self._large.write(memoryview(data)[start + head_bytes : start + rest])
        self._hold(rest)
        return True

    def _drop_partial(self) -> None:
        self._partial, self._partial_view, self._filled = None, None, 0
        self._large = None
        if self._held_bytes:
            self._hold(0)

    def _hold(self, size_bytes: int) -> None:
        """Note what an unfinished frame takes now, beside what the peer does not read."""
        self._held_bytes = size_bytes
        if self._writing_paused and self._transport is not None:
            size_bytes += self._transport.get_write_buffer_size() + self._unsent_bytes
        self._batch.budget.hold(self, size_bytes)

    # --- writing ------------------------------------------------------------------------------

    def write(self, head: Slice, slices: Sequence[Slice] = ()) -> None:
        """Send a frame's head and the slices of its body, together with its write batch."""
        if self._closing:
            return
        self._out.append(head)
        self._out_bytes += len(head)
        for part in slices:
            self._out.append(part)
            self._out_bytes += len(part)
        if not self._reading:
            self._join_batch()

    def _end_read(self) -> None:
        """Write the responses to the last read, or add this wire to the write batch."""
        if self._out:
            if self._batch.is_alone(self):
                self.flush()
            else:
                self._join_batch()
        self._batch.last = self

    def _join_batch(self) -> None:
        """Write the responses with the write batch, or now if they exceed the write buffer."""
        if self._out_bytes > self._out_bytes_max:
            self.flush()
        elif not self._in_batch:
            self._in_batch = True
            self._batch.add(self, self._out_bytes)

    def flush(self) -> None:
        """Write the responses that wait; if this iteration has no room for all, the first burst."""
        self.flush_at(self._loop.time())

    def flush_at(self, now_s: float) -> None:
        """Write the responses that wait, as `flush`; ``now_s`` is the time of the event loop."""
        self._in_batch = False
        out = self._out
        if not out or self._transport is None:
            return
        self._out, size, self._out_bytes = [], self._out_bytes, 0
        if self._closing:
            return
        if self._back_pressure:
            if self._is_stuck(size):
                return
        else:
            self.last_active_s = now_s
        if self._unsent or (size > _JOIN_BYTES_MAX and size > self._batch.burst_bytes()):
            self._unsent.extend(out)
            self._unsent_bytes += size
            self._begin_back_pressure()
            if not (self._burst_waits or self._writing_paused):
                self._write_burst()
        else:
            if size > _JOIN_BYTES_MAX:
                self._batch.spend(size)
            if len(out) == 1:
                self._transport.write(out[0])
            elif size <= _JOIN_BYTES_MAX or len(out) > 4 * size // _JOIN_BYTES_MAX + 64:
                self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)
        if self._writing_paused:
            self._hold(self._held_bytes)
        elif size > _JOIN_BYTES_MAX:
            self._made_bytes_max = min(self._made_bytes_max + size, self._out_bytes_max)

    def _write_burst(self) -> None:
        """Write a burst of what is unsent, and wait with the rest for the next iterations."""
        self._burst_waits = False
        if self._transport is None or self._writing_paused or not self._unsent:
            return
        if self._batch.room_bytes < _JOIN_BYTES_MAX:
            self._await_room()
            return
        burst: list[Slice] = []
        room = burst_bytes = self._batch.burst_bytes()
        while self._unsent and room > 0:
            part = self._unsent.popleft()
            if len(part) > room:
                view = memoryview(part)
                part = view[:room]
                self._unsent.appendleft(view[room:])
            burst.append(part)
            room -= len(part)
        self._unsent_bytes -= burst_bytes - room
        self._batch.spend(burst_bytes - room)
        self.last_active_s = self._loop.time()
        self._transport.write(burst[0] if len(burst) == 1 else b"".join(burst))
        if self._unsent:
            if not self._writing_paused:
                self._await_room()
        elif self._closing:
            self._close_transport()
        elif not self._writing_paused:
            self.end_back_pressure()

    def _await_room(self) -> None:
        self._burst_waits = True
        self._batch.bursting.append(self)

    def _begin_back_pressure(self) -> None:
        self._back_pressure = True
        if not self.is_client:
            self._stop_reading()

    def end_back_pressure(self) -> None:
        """Read on: the transport has taken all responses."""
        self._back_pressure = False
        self._read_on()

    def pause_writing(self) -> None:
        """Write nothing until `resume_writing`: the transport's write buffer is full."""
        self._writing_paused = True
        self._begin_back_pressure()
        self._hold(self._held_bytes)

    def resume_writing(self) -> None:
        """Write the rest, then read on: the peer has read its responses."""
        self._writing_paused = False
        self._made_bytes_max = self._out_bytes_max
        self._hold(self._held_bytes)
        self.last_active_s = self._loop.time()
        if not self._unsent:
            self.end_back_pressure()
        elif not self._burst_waits:
            self._write_burst()

    def _is_stuck(self, more_bytes: int) -> bool:
        """Abort the connection if its peer does not read responses; return whether it did."""
        assert self._transport is not None
        unsent = self._transport.get_write_buffer_size() + self._unsent_bytes + more_bytes
        if unsent <= UNSENT_FACTOR_MAX * self._out_bytes_max:
            return False
        self.warn("closed a connection: its peer does not read peer=%s", self.peer_text)
        self.abort()
        return True

    def _lose(self) -> None:
        """Drop unfinished frames and responses: the connection is gone."""
        self._transport = None
        self._closing = True
        if self._batch.last is self:
            self._batch.last = None
        self._out.clear()
        self._unsent.clear()
        self._out_bytes = self._unsent_bytes = 0
        if self._writing_paused:
            self._writing_paused = False
            self._hold(self._held_bytes)
        if not (self._ended and self._frame_pauses):
            self._drop_partial()
