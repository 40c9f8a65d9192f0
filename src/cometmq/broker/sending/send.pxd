cimport cython

from cometmq.remoting.wire cimport Wire
from cometmq.store.log.new_record cimport NewRecord


cdef class Send(NewRecord):
    cdef public Wire wire
    cdef public object header
    cdef public object request
    cdef public str requested_topic
    cdef public long long requested_queue_id
    cdef public object item
    cdef public bint is_batch
    cdef public bint is_one_record
    cdef public bint may_be_empty
    cdef public object id_source
    cdef public Py_ssize_t id_at
    cdef public Py_ssize_t id_end
    cdef public bytes recall_handle

    cpdef take_header(self, object header, object body)
    cpdef name(self, bytes unique_id)
