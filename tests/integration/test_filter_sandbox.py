"""Attacks of uploaded filters: each is contained, and other filters go on.

An attack is the body of a filter's ``match``; where it goes on behind a step that must fail, the
filter would return True, and the test would fail.
"""

from __future__ import annotations

import asyncio
import os
import re
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cometmq.filtersrv.sandboxed import MACHINES, refusal
from cometmq.filtersrv.worker import (
    WAITING_MAX,
    FilterBusyError,
    FilterError,
    Limits,
    Source,
    Worker,
)
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from support.clients.consumer_inputs import stored_in

pytestmark = [
    pytest.mark.skipif(refusal() is not None, reason=refusal() or ""),
    pytest.mark.asyncio(loop_scope="module"),  # a worker belongs to a loop
]

MIB = 1024 * 1024
LIMITS = Limits(batch_s=2.0, memory_bytes=64 * MIB)
SHORT = Limits(batch_s=0.5, memory_bytes=64 * MIB)
"""For attacks that only the time limit ends."""
WAIT_S = 60.0


def message(body: bytes = b"", number: int = 0, **properties: str) -> StoredMessage:
    return stored_in(MessageQueue("T", "", 0), number, body=body, properties=properties)


def source_of(attack: str) -> Source:
    body = textwrap.indent(textwrap.dedent(attack), " " * 8)
    return Source(
        "Attack",
        f"class Attack:\n    def match(self, message, context):\n{body}\n        return 1\n",
        0,
    )


GOOD = Source(
    "shop.Paid",
    "import json\n"
    "class Paid:\n"
    "    def match(self, message, context):\n"
    "        return message.tags == 'paid' and json.loads(message.body)['price'] > 5\n",
    0,
)


async def match(worker: Worker, messages: list[StoredMessage]) -> list[bool]:
    async with worker.exclusive():
        return await worker.match("g", messages)


async def expect_it_works(worker: Worker) -> None:
    messages = [message(b'{"price": %d}' % n, n, TAGS="paid") for n in (4, 6)]
    assert await match(worker, messages) == [False, True]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bystander() -> AsyncIterator[Worker]:
    """Another filter of the server: its process lives through all attacks."""
    worker = Worker("good", GOOD, LIMITS)
    await expect_it_works(worker)
    process = worker.pid
    yield worker
    assert worker.pid == process
    await worker.close()


@pytest_asyncio.fixture(loop_scope="module")
async def attackers() -> AsyncIterator[list[Worker]]:
    workers: list[Worker] = []
    yield workers
    for worker in workers:
        await worker.close()


async def reason_of(
    attackers: list[Worker], attack: str, body: bytes = b"", limits: Limits = LIMITS
) -> str:
    """Run an attack; return why its filter failed."""
    worker = Worker("attack", source_of(attack), limits)
    attackers.append(worker)
    with pytest.raises(FilterError) as failure:
        await match(worker, [message(body)])
    return str(failure.value)


REFUSED = (
    "PermissionError|ModuleNotFoundError|ImportError|OSError|RuntimeError|ValueError"
    "|itimer_error|ItimerError"  # before Python 3.14, and since
)
STOLEN = f"/tmp/cometmq-attack-{os.getpid()}"
PROBES = {335, 336}
"""The kernel's own calls of probes, which no seccomp filter sees; from elsewhere they kill."""
LIBC = """
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    def refused(result):
        if result == -1:
            raise OSError(ctypes.get_errno(), "refused")
"""

CALLS = {
    "list a folder": "import os; os.listdir('/')",
    "read a file": "open('/etc/passwd').read()",
    "read a relative file": "open('..//etc/passwd').read()",
    "write a file": f"open('{STOLEN}', 'w').write('x')",
    "open its own memory": "open('/proc/self/mem', 'r+b')",
    "open the memory of the server": "open(f'/proc/{int(message.body)}/mem', 'rb')",
    "read the environment of the server": "open(f'/proc/{int(message.body)}/environ').read()",
    "stat a file": "import os; os.stat('/')",
    "delete a file": f"import os; os.unlink('{STOLEN}')",
    "change its folder": "import os; os.chdir('/tmp')",
    "make a pipe": "import os; os.pipe()",
    "duplicate a descriptor": "import os; os.dup(1)",
    "import a module": "import socket; socket.socket()",
    "import the network in C": "import _socket; _socket.socket()",
    "import processes": "import subprocess; subprocess.run(['/bin/true'], check=True)",
    "import a module that is a file": "import http.server",
    "fork": "import os; os.fork()",
    "execute": "import os; os.execv('/bin/sh', ['sh', '-c', 'true'])",
    "spawn": "import os; os.posix_spawn('/bin/true', ['true'], {})",
    "start a thread": "import _thread; _thread.start_new_thread(print, ())",
    "kill the server": "import os; os.kill(int(message.body), 9)",
    "stop the server": "import os; os.kill(int(message.body), 19)",
    "kill its group": "import os; os.killpg(os.getpgid(0), 9)",
    "catch the signal of the CPU limit": "import _signal; _signal.signal(24, _signal.SIG_IGN)",
    "set a timer": "import _signal; _signal.setitimer(0, 1)",
    "raise its limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "raise its priority": "import os; os.nice(-5)",
    "limit the server": "import resource; "
    "resource.prlimit(int(message.body), resource.RLIMIT_NOFILE, (0, 0))",
    "become another user": "import os; os.setuid(0)",
    "write to its input": "import os; os.write(0, b'x')",
    "read its output": "import os; os.read(1, 1)",
    "read with libc": LIBC + "\n    refused(libc.open(b'/etc/passwd', 0))",
    "fork with libc": LIBC + "\n    refused(libc.fork())",
    "make a socket with libc": LIBC + "\n    refused(libc.socket(2, 1, 0))",
    "send over its pipe": LIBC + "\n    refused(libc.send(0, b'x', 1, 0))",
    "trace the server": LIBC + "\n    refused(libc.ptrace(16, int(message.body), 0, 0))",
    "make memory executable": LIBC + "\n    libc.mmap.restype = ctypes.c_long"
    "\n    refused(libc.mmap(None, 4096, 7, 0x22, -1, 0))",
    "unseal": LIBC + "\n    refused(libc.prctl(22, 0, 0, 0, 0))",
    "find popen by introspection": """
        for each in ().__class__.__base__.__subclasses__():
            scope = getattr(each.__init__, "__globals__", {})
            if "system" in scope and "fork" in scope:
                if scope["system"]("/bin/true") != 0:
                    raise PermissionError("system was refused")
                return 1
        raise OSError("not found")
    """,
    "find the loader by introspection": """
        import sys
        loader = type(__loader__ if "__loader__" in globals() else sys.__spec__.loader)
        for each in object.__subclasses__():
            if each.__name__ == "FileLoader":
                break
        from importlib._bootstrap_external import FileLoader
        FileLoader("x", "/etc/passwd").get_data("/etc/passwd")
    """,
    "write to inherited descriptors": """
        import os
        for descriptor in range(2, 1024):
            try:
                os.write(descriptor, b"x")
            except OSError:
                continue
            return 1
        raise OSError("none can be written to")
    """,
}


@pytest.mark.parametrize("attack", CALLS.values(), ids=CALLS)
async def test_calls_of_the_system_are_refused(
    attack: str, attackers: list[Worker], bystander: Worker
) -> None:
    body = b"%d" % os.getpid()
    reason = await reason_of(attackers, textwrap.dedent(attack), body)

    assert re.match(REFUSED, reason), reason
    assert attackers[0].pid is not None, "its process was killed for a call that only fails"
    assert not os.path.exists(STOLEN)  # noqa: PTH110, ASYNC240
    await expect_it_works(bystander)


async def test_every_system_call_that_is_not_allowed_fails(attackers: list[Worker]) -> None:
    machine = MACHINES[os.uname().machine]
    own = {machine.read, machine.write, machine.mmap, machine.mprotect, machine.madvise}
    own.add(machine.futex)
    allowed = sorted({*machine.free.values(), *own})
    reason = await reason_of(
        attackers,
        f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.restype = ctypes.c_long
        made = []
        for number in set(range(600)) - {PROBES}:
            if number not in {allowed} and not (
                libc.syscall(number, 0, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 1
            ):
                made.append(number)
        raise ValueError(f"made: {{made}}")
        """,
    )

    assert reason.startswith("ValueError: made: [] (<filter>, line ")


ENDS = {
    "a call of another interface": (
        "import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)",
        "ended by signal 31",
    ),
    "an exit": ("import os; os._exit(3)", "ended with exit code 3"),
    "an invalid address": ("import ctypes; ctypes.string_at(0)", "ended by signal 11"),
    "an endless loop": ("while True: pass", "time limit"),
    "an endless loop in C": ("sum(iter(int, 1))", "time limit"),
    "an endless sleep": ("import time; time.sleep(1000)", "time limit"),
    "an exception whose text never ends": (
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
        "time limit",
    ),
    "part of a response": ("import os; os.write(1, b'\\1'); import time; time.sleep(99)", "limit"),
    "an end of its output": ("import os; os.close(1)", "PermissionError"),
    "a long response": (
        "import os; os.write(1, b'\\xff\\xff\\xff\\x7f')",
        "response of 2147483647",
    ),
    "an empty response": ("import os; os.write(1, bytes(4))", "response of 0 bytes"),
    "an unknown status": ("import os; os.write(1, b'\\1\\0\\0\\0\\7')", "unknown status 7"),
    "too few results": ("import os; os.write(1, b'\\1\\0\\0\\0\\0')", "0 results for 1 messages"),
    "too many results": ("import os; os.write(1, b'\\3\\0\\0\\0\\0\\1\\1')", "2 results for 1"),
    "huge output": (
        "import os\nwhile True: os.write(1, b'\\xee' * 1000000)",
        "response of 4008636142 bytes",
    ),
    "endless responses": (
        "import os\nwhile True: os.write(1, b'\\1\\0\\0\\0\\7' * 100000)",
        "unknown status 7",
    ),
    "a text that is no text": ("import os; os.write(1, b'\\3\\0\\0\\0\\1\\xff\\xfe')", "\ufffd"),
    "a memory bomb": ("[bytes(100000) for _ in range(10**9)]", "MemoryError"),
    "one huge object": ("bytearray(1 << 40)", "MemoryError"),
    "a huge number": ("10 ** (10 ** 9)", "time limit|MemoryError"),
    "deep recursion": ("def f(): f()\nf()", "RecursionError"),
    "deeper recursion": (
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        "MemoryError|SystemError|signal 11|RecursionError|time limit",
    ),
    "deep recursion in C": (
        "import sys; sys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
        "MemoryError|signal 11|RecursionError|time limit",
    ),
    "a long exception": ("raise ValueError('x' * 10**7)", r"^ValueError: x{900,1000}$"),
    "an exit by exception": ("raise SystemExit(0)", "SystemExit"),
    "an interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
}


@pytest.mark.parametrize("name", ENDS)
async def test_a_filter_that_breaks_a_limit_fails(
    name: str, attackers: list[Worker], bystander: Worker
) -> None:
    attack, expected = ENDS[name]
    limits = SHORT if expected in ("time limit", "limit") else LIMITS

    reason = await reason_of(attackers, attack, limits=limits)

    assert re.search(expected, reason), reason
    await expect_it_works(bystander)


async def test_a_filter_that_computes_on_after_its_response_is_ended_by_the_kernel(
    attackers: list[Worker],
) -> None:
    worker = Worker(
        "attack",
        source_of("import os\nos.write(1, b'\\2\\0\\0\\0\\0\\1')\nwhile True: pass"),
        Limits(batch_s=0.5, memory_bytes=64 * MIB),
    )
    attackers.append(worker)

    assert await match(worker, [message()]) == [True]
    process = worker._process
    assert process is not None
    async with asyncio.timeout(WAIT_S):
        assert await process.wait() == -24  # SIGXCPU


LOADS = {
    "a syntax error": ("class Attack: (", "SyntaxError"),
    "no class": ("x = 1", "TypeError: the source defines no class Attack"),
    "async method": (
        "class Attack:\n    async def match(self, message, context): return False",
        "Attack.match is an async or generator function: expected a plain one",
    ),
    "generator": (
        "class Attack:\n    def match(self, message, context): yield False",
        "Attack.match is an async or generator function",
    ),
    "no method": ("class Attack: pass", r"has no method match\(message, context\)"),
    "an exception": ("x = 0\n1 / x", r"^ZeroDivisionError: .* \(<filter>, line 2\)$"),
    "a forbidden import": ("import socket\nclass Attack: pass", "ModuleNotFoundError|Permission"),
    "an exit": ("import os; os._exit(0)", "ended with exit code 0"),
    "nested brackets": ("(" * 100_000, "SyntaxError|MemoryError|signal 11|RecursionError"),
    "memory": ("x = 'x' * (1 << 40)", "MemoryError"),
}


@pytest.mark.parametrize("name", LOADS)
async def test_a_source_that_cannot_be_loaded_is_refused(
    name: str, attackers: list[Worker], bystander: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    text, expected = LOADS[name]
    worker = Worker("attack", Source("Attack", text, 0), LIMITS)
    attackers.append(worker)

    with pytest.raises(FilterError) as failure:
        await worker.load()

    assert re.search(expected, str(failure.value)), str(failure.value)
    assert "filter refused" in caplog.text
    assert "started again" not in caplog.text
    await expect_it_works(bystander)


async def test_a_filter_knows_nothing_of_the_server(
    monkeypatch: pytest.MonkeyPatch, attackers: list[Worker]
) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    reason = await reason_of(
        attackers,
        "import os, sys; raise ValueError(sorted(set(os.environ) - {'LC_ALL', 'LC_CTYPE'}))",
    )
    assert reason.startswith("ValueError: [] (<filter>, line ")
    reason = await reason_of(
        attackers, "import sys; raise ValueError([n for n in sys.modules if 'cometmq' in n])"
    )
    assert reason.startswith("ValueError: [] (<filter>, line ")


async def test_a_failed_filter_is_started_again_after_a_pause(attackers: list[Worker]) -> None:
    source = source_of("import os\nif message.body == b'end': os._exit(1)")
    worker = Worker("attack", source, LIMITS)
    attackers.append(worker)
    assert await match(worker, [message(b"a")]) == [True]
    first = worker.pid

    with pytest.raises(FilterError, match="exit code 1"):
        await match(worker, [message(b"end")])
    with pytest.raises(FilterError, match=r"started again in 0\.\d s"):
        await match(worker, [message(b"a")])
    async with asyncio.timeout(WAIT_S):
        while worker.pid is None:
            try:
                assert await match(worker, [message(b"a")]) == [True]
            except FilterError:  # its pause
                await asyncio.sleep(0.05)

    assert worker.pid != first


async def test_a_cancelled_pull_does_not_leave_its_response_to_the_next(
    attackers: list[Worker],
) -> None:
    source = source_of("import time\ntime.sleep(0.5 * (message.body == b'slow'))\nreturn 0")
    worker = Worker("slow", source, LIMITS)
    attackers.append(worker)
    await worker.load()
    pull = asyncio.ensure_future(match(worker, [message(b"slow")]))
    await asyncio.sleep(0.1)
    pull.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pull

    assert await match(worker, [message(), message()]) == [False, False]


async def test_a_filter_that_is_closed_while_its_process_starts_leaves_none(
    attackers: list[Worker],
) -> None:
    worker = Worker("good", GOOD, LIMITS)
    attackers.append(worker)
    pull = asyncio.ensure_future(match(worker, [message()]))
    await asyncio.sleep(0)  # the start has begun
    assert worker.pid is None

    await worker.close()

    with pytest.raises(FilterError, match="replaced or removed"):
        await pull
    assert worker.pid is None


async def test_a_batch_larger_than_a_request_is_matched_in_order(attackers: list[Worker]) -> None:
    worker = Worker("parts", source_of("return message.queue_offset % 3 == 0"), LIMITS)
    attackers.append(worker)
    messages = [message(bytes(3 * MIB), number) for number in range(7)]

    matched = await match(worker, messages)

    assert matched == [number % 3 == 0 for number in range(7)]


async def test_a_process_that_cannot_be_sealed_runs_no_filter(
    attackers: list[Worker], tmp_path: Path
) -> None:
    """A limit of this size fails, as any other step of the seal could."""
    trace = tmp_path / "trace"
    source = Source("A", f"open({str(trace)!r}, 'w')\nclass A: pass", 0)
    worker = Worker("attack", source, Limits(batch_s=2.0, memory_bytes=1 << 80))
    attackers.append(worker)

    with pytest.raises(FilterError, match="the filter cannot be sandboxed: "):
        await worker.load()

    assert not trace.exists()


async def test_pulls_beyond_a_limit_do_not_wait_for_a_slow_filter(
    attackers: list[Worker],
) -> None:
    worker = Worker("slow", source_of("import time; time.sleep(0.3)"), LIMITS)
    attackers.append(worker)
    await worker.load()
    pulls = [asyncio.ensure_future(match(worker, [message()])) for _ in range(WAITING_MAX)]
    await asyncio.sleep(0)

    with pytest.raises(FilterBusyError, match="pulls wait for this filter already"):
        await match(worker, [message()])

    for pull in pulls:
        pull.cancel()
    await asyncio.gather(*pulls, return_exceptions=True)
