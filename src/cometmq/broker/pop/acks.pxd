cimport cython

from cometmq.broker.pop.check_points cimport CheckPoint, CheckPoints
from cometmq.broker.pop.part cimport PopPart
from cometmq.broker.pop.receipts cimport Receipt, read_receipt
from cometmq.remoting.requests cimport Request, Response


cdef class _Write:
    cdef readonly CheckPoints points
    cdef readonly dict bits
    cdef readonly list requests
    cdef readonly list ends
    cdef public int attempts


cdef class AckHandler(PopPart):
    cdef object _settings
    cdef _Write _write
    cdef readonly object ack
    cdef readonly object change
    cdef object _tasks
    cdef readonly long long acked

    @cython.locals(
        offset=cython.longlong, low=cython.longlong, high=cython.longlong, receipt=Receipt,
        topic=str, queue_id=cython.longlong, point=CheckPoint)
    cpdef object _ack(self, Request request)
    cdef object _prepare(self)
    cdef object _check_queue(self, str topic, long long queue_id)
    @cython.locals(points=CheckPoints)
    cdef CheckPoint _find(self, str group, str topic, long long queue_id, Receipt receipt)
    cdef bint _may_be_early(self, Receipt receipt) except -1
    cpdef object ack_batch(self, Request request)
    @cython.locals(acks=dict)
    cpdef object _ack_few(self, Request request, object body)
    @cython.locals(acks=dict, topic=str, receipt=Receipt, point=CheckPoint)
    cpdef tuple _acks_of(self, object items)
    @cython.locals(receipt=Receipt, point=CheckPoint, renewed=CheckPoint)
    cpdef object _change(self, Request request)
    cdef object _note(self, CheckPoint point, object bits)
    @cython.locals(point=CheckPoint)
    cdef object _note_all(self, dict acks)
    cdef object _respond_when_stored(self, Request request)
    cdef object _end_full_write(self)
    cpdef object _end_write(self, _Write write)
    cpdef object _finish(self, _Write write)
    @cython.locals(point=CheckPoint, bits=dict)
    cdef object _append(self, _Write write)
    @cython.locals(point=CheckPoint)
    cpdef object _fail(self, _Write write, object problem)


cdef list _offsets_in(object start, object bits)
cdef object _bits_in(CheckPoint point, object bits)
