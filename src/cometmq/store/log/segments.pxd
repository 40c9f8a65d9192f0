cimport cython

from cometmq.store.log cimport record_layout


cdef int _BLOCK_BYTES


cdef class Segment:
    cdef readonly object file
    cdef readonly long long base_offset
    cdef readonly long long size_bytes
    cdef readonly long long end_offset
    cdef readonly object view
    cdef const unsigned char[::1] _pinned
    cdef unsigned char* memory
    cdef dict _seen_in_memory
    cdef dict _checked

    @cython.locals(block=cython.longlong, first=cython.longlong, now_s=cython.double)
    cpdef bint is_resident(self, long long start, long long stop) except -1


cdef class MappingLimit:
    cdef readonly long long files_max
    cdef public long long mapped
    cdef public long long restored
    cdef list _streams
    cdef long long _chance

    @cython.locals(victim=Segments, at=cython.longlong)
    cpdef register(self, Segments stream)
    cdef _add(self, Segments stream)


cdef class Segments:
    cdef object _files
    cdef str _parent
    cdef str _name
    cdef readonly long long size_bytes
    cdef readonly bint read_only
    cdef bint _keep_open
    cdef object _remove
    cdef list _items
    cdef long long _first_base
    cdef MappingLimit _limit
    cdef public bint is_noted
    cdef public object user
    cdef int _released
    cdef bint _is_syncing
    cdef bint _sync_names_later
    cdef int _unsynced_names

    cpdef bint is_beyond_map_limit(self)
    cpdef use_files(self, long long first_base, int count)
    cpdef long long end_base(self)
    cpdef long long first_base(self)
    cpdef bint release(self) except -1
    cdef _restore(self)
    cdef _close(self, list items)
    cpdef append(self, Segment segment)

    @cython.locals(index=cython.longlong)
    cpdef Segment find(self, long long offset)
    cpdef Segment first(self)
    cpdef Segment last(self)
