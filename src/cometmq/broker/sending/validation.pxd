cimport cython

from cometmq.protocol cimport octets


cdef bytes _END, _WAITS, _UNIQUE_KEY


cdef class Target:
    cdef readonly str topic
    cdef readonly int queue_id
    cdef readonly bytes properties
    cdef readonly int asked_queue_id
    cdef readonly int sys_flag


cdef class SendValidation:
    cdef public object rules
    cdef object _topics
    cdef object _groups
    cdef object _levels
    cdef object _holds_locks
    cdef object _new_unique_key
    cdef object _now_ms
    cdef object _queue_chance
    cdef dict _stamps
    cdef bytes _suffix
    cdef Py_ssize_t _body_bytes_max
    cdef bint _watchful

    cpdef bint sizes_fit(self, Py_ssize_t body_bytes, Py_ssize_t properties_bytes)
    cdef _check_size(self, bytes body, bytes properties)
    cpdef int plain_queues(self, str topic) except -1

    @cython.locals(entries=bytes)
    cpdef bytes plain_properties(self, bytes properties)

    cpdef bytes plain_batch_properties(self, bytes properties)

    @cython.locals(topic=str, properties=bytes, queue_id=cython.longlong)
    cpdef Target place(self, object header, bytes body, object connection)
    cdef bytes _stamped(self, str text)


@cython.locals(
    has_unique_key=cython.bint, at=cython.Py_ssize_t, stop=cython.Py_ssize_t, first=cython.uchar,
    size=cython.Py_ssize_t)
cdef bint _is_everyday(const unsigned char* text, Py_ssize_t length) noexcept

@cython.locals(at=cython.Py_ssize_t)
cdef bint _has_unique_key(str text)
