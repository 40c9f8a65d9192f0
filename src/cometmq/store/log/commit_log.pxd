cimport cython

from cometmq.protocol cimport octets
from cometmq.store.log cimport record_layout
from cometmq.store.log.new_record cimport NewRecord
from cometmq.store.log.segments cimport Segment, Segments


cdef int _BLANK_BYTES, _PAGE_BYTES, _BUFFER_BYTES, _FEW_BYTES, _RECENT_BYTES


cdef class CommitLog:
    cdef readonly Segments segments
    cdef readonly object allocator
    cdef readonly long long written_to
    cdef public long long flushed_to
    cdef public long long confirmed_to
    cdef readonly bint shows_unsynced
    cdef public long long last_store_ms
    cdef unsigned char* memory
    cdef readonly long long filled
    cdef long long _began_at
    cdef long long _staged_ms
    cdef long long _base
    cdef long long _start
    cdef long long _limit
    cdef long long _allocate_next_at
    cdef object _file
    cdef long long _buffer_bytes
    cdef bytearray _buffer
    cdef object _view

    cpdef long long min_offset(self)
    @cython.locals(end=cython.longlong)
    cpdef long long readable_to(self)
    cpdef bint has_room(self, long long size)
    cpdef make_room(self, long long size)
    cpdef write_staged(self)
    cdef discard(self)
    @cython.locals(segment=Segment, position=cython.longlong)
    cpdef receive(self, long long offset, data)
    @cython.locals(segment=Segment, allocate_next_at=cython.longlong)
    cpdef advance(self, long long offset, long long store_ms)

    cdef write(self, NewRecord record, const unsigned char* source, const unsigned char* text)

    @cython.locals(segment=Segment, start=cython.longlong)
    cpdef record(self, long long log_offset, long long size)
    @cython.locals(segment=Segment)
    cpdef slice(self, long long start, long long stop)
    cpdef bint is_recent(self, long long log_offset)
    @cython.locals(segment=Segment)
    cpdef bint may_be_damaged(self, long long log_offset) except -1
    cdef _roll(self, long long size)
    cdef _write_to(self, Segment segment, long long position)
    cdef _allocate_buffer(self, long long size)
