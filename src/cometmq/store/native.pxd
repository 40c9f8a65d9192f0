# What the compilers of C have beyond C itself; the modules that use it are compiled by one of them.

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void* address, int for_writing) noexcept
