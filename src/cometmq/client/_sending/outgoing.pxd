cimport cython


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


@cython.locals(outgoing=Outgoing, body=bytes, is_reply=cython.bint)
cpdef Outgoing prepare(
    message, settings, ids, namespace=*, reserved=*, bint trusted=*)

cpdef check_fields(message)

cpdef check_message(message, topic, Py_ssize_t body_bytes_max, bint trusted=*)

cdef bint _is_plain(message) except -1

cdef str _text(flag)
