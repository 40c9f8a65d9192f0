cimport cython

from cometmq.broker.services.intake cimport Intake, Placement
from cometmq.remoting.exchange cimport Request, Response, SuccessFormat
from cometmq.store.appending cimport Appended, Appender


cdef class SendMessage:
    cdef object _store
    cdef Appender _appender
    cdef Intake _intake
    cdef object _flow
    cdef object _stats
    cdef object _throughput
    cdef double _began_s
    cdef object _commit
    cdef bytes _store_host
    cdef str _id_prefix
    cdef str _id_format
    cdef int _host_flag
    cdef object _rules
    cdef dict _trace_fields
    cdef SuccessFormat _success
    cdef SuccessFormat _batch_success

    @cython.locals(began_s=cython.double, took_ms=cython.long)
    cpdef object handle(self, Request request)

    @cython.locals(placement=Placement, host=bytes, stored=Appended, place=tuple)
    cdef _store_one(self, Request request, object header)
    cdef int _sys_flag(self, object header, bytes born_host) except? -1
    cdef _succeed(self, Request request, SuccessFormat success, tuple place)
