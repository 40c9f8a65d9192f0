cimport cython

from cometmq.remoting.wire cimport Wire


cdef class Send:
    cdef public Wire wire
    cdef public object header
    cdef public str requested_topic
    cdef public long long requested_queue_id
    cdef public long long sys_flag
    cdef public long long born_ms
    cdef public long long flag
    cdef public long long reconsumed
    cdef public bint is_batch
    cdef public bint may_be_empty
    cdef public object source
    cdef public Py_ssize_t body_at
    cdef public Py_ssize_t body_end
    cdef public object text
    cdef public Py_ssize_t text_at
    cdef public Py_ssize_t text_end
    cdef public str topic
    cdef public long long queue_id
    cdef public object id_source
    cdef public Py_ssize_t id_at
    cdef public Py_ssize_t id_end
    cdef public bytes more

    cpdef take_header(self, object header, object body)
    cpdef name(self, bytes unique_id)
    cpdef bytes properties(self)
