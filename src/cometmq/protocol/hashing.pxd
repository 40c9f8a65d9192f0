cimport cython

cpdef int java_hash(str text)
cpdef int index_hash(int key_hash)

cpdef int extend_hash(int hash_of_prefix, bytes data)

@cython.locals(
    hashed=cython.uint, seen=cython.uint, place=cython.p_uchar, left=cython.Py_ssize_t)
cdef int extend_hash_in(
    int hash_of_prefix, const unsigned char* memory, Py_ssize_t at, Py_ssize_t end)

@cython.locals(hashed=cython.uint, unit=cython.uchar)
cdef int _extend_ascii(int hash_of_prefix, bytes data)

cdef int _extend_text(int hash_of_prefix, str text)
