cdef short get_i16(const unsigned char* memory, Py_ssize_t position) noexcept
cdef int get_i32(const unsigned char* memory, Py_ssize_t position) noexcept
cdef long long get_i64(const unsigned char* memory, Py_ssize_t position) noexcept
cdef void put_i16(unsigned char* memory, Py_ssize_t position, int value) noexcept
cdef void put_i32(unsigned char* memory, Py_ssize_t position, int value) noexcept
cdef void put_i64(unsigned char* memory, Py_ssize_t position, long long value) noexcept
cdef void put_bytes(unsigned char* memory, Py_ssize_t position, bytes data) noexcept
