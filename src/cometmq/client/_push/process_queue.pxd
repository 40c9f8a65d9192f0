cimport cython

from cometmq.protocol.lazy_record cimport LazyMessage


cdef class FetchedBatch:
    cdef public ProcessQueue queue
    cdef public list messages
    cdef bytearray _done
    cdef Py_ssize_t _first
    cdef bint _forgotten

    cpdef bint is_open(self, Py_ssize_t index)

    @cython.locals(
        done=bytearray, messages=list, index=cython.Py_ssize_t, count=cython.Py_ssize_t,
        size=cython.longlong, queue=ProcessQueue)
    cpdef finish(self, Py_ssize_t start, Py_ssize_t stop)

    @cython.locals(done=bytearray, end=cython.Py_ssize_t)
    cdef _skip(self, Py_ssize_t at)


cdef class ProcessQueue:
    cdef public object queue
    cdef public bint dropped, locked, is_offset_pending, topic_missed, lock_is_new
    cdef public double locked_at_s, pulled_at_s, consumed_at_s, doubt_ends_s
    cdef public int unlock_tries, calls
    cdef public object consuming
    cdef public Py_ssize_t count
    cdef public long long size_bytes, locked_at_ms, received_ms
    cdef public object last_offset, on_removed
    cdef object _now, _batches
    cdef dict _open
    cdef bint _being_consumed
    cdef object _idle

    @cython.locals(batch=FetchedBatch, index=cython.Py_ssize_t)
    cdef _last_unconsumed(self)

    @cython.locals(head=FetchedBatch)
    cdef _head_offset(self)

    @cython.locals(message=object, size=cython.longlong)
    cpdef put(self, list messages)

    cpdef begin_call(self)

    cpdef end_call(self)

    cpdef committable(self)

    @cython.locals(head=FetchedBatch)
    cdef _drop_finished(self)

    @cython.locals(head=FetchedBatch, first=cython.Py_ssize_t, part=list)
    cpdef list take(self, Py_ssize_t count)

    @cython.locals(head=FetchedBatch)
    cpdef put_back(self, object messages)

    @cython.locals(batch=FetchedBatch)
    cpdef clear(self)

    cdef _notify_removed(self)


cdef long long _size_of(object message) except? -1
