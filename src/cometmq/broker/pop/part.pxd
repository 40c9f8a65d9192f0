from cometmq.store.queues.queue_reader cimport QueueReader


cdef class PopPart:
    cdef readonly object _core
    cdef readonly object _store
    cdef readonly QueueReader _reader
    cdef readonly object _topics
    cdef readonly object _offsets
    cdef readonly object _clock
    cdef readonly object _role
    cdef readonly object _log
    cdef readonly object _orders
    cdef readonly object _held
    cdef readonly object _durability
    cdef readonly object _changed
