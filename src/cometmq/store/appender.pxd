cimport cython

from cometmq.protocol cimport batch, checksum, octets
from cometmq.protocol cimport properties as property_text
from cometmq.store.log.commit_log cimport CommitLog
from cometmq.store.queues.consume_queue cimport ConsumeQueue
from cometmq.store.queues.dispatch cimport Dispatcher, QueueTable, TopicQueues
from cometmq.store.index.key_index cimport Index
from cometmq.store.log cimport record_layout
from cometmq.store.log.new_record cimport NewRecord
from cometmq.store.log.record_scan cimport RecordFacts
from cometmq.store.log.segments cimport Segment


cdef int _KEYS_EXPECTED, _HOST_V4_BYTES, _HOST_V6_BYTES, _V6_EXTRA_BYTES
cdef int _BORN_V6, _STORE_V6, _V6_BITS, _PREPARED, _AS_ONE
cdef int _FIXED_BYTES, _PROPERTIES_MAX, _MARGIN_BYTES, _V1, _V2, _CRC_MASK


cdef class Appended:
    cdef readonly long long log_offset
    cdef readonly int size_bytes
    cdef readonly long long queue_offset
    cdef readonly long long store_time_ms


cdef class AppendedBatch:
    cdef readonly Py_ssize_t count
    cdef readonly bytearray packed_offsets
    cdef readonly int size_bytes
    cdef readonly long long queue_offset
    cdef readonly long long store_time_ms
    cdef readonly long long log_offset_end


cdef class Appender:
    cdef CommitLog _log
    cdef QueueTable _table
    cdef dict _topics
    cdef Index _index
    cdef Dispatcher _dispatcher
    cdef object _now_ms
    cdef bint _long_topics
    cdef public long long message_bytes_max
    cdef public object refusal
    cdef public bint is_copy
    cdef public object on_arrival
    cdef public dict awaited
    cdef public object on_failure
    cdef public object on_written
    cdef TopicQueues _queues
    cdef ConsumeQueue _queue
    cdef bytes _checked_more
    cdef bint _deferred
    cdef long long _deferred_ms
    cdef public object on_finish_deferred
    cdef long long _undispatched_at
    cdef long long _caught_up_to
    cdef long long _units_to
    cdef public object on_new_topics
    cdef list _arrivals
    cdef list _late_arrivals
    cdef Py_ssize_t _late_written

    cpdef Appended append(self, NewRecord record)
    @cython.locals(whole=cython.longlong, record=NewRecord)
    cpdef list append_all(self, list records)
    cpdef Appended _append(self, NewRecord record)
    cpdef AppendedBatch append_batch(self, NewRecord record)
    @cython.locals(source=cython.p_uchar, text=cython.p_uchar, kind=cython.int)
    cdef put(self, NewRecord record)
    @cython.locals(
        source=cython.p_uchar, start=cython.Py_ssize_t, stop=cython.Py_ssize_t, item=NewRecord,
        extra=cython.int, whole=cython.longlong, packed_offsets=bytearray,
        offsets=cython.p_uchar, field_bytes=cython.Py_ssize_t, position=cython.Py_ssize_t,
        count=cython.Py_ssize_t)
    cdef AppendedBatch put_batch(self, NewRecord record)

    cpdef Appended append_as_one(self, NewRecord record)
    @cython.locals(source=cython.p_uchar)
    cdef Py_ssize_t put_as_one(self, NewRecord record) except -1
    cdef _prepare(self, NewRecord record, const unsigned char* text)
    @cython.locals(queues=TopicQueues, queue=ConsumeQueue)
    cdef _find_queue(self, NewRecord record)
    cdef long long _store_ms(self) except -1
    @cython.locals(queues=TopicQueues, filled=cython.Py_ssize_t)
    cdef _write(self, NewRecord record, const unsigned char* source, const unsigned char* text)
    @cython.locals(body_bytes=cython.longlong, total=cython.longlong)
    cdef long long _record_bytes(self, NewRecord record) except -1
    cdef _make_room(self, ConsumeQueue queue, long long total, long long count)
    @cython.locals(tags_code=cython.longlong, properties=bytes)
    cdef _dispatch(
        self, TopicQueues queues, ConsumeQueue queue, long long log_offset, int total,
        long long queue_offset, int sys_flag, long long store_ms, const unsigned char* memory,
        Py_ssize_t at, Py_ssize_t end)
    @cython.locals(end=cython.Py_ssize_t)
    cpdef dispatch_copied(
        self, TopicQueues queues, ConsumeQueue queue, RecordFacts facts, Segment segment)
    cpdef finish_copied(self)
    cdef bint _has_listener(self, TopicQueues queues) except -1
    cpdef finish_deferred(self)
    cpdef defer(self)
    cpdef write_staged(self)
    cdef _notify(self)
    @cython.locals(start=cython.longlong, end=cython.longlong)
    cpdef catch_up(self)
    @cython.locals(tags_code=cython.longlong, queues=TopicQueues, properties=bytes)
    cdef _notify_late(self)
    cpdef long long backlog_bytes(self) except -1
    cpdef long long unreadable_bytes(self) except -1
    cdef long long _backlog_start(self) except -1
    @cython.locals(written_to=cython.longlong, indexed_to=cython.longlong)
    cdef long long _indexed_to(self) except -1
    cdef object _log_failed(self, object problem)
    cdef TopicQueues _new_topic(self, str topic)
    cdef ConsumeQueue _new_queue(self, TopicQueues queues, long long queue_id)


@cython.locals(appended=Appended)
cdef Appended _appended(NewRecord record)
cdef long long _size_of(long long field_bytes, NewRecord record) noexcept

@cython.locals(born_extra=cython.int, store_extra=cython.int)
cdef int _take_hosts(NewRecord record) except -1
cdef int _extra_of(bytes host) except -1

@cython.locals(item=NewRecord)
cdef NewRecord _item_of(NewRecord batch_record)
cdef Py_ssize_t _take_item(
    NewRecord item, const unsigned char* source, Py_ssize_t position, Py_ssize_t stop) except -1

cdef _check_text(const unsigned char* text, Py_ssize_t at, Py_ssize_t end)
