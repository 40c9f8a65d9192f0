cimport cython

from cometmq.protocol cimport octets
from cometmq.protocol.properties cimport value_of
from cometmq.protocol.record cimport body_at, store_time_at

cdef int _STORE_V6, _COMPRESSED, _V1, _V2, _SIZE_MIN
cdef int _MAGIC_AT, _QUEUE_OFFSET_AT, _SYS_FLAG_AT, _HEAD_BYTES, _V6_BITS, _LENGTH_BYTES
cdef int _BODY_CRC_AT, _QUEUE_ID_AT, _FLAG_AT, _LOG_OFFSET_AT, _BORN_TIME_AT, _STORE_TIME_AT
cdef int _RETRIES_BYTES, _PREPARED_BYTES


cdef class LazyMessage:
    cdef bytes _record
    cdef object _added, _topic, _body, _properties, _born_host, _store_host, _offset_message_id
    cdef public object broker_name
    cdef int _sys_flag
    cdef public int body_crc, queue_id, flag, reconsume_times
    cdef public long long size_bytes, queue_offset, log_offset, born_time_ms, store_time_ms
    cdef public long long prepared_offset


@cython.locals(content=bytes, messages=list)
cpdef list decode_lazily(object data, str broker_name=*, object added=*)

@cython.locals(
    memory=cython.p_uchar, size=cython.Py_ssize_t, messages=list, record=bytes)
cpdef list decode_between(
    object data, Py_ssize_t position, Py_ssize_t end, str broker_name, object added)

@cython.locals(size=cython.Py_ssize_t, position=cython.Py_ssize_t)
cdef object _reason(bytes data)

@cython.locals(message=LazyMessage, last=cython.longlong, found=cython.bint)
cpdef bint check_rising(list messages, int flags) except -1

@cython.locals(message=LazyMessage, flag=cython.int, body=cython.Py_ssize_t, stored=cython.Py_ssize_t)
cdef LazyMessage _message_of(bytes record, Py_ssize_t size, str broker_name, object added)

@cython.locals(message=LazyMessage)
cpdef check_packages(list messages)

@cython.locals(received=LazyMessage)
cpdef bytes stored_body(object message)

@cython.locals(received=LazyMessage)
cpdef int stored_sys_flag(object message) except? -1

@cython.locals(received=LazyMessage, record=bytes)
cpdef object as_received(object message)

@cython.locals(received=LazyMessage)
cpdef restore(object message)

@cython.locals(
    size=cython.Py_ssize_t, magic=cython.int, wide=cython.int, flag=cython.int, body=cython.Py_ssize_t,
    topic_at=cython.Py_ssize_t, topic_bytes=cython.Py_ssize_t, properties_at=cython.Py_ssize_t,
    properties_bytes=cython.Py_ssize_t)
cdef Py_ssize_t whole_size(const unsigned char* memory, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(at=cython.Py_ssize_t, flag=cython.int)
cdef bytes _stored_body(bytes record)

cdef _property(LazyMessage message, str name, bytes name_marker)

@cython.locals(at=cython.Py_ssize_t)
cdef bytes _property_text(bytes record)

cdef int _flag_of(bytes record) except? -1

cdef Py_ssize_t _topic_at(bytes record) except -1

@cython.locals(at=cython.Py_ssize_t)
cdef Py_ssize_t _topic_end(bytes record) except -1
