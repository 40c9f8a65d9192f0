cimport cython

from cometmq.protocol.octets cimport copy_of


cdef class NewRecord:
    cdef public str topic
    cdef public long long queue_id
    cdef public object source
    cdef public Py_ssize_t body_at
    cdef public Py_ssize_t body_end
    cdef public object text
    cdef public Py_ssize_t text_at
    cdef public Py_ssize_t text_end
    cdef public bytes more
    cdef public int flag
    cdef public int sys_flag
    cdef public long long born_time_ms
    cdef public bytes born_host
    cdef public bytes store_host
    cdef public int reconsume_times
    cdef public long long prepared_offset
    cdef int magic
    cdef unsigned int body_crc
    cdef bytes topic_field
    cdef Py_ssize_t properties_bytes
    cdef readonly int size_bytes
    cdef readonly long long log_offset
    cdef readonly long long queue_offset
    cdef readonly long long store_time_ms
