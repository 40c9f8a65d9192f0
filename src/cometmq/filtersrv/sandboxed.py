"""The program of a worker process: seals itself, then runs one uploaded filter.

It is started as ``python -I -S -B sandboxed.py MEMORY_BYTES`` and imports the standard library
only. Descriptor 0 is the pipe from the filter server, descriptor 1 the pipe to it; all others are
closed. It reads the uploaded source only after the seal, which the kernel enforces:

- limits of memory, and of no files, no processes and no core dumps;
- no new privileges, and the kernel kills it when the server ends;
- a seccomp filter that allows the few system calls of computing: reading descriptor 0, writing
  descriptor 1, memory that is not executable, clocks, random numbers and exit. Every other call
  fails with EPERM, whatever Python code or native code makes it.

The server limits its CPU time from outside.

    request := length:u32 marshalled         only the server's bytes are unmarshalled
        first:  (class name, source)
        later:  (consumer group, [fields of a message, ...])
    response := length:u32 status:u8 rest
        MATCHED:            a byte for each message, 1 if it matches
        FAILED, UNSEALED:   a text in UTF-8

Source: seccomp(2), capabilities(7) and the tables of system calls of Linux.
"""

from __future__ import annotations

import ctypes
import importlib
import marshal
import os
import resource
import struct
import sys
from collections.abc import Iterator
from typing import Any

MATCHED, FAILED, UNSEALED = 0, 1, 2
TEXT_BYTES_MAX = 1_000
LENGTH = struct.Struct("<I")
FILE = "<filter>"
"""The name of the source in errors."""

FOR_FILTERS = """
    __future__ _strptime abc base64 binascii bisect calendar cmath codecs collections
    collections.abc contextlib copy csv dataclasses datetime decimal encodings.ascii
    encodings.latin_1 encodings.utf_16 encodings.utf_8 enum fnmatch fractions functools hashlib
    heapq hmac html html.parser ipaddress itertools json math numbers operator random re statistics
    string struct textwrap time types typing unicodedata urllib.parse xml.etree.ElementTree zlib
"""
"""The modules that filters can import; behind the seal no other can be loaded."""

# prctl(2), seccomp(2), and the instructions of classic BPF.
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_KILL_PROCESS, _ALLOW, _ERRNO_EPERM = 0x8000_0000, 0x7FFF_0000, 0x0005_0001
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_PROT_EXEC = 4
_MADV_DONTNEED, _MADV_FREE = 4, 8
"""The advice of allocators. Other advice takes pages from the machine if it comes from root."""
_FUTEX_COMMAND = 0x7F
_FUTEX_WAITS_AND_WAKES = (0, 1, 9, 10)
"""Not the operations on priority inheritance, which filters do not need."""
_SIGKILL = 9
_FOREIGN_CALLS_FROM = 0x4000_0000
"""Numbers from here on belong to the x32 interface."""


class Machine:
    """The system calls of one processor architecture.

    Args:
        architecture: its number in audit records.
        free: the numbers of calls that are allowed with any arguments.
        read, write: only of descriptors 0 and 1.
        mmap, mprotect: only of memory that is not executable.
        madvise: only to give memory back.
        futex: only to wait and to wake.
    """

    def __init__(
        self,
        architecture: int,
        free: dict[str, int],
        *,
        read: int,
        write: int,
        mmap: int,
        mprotect: int,
        madvise: int,
        futex: int,
    ) -> None:
        self.architecture = architecture
        self.free = free
        self.read, self.write = read, write
        self.mmap, self.mprotect = mmap, mprotect
        self.madvise = madvise
        self.futex = futex


MACHINES = {
    "x86_64": Machine(
        0xC000_003E,
        {
            "munmap": 11, "brk": 12, "sched_yield": 24, "mremap": 25, "nanosleep": 35,
            "exit": 60, "gettimeofday": 96, "time": 201, "restart_syscall": 219,
            "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230,
            "exit_group": 231, "getrandom": 318,
        },
        read=0, write=1, mmap=9, mprotect=10, madvise=28, futex=202,
    ),
    "aarch64": Machine(
        0xC000_00B7,
        {
            "exit": 93, "exit_group": 94, "nanosleep": 101, "clock_gettime": 113,
            "clock_getres": 114, "clock_nanosleep": 115, "sched_yield": 124,
            "restart_syscall": 128, "gettimeofday": 169, "brk": 214, "munmap": 215,
            "mremap": 216, "getrandom": 278,
        },
        read=63, write=64, mmap=222, mprotect=226, madvise=233, futex=98,
    ),
}  # fmt: skip
"""By the name of the machine.

``rt_sigreturn`` is not among the calls: native code could block the signal of the CPU limit with
it. SIGINT, the only signal with a handler, therefore ends a worker.
"""


def program(machine: Machine) -> bytes:
    """Return the seccomp filter as instructions of classic BPF."""
    return b"".join(struct.pack("<HBBI", *each) for each in _instructions(machine))


def _instructions(machine: Machine) -> Iterator[tuple[int, int, int, int]]:
    """Yield operation, jump if true, jump if false, operand."""
    yield _LOAD, 0, 0, _ARCHITECTURE_AT
    yield _IF_EQUAL, 1, 0, machine.architecture
    yield _RETURN, 0, 0, _KILL_PROCESS
    yield _LOAD, 0, 0, _NUMBER_AT
    yield _IF_AT_LEAST, 0, 1, _FOREIGN_CALLS_FROM
    yield _RETURN, 0, 0, _KILL_PROCESS
    for number in machine.free.values():
        yield _IF_EQUAL, 0, 1, number
        yield _RETURN, 0, 0, _ALLOW
    for number, descriptor in ((machine.read, 0), (machine.write, 1)):
        yield _IF_EQUAL, 0, 4, number
        yield _LOAD, 0, 0, _argument(0)
        yield _IF_EQUAL, 0, 1, descriptor
        yield _RETURN, 0, 0, _ALLOW
        yield _RETURN, 0, 0, _ERRNO_EPERM
    for number in (machine.mmap, machine.mprotect):
        yield _IF_EQUAL, 0, 4, number
        yield _LOAD, 0, 0, _argument(2)
        yield _IF_ANY_BIT, 1, 0, _PROT_EXEC
        yield _RETURN, 0, 0, _ALLOW
        yield _RETURN, 0, 0, _ERRNO_EPERM
    yield _IF_EQUAL, 0, 6, machine.madvise
    yield _LOAD, 0, 0, _argument(2)
    for advice in (_MADV_DONTNEED, _MADV_FREE):
        yield _IF_EQUAL, 0, 1, advice
        yield _RETURN, 0, 0, _ALLOW
    yield _RETURN, 0, 0, _ERRNO_EPERM
    yield _IF_EQUAL, 0, 2 + 2 * len(_FUTEX_WAITS_AND_WAKES), machine.futex
    yield _LOAD, 0, 0, _argument(1)
    yield _AND, 0, 0, _FUTEX_COMMAND
    for command in _FUTEX_WAITS_AND_WAKES:
        yield _IF_EQUAL, 0, 1, command
        yield _RETURN, 0, 0, _ALLOW
    yield _RETURN, 0, 0, _ERRNO_EPERM


def _argument(number: int) -> int:
    """Return the position of the lower half of an argument: the kernel uses no more of these."""
    return _ARGUMENTS_AT + 8 * number


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def refusal() -> str | None:
    """Return why this system cannot seal a process, or None if it may."""
    if sys.platform != "linux":
        return f"class filters need Linux with seccomp, this system is {sys.platform}"
    machine = os.uname().machine
    if sys.byteorder != "little" or machine not in MACHINES:
        return f"class filters need a machine of {' or '.join(MACHINES)}, this is {machine}"
    return None


def seal(memory_bytes: int) -> None:
    """Give up everything but computing, for ever.

    Args:
        memory_bytes: what this process may use in addition to what it uses now.

    Raises:
        OSError: the kernel refused; nothing that is uploaded may run.
    """
    problem = refusal()
    if problem is not None:
        raise OSError(problem)
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 (pathlib is loaded for nothing else)
        used_bytes = int(file.read().split()[0]) * resource.getpagesize()
    os.closerange(2, 1 << 20)
    os.nice(10)  # the server has to run when this process exceeds its limits
    for limit in (
        resource.RLIMIT_CORE,
        resource.RLIMIT_FSIZE,
        resource.RLIMIT_MEMLOCK,
        resource.RLIMIT_NPROC,
        resource.RLIMIT_NOFILE,
    ):
        resource.setrlimit(limit, (0, 0))
    memory_bytes_max = used_bytes + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes_max, memory_bytes_max))
    _control(libc, _PR_SET_PDEATHSIG, _SIGKILL)
    _control(libc, _PR_SET_DUMPABLE, 0)
    _control(libc, _PR_SET_NO_NEW_PRIVS, 1)
    instructions = program(MACHINES[os.uname().machine])
    memory = ctypes.create_string_buffer(instructions, len(instructions))
    filters = _Program(len(instructions) // 8, ctypes.addressof(memory))
    _control(libc, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(filters))


def _control(libc: ctypes.CDLL, option: int, *arguments: int) -> None:
    every = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *every) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")


class Message:
    """A message as filters see it; the names are those of the client's `StoredMessage`."""

    __slots__ = (
        "body", "born_host", "born_time_ms", "flag", "properties", "queue_id", "queue_offset",
        "reconsume_times", "store_time_ms", "topic",
    )  # fmt: skip

    topic: str
    body: bytes
    """Decompressed."""
    properties: dict[str, str]
    flag: int
    queue_id: int
    queue_offset: int
    born_time_ms: int
    born_host: str
    store_time_ms: int
    reconsume_times: int

    def __init__(self, fields: tuple[object, ...]) -> None:
        for name, value in zip(self.__slots__, fields, strict=True):
            setattr(self, name, value)

    @property
    def tags(self) -> str | None:
        """The tag of the message, or None."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        """The keys of the message."""
        return self.properties.get("KEYS", "").split()


class Context:
    """The context that a filter gets besides the message."""

    __slots__ = ("consumer_group",)

    def __init__(self, consumer_group: str) -> None:
        self.consumer_group = consumer_group


_NOT_PLAIN = 0x20 | 0x80 | 0x200
"""CO_GENERATOR, CO_COROUTINE and CO_ASYNC_GENERATOR of the module inspect."""


def _made(class_name: str, source: str) -> Any:
    """Run the source and make an object of its class."""
    namespace: dict[str, Any] = {"__name__": "uploaded"}
    exec(compile(source, FILE, "exec"), namespace)
    name = class_name.rpartition(".")[2]  # without the name of its package
    if not isinstance(namespace.get(name), type):
        raise TypeError(f"the source defines no class {name}")
    made: Any = namespace[name]()
    if not callable(getattr(made, "match", None)):
        raise TypeError(f"the class {name} has no method match(message, context)")
    code = getattr(made.match, "__code__", None)
    if code is not None and code.co_flags & _NOT_PLAIN:
        # What its call makes is true, so each message would match.
        raise TypeError(f"{name}.match is an async or generator function: expected a plain one")
    return made


def _matches(made: Any, group: str, messages: list[tuple[object, ...]]) -> bytes:
    context = Context(group)
    return bytes(bool(made.match(Message(fields), context)) for fields in messages)


def _text_of(error: BaseException) -> bytes:
    try:
        text = f"{type(error).__name__}: {error}"
        trace, line = error.__traceback__, 0
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == FILE else line
            trace = trace.tb_next
        text += f" ({FILE}, line {line})" if line else ""
        return text.encode("utf-8", "replace")[:TEXT_BYTES_MAX]
    except BaseException:
        return b"an error without a text"


def _read(count: int) -> bytes:
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            os._exit(0)  # the server is gone, or ends this process
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _request() -> tuple[Any, ...]:
    (count,) = LENGTH.unpack(_read(LENGTH.size))
    request: tuple[Any, ...] = marshal.loads(_read(count))
    return request


def _respond(status: int, rest: bytes) -> None:
    left = memoryview(LENGTH.pack(1 + len(rest)) + bytes((status,)) + rest)
    while left:
        left = left[os.write(1, left) :]


def main() -> None:
    """Seal this process, and serve the filter server until it closes its pipe."""
    try:
        for name in FOR_FILTERS.split():
            importlib.import_module(name)
        seal(int(sys.argv[1]))
    except Exception as error:
        _respond(UNSEALED, _text_of(error))
        return
    try:
        made = _made(*_request())
        _respond(MATCHED, b"")
    except BaseException as error:
        _respond(FAILED, _text_of(error))
        os._exit(0)
    while True:
        group, messages = _request()
        try:
            status, rest = MATCHED, _matches(made, group, messages)
        except BaseException as error:
            status, rest = FAILED, _text_of(error)
            if isinstance(
                error, MemoryError
            ):  # the memory that it keeps would make later requests fail
                _respond(status, rest)
                os._exit(0)
        _respond(status, rest)


if __name__ == "__main__":
    main()
