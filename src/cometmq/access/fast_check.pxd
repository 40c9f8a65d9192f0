cimport cython

from cometmq.protocol.signature cimport SigningKey
from cometmq.protocol.signed_fields cimport SignedFields


cdef class FastCheck:
    cdef readonly SignedFields fields
    cdef object _accounts
    cdef object _action
    cdef object _state
    cdef object _wire
    cdef bytes _key
    cdef object _account
    cdef object _allowed
    cdef str _topic
    cdef str _group

    @cython.locals(key=bytes, fields=SignedFields, content=bytes, signing_key=SigningKey)
    cpdef bint allows(
        self, object wire, bytearray data, bytearray unescaped, Py_ssize_t body_at,
        Py_ssize_t body_end, str topic, str group) except -1

    cpdef release(self)
    cdef _find(self, object wire, bytes key)
    cdef bint _may(self, object account, str topic, str group) except -1
