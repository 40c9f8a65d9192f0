cimport cython

from cometmq.protocol.message_id cimport UniqueIds


cdef int _SEND, _SEND_REPLY


cdef class Outgoing:
    cdef readonly object topic
    cdef readonly object message
    cdef readonly object message_id
    cdef readonly bytes body
    cdef readonly str properties
    cdef readonly int sys_flag
    cdef readonly long long flag
    cdef readonly bint is_batch
    cdef readonly int code
    cdef readonly object reconsume_times
    cdef readonly object max_reconsume_times


@cython.locals(outgoing=Outgoing, fields=tuple, is_reply=cython.bint, is_retry=cython.bint,
    is_plain=cython.bint, times=cython.int, sys_flag=cython.int)
cpdef Outgoing prepare(
    message, settings, UniqueIds ids, namespace=*, reserved=*, bint trusted=*, int compressed=*)

cpdef check_fields(message)

cdef _check_types(topic, properties)

cdef tuple _fields(message)

cdef _check_values(tuple fields, Py_ssize_t body_bytes_max, bint trusted)

cdef str _text(flag)
