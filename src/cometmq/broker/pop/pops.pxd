cimport cython

from cometmq.broker.pop.check_points cimport CheckPoint, CheckPoints, PoppedQueue
from cometmq.broker.pop.held_pops cimport HeldPop
from cometmq.broker.pop.part cimport PopPart
from cometmq.broker.pop.receipts cimport offsets_text
from cometmq.broker.stats.counters cimport BrokerStats
from cometmq.protocol.command cimport Command
from cometmq.remoting.requests cimport Request, Response, SuccessFormat
from cometmq.store.queues.queue_reader cimport GetResult, QueueReader


cdef class Taken:
    cdef public str flag
    cdef public str topic
    cdef public int queue_id
    cdef public long long start
    cdef public object offsets
    cdef public GetResult found


cdef class _Reading:
    cdef public long long left
    cdef public object settings
    cdef public bint is_peek
    cdef public long long rest
    cdef public list taken
    cdef public bint is_full
    cdef public bint reads_on
    cdef public CheckPoints points
    cdef public long long blocked_to_ms


cdef class Delivery:
    cdef public Pop pop
    cdef public _Reading reading
    cdef public long long now_ms
    cdef public long long pop_ms
    cdef public int revive_queue
    cdef public list points


cdef class Pop(HeldPop):
    cdef public PopHandler handler
    cdef public Request request
    cdef public object header
    cdef public _Reading read_before
    cdef public int cold_reads
    cdef public object accounts
    cdef public object unblocking

    cpdef rerun(self)
    cpdef fail(self, object problem)


cdef class PopHandler(PopPart):
    cdef object _groups
    cdef object _cold_reads
    cdef BrokerStats _stats
    cdef object _settings
    cdef object _access
    cdef readonly object mixed
    cdef object _tasks
    cdef object _new_pops
    cdef bint _waits_for_end
    cdef SuccessFormat _found_json
    cdef SuccessFormat _found_binary

    cpdef object pop(self, Request request)
    @cython.locals(together=list, end_s=cython.double, pop=Pop)
    cdef object _run_new(self)
    @cython.locals(each=Delivery)
    cdef object _store_together(self, list together)
    @cython.locals(
        now_ms=cython.longlong, born_ms=cython.longlong, poll_ms=cython.longlong, pop=Pop)
    cdef Pop _new(self, Request request)
    @cython.locals(request=Request)
    cpdef object rerun(self, Pop pop)
    @cython.locals(now_ms=cython.longlong, left=cython.longlong, reading=_Reading)
    cpdef object _run(self, Pop pop, list together=*)
    @cython.locals(reading=_Reading)
    cdef _Reading _reading(
        self, Pop pop, object matcher, long long left, object settings, bint is_peek=*)
    cdef bint _hold(self, Pop pop, long long now_ms, long long blocked_to_ms) except -1
    cdef object _matcher(self, object header)
    @cython.locals(
        group=str, offset=cython.longlong, until_ms=cython.longlong, found=GetResult)
    cpdef object _read(
        self, Pop pop, str flag, str topic, int queue_id, object matcher, _Reading reading)
    @cython.locals(
        reader=QueueReader, count=cython.longlong, cold=list, found=GetResult,
        is_stuck=cython.bint)
    cdef GetResult _get(
        self, Pop pop, str topic, int queue_id, long long offset, object matcher,
        _Reading reading)
    @cython.locals(queue=PoppedQueue)
    cdef bint _is_over_limit(
        self, str group, str topic, int queue_id, object settings) except -1
    @cython.locals(low=cython.longlong, high=cython.longlong)
    cdef long long _left_behind(self, str topic, int queue_id, long long offset) except -1
    @cython.locals(low=cython.longlong, high=cython.longlong, first=cython.longlong)
    cdef long long _offset(self, object header, str topic, int queue_id, bint is_peek) except -1
    cdef bint _is_young(self, str topic, int queue_id, long long low) except -1
    @cython.locals(queue=cython.int, pop_ms=cython.longlong, delivery=Delivery, each=Taken)
    cdef Delivery _take(self, Pop pop, _Reading reading, long long now_ms)
    @cython.locals(points=list, delivery=Delivery, taken=Taken)
    cdef long long _store_points(self, list deliveries) except -1
    @cython.locals(pop=Pop, reading=_Reading, each=Taken)
    cdef object _deliver(self, Delivery delivery, long long log_end)
    @cython.locals(waits=cython.bint, log_end=cython.longlong)
    cdef object _deliver_in_order(self, Pop pop, _Reading reading, long long now_ms)
    @cython.locals(each=Taken, found=GetResult)
    cdef object _count(self, Pop pop, _Reading reading)
    @cython.locals(points=CheckPoints, free_ms=cython.longlong, each=Taken)
    cdef long long _free_pop_ms(self, str group, _Reading reading, long long pop_ms) except -1
    @cython.locals(queue=PoppedQueue)
    cdef object _compare_pulls(self, str group, str topic, int queue_id, long long now_ms)
    cdef int _revive_queue(self, long long invisible_ms, object settings) except -1
    @cython.locals(each=Taken)
    cdef str _note_order(self, Pop pop, _Reading reading, long long now_ms)
    @cython.locals(command=Command, success=SuccessFormat, body=list, body_bytes=cython.Py_ssize_t)
    cdef object _succeed(self, Pop pop, _Reading reading, long long pop_ms, int revive_queue)
    cdef Response _response(
        self, Pop pop, _Reading reading, long long pop_ms, int revive_queue, str counts=*)
    @cython.locals(each=Taken)
    cdef list _body(self, Pop pop, _Reading reading, long long pop_ms, int revive_queue)
    @cython.locals(pop=Pop)
    cpdef object peek(self, Request request)
    @cython.locals(reading=_Reading, response=Response)
    cpdef object _run_peek(self, Pop pop)


@cython.locals(each=Taken)
cdef str _starts_text(_Reading reading)
@cython.locals(each=Taken)
cdef str _offsets_text(_Reading reading)
@cython.locals(part=object, at=cython.Py_ssize_t, offsets=list)
cdef object _offsets_of(GetResult found, long long start)
