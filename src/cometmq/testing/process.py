"""Runs a server as a process of its own, for tests that stop, kill and restart it.

Source: ours.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from cometmq.model.errors import CometError

READY = b"ready "
LOG_TAIL_BYTES = 4_096


class ServerStartError(CometError):
    """The process ended, or kept silent, before it was ready."""


class ServerProcess:
    """One running ``cometmq`` command. Make one with `start`.

    As an async context manager it is killed at the end, unless it was stopped before.

    Example:
        ``async with await ServerProcess.start("standalone", ..., log=path) as server:``
        ``    producer = Producer(server.addresses["namesrv"], group="g")``
    """

    def __init__(
        self, process: asyncio.subprocess.Process, addresses: dict[str, str], log: Path
    ) -> None:
        self._process = process
        self.addresses = addresses
        """What the ready line said: ``namesrv``, ``broker`` and so on."""
        self.log = log

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or None while it runs; negative for the signal that ended it."""
        return self._process.returncode

    @classmethod
    async def start(
        cls,
        *arguments: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
        timeout: float = 15.0,
    ) -> Self:
        """Start a command of ``cometmq`` and wait until it says that it is ready.

        Args:
            arguments: the command and its options.
            log: the file that gets its log lines; made or appended to.
            environment: variables beside those of this process.
            timeout: seconds to wait.

        Raises:
            ServerStartError: it ended or was not ready in time; says what it logged last.
        """
        with log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "cometmq", *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **(environment or {})},
            )  # fmt: skip
        try:
            async with asyncio.timeout(timeout):
                line = await _ready_line(process)
        except (TimeoutError, asyncio.CancelledError):
            await _kill(process)
            raise
        if line is None:
            code = await process.wait()
            raise ServerStartError(f"{arguments[0]} ended with {code}: {_tail(log)}")
        return cls(process, _addresses(line), log)

    async def stop(self, timeout: float = 6.0) -> int:
        """Ask the process to stop as SIGTERM does, and give its exit code.

        Raises:
            TimeoutError: it did not end in time; it still runs.
        """
        if self._process.returncode is None:
            self._process.terminate()
        async with asyncio.timeout(timeout):
            return await self._process.wait()

    async def kill(self) -> None:
        """End the process at once with SIGKILL."""
        await _kill(self._process)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.kill()


async def _ready_line(process: asyncio.subprocess.Process) -> bytes | None:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(READY):
            return line
    return None


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


def _addresses(line: bytes) -> dict[str, str]:
    pairs = (part.partition("=") for part in line.decode().split()[1:])
    return {name: value for name, _, value in pairs}


def _tail(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        return stream.read().decode(errors="replace").strip()
