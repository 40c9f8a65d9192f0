cimport cython

from cometmq.store.log cimport record_layout
from cometmq.store.log.segments cimport Segment, Segments
from cometmq.store.queues.unit_buffers cimport UnitBuffers


cdef int _UNIT_BYTES, _PAGE_BYTES, _RESERVE_BYTES, _RECENT_UNITS
cdef int _LOOKED_BACK_UNITS
cdef long long _OFFSET_MAX
cdef int _BUFFER_BYTES, _BUFFER_UNITS, _NO_BUFFER, _SIZE_AT, _FILLER_SIZE


cdef class ConsumeQueue:
    cdef readonly str topic
    cdef readonly int queue_id
    cdef readonly Segments segments
    cdef readonly object ext
    cdef readonly int unit_bytes
    cdef readonly bint holds_batches
    cdef readonly long long first_unit
    cdef readonly long long end_unit
    cdef readonly long long min_offset
    cdef readonly long long max_offset
    cdef readonly long long max_physical
    cdef readonly long long flushed_unit
    cdef object _unsynced
    cdef bint _is_listed
    cdef unsigned char* _memory
    cdef long long _position
    cdef long long _room_end
    cdef long long _loaded_to
    cdef UnitBuffers _buffers
    cdef int _buffer
    cdef long long _buffer_first
    cdef long long _copied_to
    cdef long long _reserved_to
    cdef long long _sync_to

    cpdef load_from_ends(
        self, long long first_base, long long files, long long min_offset, long long max_offset,
        long long max_physical)
    cdef bint is_buffered(self, long long number) noexcept
    cdef long long buffer_position(self, long long number) noexcept
    cdef unsigned char* buffer_memory(self) noexcept
    cdef long long end_in_file(self, Segment segment) noexcept
    cpdef write_and_release_buffer(self)
    cpdef release_buffer(self)
    cdef _copy_buffer(self)
    @cython.locals(end=cython.longlong, first=cython.longlong)
    cdef _copy_buffer_locked(self)
    cdef _empty_buffer(self)
    cdef _truncate_buffer(self, long long stop)
    @cython.locals(
        segments=Segments, end=cython.longlong, base=cython.longlong, room=cython.longlong,
        fits=cython.bint, ahead=cython.longlong)
    cdef bint _use_buffer(self, long long units) except -1

    @cython.locals(
        low=cython.longlong, high=cython.longlong, step=cython.longlong, middle=cython.longlong)
    cpdef long long end_at(self, long long log_end)
    @cython.locals(segment=Segment)
    cdef long long _record_end(self, long long number) except? -1
    cpdef long long recent_from(self)
    cpdef make_room(self, long long units)
    cpdef put(
        self, long long queue_offset, long long log_offset, int size, long long tags_code,
        long long store_ms, bytes bitmap=*)

    cpdef long long number_of(self, long long queue_offset) except? -1
    cpdef long long offset_of(self, long long number) except? -1
    cpdef long long offset_behind(self, long long number) except? -1
    @cython.locals(segment=Segment)
    cpdef tuple unit(self, long long number)
    cdef Segment _segment_of(self, long long number)
    cpdef long long tags_code_of(self, long long code)

    @cython.locals(
        least=cython.longlong, low=cython.longlong, high=cython.longlong,
        middle=cython.longlong, first=cython.longlong)
    cpdef long long first_at_or_after(self, long long log_offset)
    cdef long long _first_in_files(self)
    cdef bint _is_out_of_order(self, long long number) except -1
    cdef bint _is_at_or_after(self, long long number, long long log_offset) except -1
    cdef _set_offsets(self)
    @cython.locals(segment=Segment, memory=cython.p_uchar, position=cython.longlong)
    cpdef replace(self, long long number, long long log_offset, int size, long long code)
    cdef _list(self)

    @cython.locals(
        segments=Segments, segment=Segment, end=cython.longlong, stop=cython.longlong,
        base=cython.longlong, position=cython.longlong, needed=cython.longlong,
        ahead=cython.longlong, room_end=cython.longlong)
    cdef _reserve(self, long long units)
    cdef _attach(self, Segment segment, long long position)
    cdef bint _jump(self, long long queue_offset) except -1
    @cython.locals(start=cython.longlong, base=cython.longlong)
    cdef bint _continue_at(self, long long queue_offset) except -1
    cdef _fill(self, long long number)

    @cython.locals(segment=Segment, count=cython.longlong, unit_bytes=cython.int)
    cdef _find_end(self, bint is_zero_behind)


cdef bint _has_unit(Segment segment, long long number, int unit_bytes) except -1
cdef bint _is_stray(Segment segment, long long number, int unit_bytes) except -1
@cython.locals(
    total=cython.longlong, low=cython.longlong, high=cython.longlong, middle=cython.longlong)
cdef long long _count_by_halves(Segment segment, int unit_bytes) except -1
@cython.locals(size=cython.int)
cdef long long _end_of(const unsigned char* memory, Py_ssize_t at) noexcept
