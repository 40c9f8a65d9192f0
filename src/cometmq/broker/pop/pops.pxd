cimport cython

from cometmq.store.queues.queue_reader cimport GetResult


@cython.locals(part=object, at=cython.Py_ssize_t, offsets=list)
cdef object _offsets_of(GetResult found, long long start)
