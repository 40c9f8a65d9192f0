cimport cython

from cometmq.broker.sending.send cimport Send
from cometmq.protocol cimport octets
from cometmq.protocol cimport properties as property_text


cdef bytes _END, _WAIT, _WAITS, _UNIQUE_KEY, _MAY_NEED_IT
cdef int _UNCOMMON, _PROPERTIES_MAX, _COMPLETE, _NEEDS_ID, _NEEDS_REWRITE


cdef class SendValidation:
    cdef public object rules
    cdef object _topics
    cdef object _groups
    cdef object _levels
    cdef object _timers
    cdef object _holds_locks
    cdef object _new_unique_key
    cdef object _now_ms
    cdef object _queue_chance
    cdef public object check_session
    cdef public dict static_topics
    cdef dict _broker_properties
    cdef bytes _suffix
    cdef bytes _batch_suffix
    cdef Py_ssize_t _body_bytes_max
    cdef bint _checks_all
    cdef dict _configs
    cdef str _topic
    cdef object _config
    cdef long long _unchecked_queues

    cpdef forget_topic(self)

    @cython.locals(
        topic=str, config=object, more=bytes, found=cython.int, text=cython.p_uchar)
    cpdef bint route_common(self, Send send) except -1
    cdef long long _count_unchecked_queues(self, str topic, object config) except -1
    @cython.locals(header=object)
    cpdef route(self, Send send)
    @cython.locals(header=object)
    cpdef route_logical(self, Send send)
    cdef _check_session(self, object header)
    cpdef check_and_route(self, Send send)
    cdef _route_message(self, Send send, object header)
    cdef _route_batch(self, Send send, object header, object config)
    cdef _rewrite(self, Send send, object properties)
    @cython.locals(
        body_bytes=cython.Py_ssize_t, text_bytes=cython.Py_ssize_t, text=cython.p_uchar)
    cdef _check_size(self, Send send)
    cdef _route_rewritten(self, Send send, object header)


@cython.locals(
    found=cython.int, start=cython.Py_ssize_t, stop=cython.Py_ssize_t, first=cython.uchar,
    size=cython.Py_ssize_t)
cdef int _scan_properties(
    Send send, const unsigned char* text, Py_ssize_t at, Py_ssize_t end) except -1

cdef int _search_properties(Send send, bytes text) except -1

cdef bint _is_only_wait(
    const unsigned char* text, Py_ssize_t at, Py_ssize_t end) noexcept
