cimport cython

from cometmq.protocol cimport hashing, octets
from cometmq.protocol cimport properties as property_text
from cometmq.protocol.properties cimport tags_code_of, value_of
from cometmq.store.queues.batch_consume_queue cimport BatchConsumeQueue
from cometmq.store.queues.consume_queue cimport ConsumeQueue
from cometmq.store.index.key_index cimport Index


cdef int _INNER_BATCH


cdef class TopicQueues:
    cdef readonly str name
    cdef readonly bint long_name
    cdef readonly bytes field
    cdef readonly int key_seed
    cdef readonly bint is_delay
    cdef readonly dict queues


cdef class QueueTable:
    cdef object _make
    cdef object _move_units
    cdef readonly dict topics
    cdef readonly object unsynced

    @cython.locals(found=TopicQueues)
    cpdef ConsumeQueue find(self, str topic, long long queue_id)
    @cython.locals(queue=ConsumeQueue)
    cpdef ConsumeQueue queue(self, TopicQueues topic, long long queue_id)
    cpdef ConsumeQueue add(self, TopicQueues topic, long long queue_id, object holds_batches)
    @cython.locals(queue=ConsumeQueue)
    cpdef ConsumeQueue queue_for(self, TopicQueues topic, long long queue_id, int sys_flag)
    cpdef ConsumeQueue hold_batches(self, TopicQueues topic, ConsumeQueue queue)


cdef class Dispatcher:
    cdef Index _index
    cdef str _delay_levels
    cdef object _levels
    cdef public object bitmap_of
    cdef public int at_once

    cpdef long long dispatch(
        self, TopicQueues topic, ConsumeQueue queue, long long log_offset, int size,
        long long queue_offset, int sys_flag, long long store_ms, bytes properties) except? -1

    cpdef add_keys(self)

    @cython.locals(
        kind=cython.int, tags_code=cython.longlong, tags_at=cython.Py_ssize_t,
        tags_end=cython.Py_ssize_t, keys_at=cython.Py_ssize_t, keys_end=cython.Py_ssize_t,
        id_at=cython.Py_ssize_t, id_end=cython.Py_ssize_t, bitmap=bytes, count=cython.int,
        batches=BatchConsumeQueue)
    cdef long long dispatch_in(
        self, TopicQueues topic, ConsumeQueue queue, long long log_offset, int size,
        long long queue_offset, int sys_flag, long long store_ms, const unsigned char* memory,
        Py_ssize_t at, Py_ssize_t end) except? -1
    cpdef long long tags_code(
        self, TopicQueues topic, long long store_ms, bytes properties) except? -1
    cdef long long _due_ms(self, long long store_ms, bytes properties) except? -1
    @cython.locals(index=Index, stop=cython.Py_ssize_t, hashed=cython.int)
    cdef _put_keys(
        self, int seed, long long log_offset, long long store_ms, const unsigned char* memory,
        Py_ssize_t at, Py_ssize_t end, Py_ssize_t id_at, Py_ssize_t id_end)
