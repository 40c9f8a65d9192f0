cimport cython

from cometmq.store.log cimport record_layout


cdef int _BUFFER_BYTES, _UNIT_BYTES


cdef class UnitBuffers:
    cdef readonly object lock
    cdef readonly int buffers_max
    cdef public bint is_usable
    cdef object _files
    cdef object _path
    cdef bint _has_file
    cdef object _file
    cdef list _users
    cdef list _free
    cdef int _next_victim
    cdef object _view
    cdef const unsigned char[::1] _pinned
    cdef unsigned char* memory

    cpdef int take(self, object user) except -1
    cpdef release(self, int number)
    cpdef empty(self, int number)
    cpdef clear(self, long long position, long long size_bytes)
    cpdef bytes copy(self, long long position, long long size_bytes)
