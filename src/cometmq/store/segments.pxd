cimport cython

from cometmq.store cimport raw


cdef class Segment:
    cdef readonly object file
    cdef readonly long long base_offset
    cdef readonly long long size_bytes
    cdef readonly long long end_offset
    cdef readonly object view
    cdef const unsigned char[::1] _pinned
    cdef unsigned char* memory


cdef class Segments:
    cdef object _files
    cdef readonly object directory
    cdef readonly long long size_bytes
    cdef readonly bint read_only
    cdef bint _keep_open
    cdef object _remove
    cdef readonly list items
    cdef long long _first_base
    cdef bint _sync_names_later
    cdef list _unsynced_directories

    @cython.locals(index=cython.longlong)
    cpdef Segment find(self, long long offset)
    cpdef Segment first(self)
    cpdef Segment last(self)
