cimport cython

from cometmq.broker.sending.validation cimport SendValidation, Target
from cometmq.broker.stats.counters cimport BrokerStats
from cometmq.protocol.octets cimport copy_of, put_hex, two_u32
from cometmq.remoting.exchange cimport Request, Response, SuccessFormat
from cometmq.store.appending cimport Appended, AppendedBatch, Appender


cdef class SendHandler:
    cdef object _store
    cdef object _segment
    cdef readonly Appender appender
    cdef readonly SendValidation validation
    cdef readonly object flow
    cdef readonly BrokerStats stats
    cdef object _throughput
    cdef double _began_s
    cdef object _commit
    cdef readonly bytes store_host
    cdef str _id_prefix
    cdef bytes _id_pattern
    cdef int _host_flag
    cdef object _rules
    cdef dict _trace_fields
    cdef readonly SuccessFormat success
    cdef readonly SuccessFormat batch_success

    cpdef follow_rules(self)

    @cython.locals(began_s=cython.double, took_ms=cython.long)
    cpdef object handle(self, Request request)

    @cython.locals(placement=Target, host=bytes, stored=Appended, place=tuple)
    cdef _store_one(self, Request request, object header)
    @cython.locals(
        space=bytearray, step=cython.Py_ssize_t, at=cython.Py_ssize_t, number=cython.Py_ssize_t,
        high=cython.ulonglong, low=cython.uint)
    cpdef bytes ids_of(self, AppendedBatch batch)
    cpdef int host_flags(self, bytes born_host) except? -1
    cdef int _sys_flag(self, object header, bytes born_host) except? -1
    cdef _succeed(self, Request request, SuccessFormat success, tuple place)
