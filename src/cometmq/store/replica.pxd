cimport cython

from cometmq.store.log cimport record_layout
from cometmq.store.appender cimport Appender
from cometmq.store.log.commit_log cimport CommitLog
from cometmq.store.queues.consume_queue cimport ConsumeQueue
from cometmq.store.queues.dispatch cimport QueueTable, TopicQueues
from cometmq.store.index.key_index cimport Index
from cometmq.store.log.record_scan cimport RecordFacts, read_facts
from cometmq.store.log.segments cimport Segment


cdef int _KEYS_EXPECTED, _TOPICS_MAX, _PREFIX_BYTES, _V1, _V2, _BLANK, _BYTES_MIN, _MAGIC_AT


cdef class Replica:
    cdef CommitLog _log
    cdef QueueTable _table
    cdef Index _index
    cdef Appender _appender
    cdef dict _topics
    cdef readonly long long received_to

    @cython.locals(
        start=cython.longlong, at=cython.longlong, end=cython.longlong, store_ms=cython.longlong,
        segment=Segment, position=cython.Py_ssize_t, total=cython.int)
    cdef _dispatch_whole(self)
    @cython.locals(total=cython.int, magic=cython.int, left=cython.longlong)
    cdef int _size_at(self, Segment segment, Py_ssize_t position) except -1
    @cython.locals(
        facts=RecordFacts, store_ms=cython.longlong, topic=TopicQueues, queue=ConsumeQueue)
    cdef long long _dispatch(self, Segment segment, Py_ssize_t position) except? -1
    cdef TopicQueues _topic(self, bytes name)
