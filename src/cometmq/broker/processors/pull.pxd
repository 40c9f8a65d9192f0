cimport cython

from cometmq.broker.services.long_polling cimport HeldPulls
from cometmq.broker.services.stats cimport BrokerStats
from cometmq.remoting.exchange cimport Request, Response


cdef int _FOUND, _NOT_FOUND, _RETRY, _MOVED
cdef int _COMMIT_OFFSET, _SUSPEND, _SUBSCRIPTION
cdef int _READ, _LITE_PULL


cdef class PullMessages:
    cdef object _store
    cdef object _topics
    cdef object _groups
    cdef object _consumers
    cdef object _offsets
    cdef HeldPulls _held
    cdef object _settings
    cdef BrokerStats _stats

    cpdef object pull(self, Request request)
    cpdef object rerun(self, Request request, object header)

    @cython.locals(response=Response, code=cython.int, may_hold=cython.bint)
    cdef Response _run(self, Request request, object header, bint may_hold)
    cdef object _check_group(self, Request request, object header, object settings)
    cdef object _check_topic(self, Request request, object header)
    cdef object _matcher(self, object header, object group, object settings)
    cdef Response _pending_reset(self, object header, object settings)
    cdef object _read(self, object header, object matcher)
    cdef Response _answer(
        self, object header, object group, object result, int code, object settings)


cdef int _code_of(object result, object requested_offset) except -1
cdef dict _fields(object suggested_broker, object next_offset, object low, object high)
