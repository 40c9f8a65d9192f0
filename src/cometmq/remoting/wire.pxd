cimport cython

from cometmq.protocol.command cimport Command, command_at
from cometmq.protocol.octets cimport copy_of, two_u32


cdef Py_ssize_t _PREFIX_BYTES
cdef Py_ssize_t _BATCH_BYTES_MAX
cdef Py_ssize_t _BURST_BYTES_MAX
cdef Py_ssize_t _BURSTS_BYTES_MAX
cdef Py_ssize_t _JOIN_BYTES_MAX
cdef double _SAME_ITERATION_S


cdef class FastPath:
    cpdef Py_ssize_t take(
        self, bytearray data, Py_ssize_t start, Py_ssize_t end, Wire wire) except -1
    cpdef finish_deferred(self)


cdef class WriteBatch:
    cdef object __weakref__
    cdef readonly object loop
    cdef readonly object budget
    cdef readonly bytearray buffer
    cdef readonly object view
    cdef public Wire last
    cdef list _waiting
    cdef Py_ssize_t _waiting_bytes
    cdef bint _scheduled
    cdef list _deferred
    cdef readonly Py_ssize_t room_bytes
    cdef readonly object bursting

    cdef bint is_alone(self, Wire wire)
    cdef at_end(self, object finish)
    cdef add(self, Wire wire, Py_ssize_t more_bytes)
    cpdef end(self)
    cdef Py_ssize_t burst_bytes(self) noexcept
    cdef spend(self, Py_ssize_t large_bytes)
    @cython.locals(wire=Wire)
    cpdef _write_bursts(self)
    @cython.locals(waiting=list, wire=Wire, now_s=cython.double)
    cdef _flush_all(self)


cdef class Wire:
    cdef readonly object _loop
    cdef Py_ssize_t _frame_bytes_max
    cdef Py_ssize_t _out_bytes_max
    cdef Py_ssize_t _made_bytes_max
    cdef FastPath _fast_path
    cdef bytearray _buffer
    cdef object _view
    cdef readonly WriteBatch _batch
    cdef public object _transport
    cdef readonly bytearray _partial
    cdef object _partial_view
    cdef readonly Py_ssize_t _filled
    cdef object _large
    cdef bytes _large_head
    cdef Py_ssize_t _large_bytes
    cdef readonly Py_ssize_t _held_bytes
    cdef list _out
    cdef Py_ssize_t _out_bytes
    cdef readonly object _unsent
    cdef Py_ssize_t _unsent_bytes
    cdef bint _burst_waits
    cdef readonly bint _writing_paused
    cdef readonly bint _reading
    cdef bint _in_batch
    cdef public bint _back_pressure
    cdef public bint is_client
    cdef readonly int _frame_pauses
    cdef bint _yielded
    cdef bint _ended
    cdef double _work_began_s
    cdef double _worked_to_s
    cdef public double work_s_max
    cdef public Py_ssize_t header_bytes_max
    cdef public bint _closing
    cdef public bint is_leaving
    cdef public object may_be_large
    cdef public object warn
    cdef public object slow
    cdef public str peer_text
    cdef public bytes peer_bytes
    cdef public tuple certificate_names
    cdef public double last_active_s
    cdef readonly double received_s

    cdef bint is_within_limits(self, Py_ssize_t frame_bytes, Py_ssize_t header_bytes) noexcept
    cpdef bint takes_requests(self) noexcept
    cpdef receive(self, Command command)
    cpdef close(self)
    cpdef abort(self)
    cdef _close_transport(self)

    cpdef _consume(self, bytearray data, Py_ssize_t end)
    @cython.locals(
        start=cython.Py_ssize_t, taken=cython.Py_ssize_t, frame_bytes_max=cython.Py_ssize_t,
        out_bytes_max=cython.Py_ssize_t, fast_path=FastPath, command=Command,
        began_s=cython.double, header_bytes=cython.Py_ssize_t)
    cdef Py_ssize_t _handle_frames(self, bytearray data, Py_ssize_t end) except -1
    cpdef pause_frames(self)
    cpdef resume_frames(self)
    cdef _receive_large(self)
    @cython.locals(length=cython.Py_ssize_t, word=cython.uint, head_bytes=cython.Py_ssize_t)
    cdef _check_sender(self, bytearray data, Py_ssize_t start, Py_ssize_t end)
    cdef _pass_on(self, Command command)
    cdef bint _may_handle(self)
    cdef _yield_to_others(self)
    cpdef _resume_frames(self)
    cpdef end(self)
    cdef _stop_reading(self)
    cpdef _read_on(self)
    @cython.locals(
        rest=cython.Py_ssize_t, size=cython.Py_ssize_t, is_too_small=cython.bint, partial=bytearray)
    cdef _keep(self, bytearray data, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(
        length=cython.Py_ssize_t, word=cython.uint, head_bytes=cython.Py_ssize_t)
    cdef bint _begins_large(self, bytearray data, Py_ssize_t start, Py_ssize_t rest) except -1
    cpdef _drop_partial(self)
    cdef _hold(self, Py_ssize_t size_bytes)

    cpdef write(self, object head, object slices=*)
    cdef _end_read(self)
    cdef _join_batch(self)
    cpdef flush(self)
    @cython.locals(out=list, size=cython.Py_ssize_t)
    cdef flush_at(self, double now_s)
    @cython.locals(burst=list, room=cython.Py_ssize_t, burst_bytes=cython.Py_ssize_t)
    cpdef _write_burst(self)
    cdef _await_room(self)
    cdef _begin_back_pressure(self)
    cpdef end_back_pressure(self)
    cpdef pause_writing(self)
    cpdef resume_writing(self)
    cdef bint _is_stuck(self, Py_ssize_t more_bytes) except -1
    cpdef _lose(self)
