"""One uploaded filter and its worker process, from the side of the filter server.

The process is sealed before it reads the filter (see ``sandboxed.py``), and the server takes its
output for hostile. A response has a status and one byte for each message of the request, or a short
text. The server kills a process that sends anything else, or responds too late. It starts the
process again for a later pull, after a pause that grows with each failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import marshal
import math
import resource
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cometmq.filtersrv import sandboxed
from cometmq.filtersrv.config import FilterServerSettings
from cometmq.filtersrv.sandboxed import LENGTH, TEXT_BYTES_MAX, Message
from cometmq.model.errors import CometError
from cometmq.model.message import StoredMessage
from cometmq.system.failure_log import FailureLog
from cometmq.system.log_format import printable

log = logging.getLogger(__name__)

START_S_MAX = 20.0
"""For starting the interpreter, the seal, and loading the filter."""
START_CPU_S_MAX = 10
KILL_S_MAX = 5.0
END_S_MAX = 0.5
WAITING_MAX = 256
"""Pulls that may wait for one filter."""
PAUSE_S_FIRST, PAUSE_S_MAX = 0.5, 30.0
REQUEST_BODY_BYTES = 4 * 1024 * 1024
"""The bodies of one request to a worker have about this size at most."""
REPLACED = "the filter was replaced or removed meanwhile"
_STATUS_BYTES = 1
_FIELDS = Message.__slots__
_PROGRAM = str(Path(sandboxed.__file__).resolve())


class FilterError(CometError):
    """A filter failed, or was stopped because it broke a limit."""


class FilterBusyError(CometError):
    """Too many pulls wait for a filter already."""


class Source(msgspec.Struct, frozen=True):
    """An uploaded filter."""

    class_name: str
    text: str
    crc: int
    """The checksum of the source."""


class Limits(msgspec.Struct, frozen=True):
    """The limits of a worker process."""

    batch_s: float
    memory_bytes: int

    @classmethod
    def of(cls, settings: FilterServerSettings) -> Limits:
        """Return the limits that the settings define."""
        return cls(settings.batch_ms_max / 1000, settings.memory_bytes_max)


class Worker:
    """A filter, and its process.

    Args:
        name: names the filter in logs.
        source: the filter.
        limits: the limits of its process.
    """

    def __init__(self, name: str, source: Source, limits: Limits) -> None:
        self._name = name
        self.source = source
        self._limits = limits
        self._process: Process | None = None
        self._one_at_a_time = asyncio.Lock()
        self._waiting = 0
        self._failures = 0
        self._raised = FailureLog(
            log, fails="filter raised an exception", works="filter works again", name="filter"
        )
        self._not_before_s = 0.0
        self._closed = False
        self._was_loaded = False

    @property
    def pid(self) -> int | None:
        """The id of the process; None while it does not run."""
        return self._process.pid if self._process is not None else None

    async def load(self) -> None:
        """Start the process and load the filter.

        Raises:
            FilterError: the filter cannot be loaded.
            FilterBusyError: see `exclusive`.
        """
        async with self.exclusive():
            await self._ensure_started()

    async def match(self, group: str, messages: Sequence[StoredMessage]) -> list[bool]:
        """Return which messages match; called within `exclusive`.

        Args:
            group: the consumer group.
            messages: of one queue, in order.

        Raises:
            FilterError: the filter failed; none of the messages counts as matched.
        """
        await self._ensure_started()
        matched = bytearray()
        deadline_s = asyncio.get_running_loop().time() + self._limits.batch_s
        cpu_s = math.ceil(self._limits.batch_s)
        for part in _parts(messages):
            fields = [tuple(getattr(each, name) for name in _FIELDS) for each in part]
            try:
                matched += await self._call((group, fields), len(part), deadline_s, cpu_s)
            except _FilterRaisedError as problem:
                self._raised.failed(self._name, problem)
                raise
        self._note_success()
        return [byte != 0 for byte in matched]

    async def close(self) -> None:
        """Kill the process; the filter is not used any more."""
        self._closed = True
        await self._kill()

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Return when no other pull uses the process; the next one may use it afterwards.

        Raises:
            FilterBusyError: too many pulls wait for this filter.
        """
        if self._waiting >= WAITING_MAX:
            raise FilterBusyError(f"{WAITING_MAX} pulls wait for this filter already")
        self._waiting += 1
        try:
            async with self._one_at_a_time:
                yield
        finally:
            self._waiting -= 1

    def _note_success(self) -> None:
        self._raised.succeeded(self._name)
        self._failures = 0

    # --- the process --------------------------------------------------------------------------

    async def _ensure_started(self) -> None:
        if self._closed:
            raise FilterError(REPLACED)
        if self._process is not None and self._process.returncode is None:
            return
        left_s = self._not_before_s - time.monotonic()
        if left_s > 0:
            raise FilterError(f"the filter failed and is started again in {left_s:.1f} s")
        await self._kill()
        problem = sandboxed.refusal()
        if problem is not None:
            raise FilterError(problem)
        deadline_s = asyncio.get_running_loop().time() + START_S_MAX
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-B",
                _PROGRAM, str(self._limits.memory_bytes),
                stdin=PIPE, stdout=PIPE, stderr=DEVNULL,
                env={"LC_ALL": "C.UTF-8"}, cwd="/", start_new_session=True,
            )  # fmt: skip
        except OSError as problem:
            raise FilterError(f"cannot start the process of a filter: {problem}") from None
        if self._closed:  # meanwhile, without a process to kill
            await self._kill()
            raise FilterError(REPLACED)
        first = (self.source.class_name, self.source.text)
        try:
            await self._call(first, 0, deadline_s, START_CPU_S_MAX)
        except _FilterRaisedError as problem:
            raise await self._failed(str(problem)) from None
        self._was_loaded = True
        log.info("filter started filter=%s pid=%d", self._name, self._process.pid)

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        # Its pipe may not be read, because its buffer is full, and would never end. The transport
        # as a whole would take the exit code, which `wait` needs.
        transport = process._transport  # type: ignore[attr-defined] # Process has no other way
        for descriptor in (0, 1):
            transport.get_pipe_transport(descriptor).close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_S_MAX):
                await process.wait()

    async def _failed(self, reason: str) -> FilterError:
        """Kill the process, and let the next start wait."""
        self._failures += 1
        pause_s = min(PAUSE_S_FIRST * 2.0 ** min(self._failures - 1, 10), PAUSE_S_MAX)
        self._not_before_s = time.monotonic() + pause_s
        if self._was_loaded:
            log.warning(
                "filter stopped, it is started again for a later pull filter=%s pause_s=%.1f: %s",
                self._name,
                pause_s,
                reason,
            )
        else:
            log.warning("filter refused, it cannot be loaded filter=%s: %s", self._name, reason)
        await self._kill()
        return FilterError(reason)

    # --- requests -----------------------------------------------------------------------------

    async def _call(
        self, request: tuple[Any, ...], count: int, deadline_s: float, cpu_s: int
    ) -> bytes:
        """Send a request; return a byte for each of the ``count`` messages in it."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _limit_cpu(process.pid, cpu_s)
            async with asyncio.timeout_at(deadline_s):
                data = marshal.dumps(request)
                process.stdin.writelines((LENGTH.pack(len(data)), data))
                await process.stdin.drain()
                status, rest = await _read_response(process.stdout, count)
        except TimeoutError:
            raise await self._failed("the filter exceeded its time limit") from None
        except (OSError, EOFError):
            raise await self._failed(
                f"the process of the filter {await _end_of(process)}"
            ) from None
        except _BadResponseError as problem:
            raise await self._failed(str(problem)) from None
        except BaseException:  # the next response would be that to this request
            await self._kill()
            raise
        if status == sandboxed.UNSEALED:
            raise await self._failed(f"the filter cannot be sandboxed: {_text(rest)}")
        if status == sandboxed.FAILED:
            raise _FilterRaisedError(_text(rest))
        return rest


class _FilterRaisedError(FilterError):
    """The filter's own code raised an exception."""


class _BadResponseError(Exception):
    """A worker sent bytes that are not a response."""


async def _read_response(stream: asyncio.StreamReader, count: int) -> tuple[int, bytes]:
    """Read the response to a request with ``count`` messages."""
    (size,) = LENGTH.unpack(await stream.readexactly(LENGTH.size))
    if not _STATUS_BYTES <= size <= _STATUS_BYTES + max(count, TEXT_BYTES_MAX):
        raise _BadResponseError(f"the filter sent a response of {size} bytes")
    data = await stream.readexactly(size)
    status, rest = data[0], data[1:]
    if status not in (sandboxed.MATCHED, sandboxed.FAILED, sandboxed.UNSEALED):
        raise _BadResponseError(f"the filter sent a response of the unknown status {status}")
    if status == sandboxed.MATCHED and len(rest) != count:
        raise _BadResponseError(f"the filter sent {len(rest)} results for {count} messages")
    return status, rest


async def _end_of(process: Process) -> str:
    """Return how a process ended that has closed its pipe."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S_MAX):
            code = await process.wait()
            return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return "closed its pipe"


def _text(rest: bytes) -> str:
    """Return a worker's text, in one printable line."""
    text = rest[:TEXT_BYTES_MAX].decode("utf-8", "replace")
    return printable(text)


def _limit_cpu(pid: int, seconds: int) -> None:
    """Let a process use this much more CPU time; then the kernel ends it.

    This ends a filter that goes on computing after its response, when no time limit runs.

    Raises:
        OSError: the process has ended, or cannot be limited.
    """
    clock = (~pid << 3) | 2  # of a process; see the kernel's posix-timers.h
    used_s = time.clock_gettime(clock)
    _, hard = resource.prlimit(pid, resource.RLIMIT_CPU)
    soft = math.ceil(used_s) + seconds + 1
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.prlimit(pid, resource.RLIMIT_CPU, (soft, hard))


def _parts(messages: Sequence[StoredMessage]) -> Iterator[list[StoredMessage]]:
    """Divide messages into requests of a limited size."""
    part: list[StoredMessage] = []
    part_bytes = 0
    for message in messages:
        if part and part_bytes + len(message.body) > REQUEST_BODY_BYTES:
            yield part
            part, part_bytes = [], 0
        part.append(message)
        part_bytes += len(message.body)
    if part:
        yield part
