cimport cython

from cometmq.protocol.signature cimport SigningKey
from cometmq.protocol.signed_fields cimport RequestCheck, SignedFields

cdef int _SENDERS_MAX, _USES_MAX


cdef class FastSender:
    cdef readonly object account
    cdef readonly SigningKey signing_key
    cdef readonly set allowed


cdef class FastCheck(RequestCheck):
    cdef object _accounts
    cdef object _action
    cdef object _state
    cdef dict _senders
    cdef readonly int uses
    cdef object _wire
    cdef FastSender _sender

    @cython.locals(content=bytes, sender=FastSender, signing_key=SigningKey)
    cpdef bint allows(
        self, object wire, SignedFields fields, bytearray data, bytearray unescaped,
        Py_ssize_t body_at, Py_ssize_t body_end, str topic, str group) except -1

    cpdef release(self)
    cdef _find(self, object wire, bytes key)
    cdef _forget(self)
    cdef bint _may(self, FastSender sender, object use, str topic, str group) except -1
