cimport cython

from cometmq.broker.pop.check_points cimport CheckPoint
from cometmq.broker.pop.receipts cimport offsets_text


cpdef bytes properties_of(bytes tag, long long now_ms)
@cython.locals(distances=str)
cpdef bytes check_point_body(CheckPoint point, str broker)
@cython.locals(broker=str, invisible=str, next_offset=str)
cpdef bytes acks_body(object ack)
