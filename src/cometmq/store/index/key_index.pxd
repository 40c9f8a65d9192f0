cimport cython

from cometmq.store.log cimport record_layout
from cometmq.store.log.segments cimport Segment


cdef int _HEADER_BYTES, _ENTRY_BYTES, _RESERVE_BYTES, _INT_MAX, _NOTES_MAX, _NOTE_BYTES


cdef class IndexFile:
    cdef readonly Segment segment
    cdef readonly object path
    cdef unsigned char* _memory
    cdef long long _slots
    cdef long long _entries
    cdef long long _entries_at
    cdef long long _reserved
    cdef long long _seconds_of
    cdef int _seconds
    cdef int _brought_in_at
    cdef readonly long long ready
    cdef readonly long long begin_ms
    cdef readonly long long end_ms
    cdef readonly long long begin_log
    cdef readonly long long end_log
    cdef readonly int slots_used
    cdef readonly int next_entry

    cdef _attach(self, Segment segment)
    cpdef bint is_full(self)
    @cython.locals(needed=cython.longlong, ahead=cython.longlong, stop=cython.longlong)
    cpdef reserve(self, long long entries)
    @cython.locals(number=cython.int, previous=cython.int)
    cdef put(self, int hashed, long long log_offset, long long store_ms)
    cdef _count_seconds(self, long long store_ms)
    cdef prefetch(self, int hashed)
    cpdef write_header(self)
    cdef Py_ssize_t _position(self, long long number) noexcept


cdef class Index:
    cdef object _files
    cdef object _remove
    cdef object _directory
    cdef readonly long long _slots
    cdef readonly long long _entries
    cdef object _now_ms
    cdef bint _read_only
    cdef readonly list items
    cdef readonly IndexFile newest
    cdef readonly list filled

    cdef int _note_count
    cdef object _failure
    cdef bint _unregistered
    cdef bint _has_unsynced_names
    cdef bytearray _space
    cdef unsigned char* _notes

    @cython.locals(newest=IndexFile)
    cpdef make_room(self, long long entries)
    cpdef long long end_log(self)
    @cython.locals(position=cython.Py_ssize_t)
    cpdef note(self, int hashed, long long log_offset, long long store_ms)
    cpdef add_noted(self)
    cpdef drop_unlogged(self, long long log_end)
    @cython.locals(count=cython.int, number=cython.int, position=cython.Py_ssize_t)
    cdef _add_notes(self)
    cdef _add_early(self)
    @cython.locals(newest=IndexFile)
    cdef _add(self, int hashed, long long log_offset, long long store_ms)
    cdef IndexFile _roll(self)
