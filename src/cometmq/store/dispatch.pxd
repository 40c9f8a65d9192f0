cimport cython

from cometmq.protocol.hashing cimport extend_hash, index_hash, java_hash
from cometmq.protocol.properties cimport index_keys_of, tags_code_of, value_of
from cometmq.store.consume_queue cimport ConsumeQueue
from cometmq.store.index cimport Index, IndexFile


cdef class TopicQueues:
    cdef readonly str name
    cdef readonly bint long_name
    cdef readonly bytes field
    cdef readonly int key_seed
    cdef readonly bint is_delay
    cdef readonly dict queues


cdef class QueueTable:
    cdef object _make
    cdef readonly dict topics

    @cython.locals(found=TopicQueues)
    cpdef ConsumeQueue find(self, str topic, long long queue_id)
    @cython.locals(queue=ConsumeQueue)
    cpdef ConsumeQueue queue(self, TopicQueues topic, long long queue_id)


cdef class Dispatcher:
    cdef Index _index
    cdef dict _delays_ms
    cdef int _max_level

    @cython.locals(kind=cython.int, tags_code=cython.longlong)
    cpdef long long dispatch(
        self, TopicQueues topic, ConsumeQueue queue, long long log_offset, int size,
        long long queue_offset, int sys_flag, long long store_ms, bytes properties) except? -1
    cpdef long long tags_code(
        self, TopicQueues topic, long long store_ms, bytes properties) except? -1
    cdef long long _due_ms(self, long long store_ms, bytes properties) except? -1
    @cython.locals(index=Index, newest=IndexFile, keys=list, key=bytes)
    cdef _put_keys(self, int seed, long long log_offset, long long store_ms, bytes properties)
