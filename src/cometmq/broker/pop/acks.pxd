cimport cython

from cometmq.broker.pop.check_points cimport CheckPoint


cdef list _offsets_in(object start, object bits)
cdef object _bits_in(CheckPoint point, object bits)
