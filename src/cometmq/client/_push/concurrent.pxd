from cometmq.client._push.process_queue cimport FetchedBatch, ProcessQueue


cdef class Pending:
    cdef public FetchedBatch batch
    cdef public Py_ssize_t next, stop


cdef class Call:
    cdef public FetchedBatch batch
    cdef public Py_ssize_t start, stop
    cdef public double begun_s
