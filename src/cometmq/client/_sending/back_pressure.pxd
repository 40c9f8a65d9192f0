cdef class Generation:
    cdef public Py_ssize_t in_flight
    cdef public object ended


cdef class BackPressure:
    cdef Py_ssize_t _messages_max
    cdef Py_ssize_t _bytes_max
    cdef readonly Py_ssize_t messages
    cdef readonly Py_ssize_t size_bytes
    cdef Generation _generation
    cdef list _past_generations
    cdef readonly object _waiting
    cdef Py_ssize_t _gone
    cdef double _sweep_at_s
    cdef object _timer

    cpdef Generation try_acquire(self, Py_ssize_t size)
    cpdef release(self, Py_ssize_t size, Generation generation)
    cdef bint _fits(self, Py_ssize_t size) noexcept
    cdef Generation _take(self, Py_ssize_t size)
    cdef _grant(self)
    cdef _drop_gone(self)
    cdef _sweep_by(self, loop, double deadline_s)
    cpdef _sweep(self, loop)
