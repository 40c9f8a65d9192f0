from cometmq.broker.pulling.long_polling cimport HeldPull


cdef class HeldPop(HeldPull):
    cdef readonly str group
    cdef readonly str name
    cdef public long long ends_ms
    cdef public bint was_held
