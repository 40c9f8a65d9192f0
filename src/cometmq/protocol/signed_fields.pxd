cimport cython

from cometmq.protocol cimport header_scanner, octets

cdef int _FIELDS_MAX, _NAME_BYTES, _ESCAPED
cdef bytes _ACCESS_KEY, _SIGNATURE


cdef class SignedFields


cdef class RequestCheck:
    cdef readonly bytes key

    cpdef bint allows(
        self, object wire, SignedFields fields, bytearray data, bytearray unescaped,
        Py_ssize_t body_at, Py_ssize_t body_end, str topic, str group) except -1
    cpdef release(self)


cdef class SignedFields:
    cdef readonly bint is_usable
    cdef int _count
    cdef Py_ssize_t _key_at
    cdef Py_ssize_t _key_end
    cdef Py_ssize_t _signature_at
    cdef Py_ssize_t _signature_end
    cdef int _names[64]
    cdef int _name_ends[64]
    cdef int _values[64]
    cdef int _value_ends[64]
    cdef bint _escaped[64]
    cdef int _order[64]

    cpdef begin(self)

    @cython.locals(
        size=cython.Py_ssize_t, count=cython.int, place=cython.int, other=cython.int,
        compared=cython.Py_ssize_t, is_of_account=cython.bint)
    cdef bint note(
        self, const unsigned char* memory, Py_ssize_t name, Py_ssize_t name_end, Py_ssize_t at,
        Py_ssize_t end, int kind) except -1

    cdef bint has_access_key(self, bytearray data, bytes key) except -1
    cpdef bytes access_key(self, bytearray data)
    cpdef bytes signature(self, bytearray data)

    @cython.locals(
        size=cython.Py_ssize_t, at=cython.int, place=cython.int, filled=cython.Py_ssize_t,
        value=cython.Py_ssize_t, value_bytes=cython.Py_ssize_t, space=cython.p_uchar,
        memory=cython.p_uchar, other=cython.p_uchar, source=cython.p_uchar, content=bytes)
    cpdef bytes content(
        self, bytearray data, bytearray unescaped, Py_ssize_t body_at, Py_ssize_t body_end)


@cython.locals(other_size=cython.Py_ssize_t, least=cython.Py_ssize_t, compared=cython.int)
cdef Py_ssize_t _compare(
    const unsigned char* memory, Py_ssize_t name, Py_ssize_t size, Py_ssize_t other,
    Py_ssize_t other_end) noexcept
