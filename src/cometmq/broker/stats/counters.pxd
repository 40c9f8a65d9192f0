cimport cython

from cometmq.broker.stats.windows cimport Cell, StoredCell

cdef long long _SMALL_BYTES_MAX


cdef class BrokerStats:
    cdef object _cluster
    cdef object _clock
    cdef object _is_system_topic
    cdef object _cells
    cdef dict _puts
    cdef dict _gets
    cdef dict _named
    cdef object _named_count
    cdef object _system_puts
    cdef object _system_gets
    cdef object _dropped_system_puts
    cdef object _dropped_system_gets
    cdef public long long put_messages
    cdef public long long put_bytes
    cdef public long long put_failures
    cdef public long long get_messages
    cdef public long long get_found
    cdef public long long get_missed

    @cython.locals(queues=dict, cell=StoredCell)
    cpdef put(self, str topic, int queue_id, int messages, long long size_bytes)

    @cython.locals(queues=dict, cell=Cell, key=tuple)
    cpdef got(self, str group, str topic, int queue_id, int messages, long long size_bytes)
