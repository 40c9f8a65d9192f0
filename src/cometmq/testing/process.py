"""Runs a server as a separate process, for tests that stop, kill and restart it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from cometmq.model.errors import CometError

READY = b"ready "
LOG_TAIL_BYTES = 4_096


class ServerStartError(CometError):
    """The process ended, or was not ready in time."""


class ServerProcess:
    """One running ``cometmq`` command. Make one with `start`.

    As an async context manager it kills the process at the end, if it still runs.

    Example:
        async with await ServerProcess.start("standalone", log=Path("server.log")) as server:
            producer = Producer(server.addresses["namesrv"], group="g")
    """

    def __init__(
        self, process: asyncio.subprocess.Process, addresses: dict[str, str], log: Path
    ) -> None:
        self._process = process
        self.addresses = addresses
        """The addresses of its ready line, by ``namesrv``, ``broker`` and so on."""
        self.log = log

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; None while it runs; negative for a signal."""
        return self._process.returncode

    @classmethod
    async def start(
        cls,
        *arguments: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
        timeout: float = 15.0,
    ) -> Self:
        """Start a ``cometmq`` command and wait until it is ready.

        Args:
            arguments: the command and its options.
            log: the file for its log; it is created or appended to.
            environment: additional environment variables.
            timeout: seconds to wait.

        Raises:
            ServerStartError: the process ended, or was not ready in time. The message has the end
                of its log.
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
        """Send SIGTERM, wait for the end and return the exit code.

        Raises:
            TimeoutError: the process did not end in time; it still runs.
        """
        if self._process.returncode is None:
            self._process.terminate()
        async with asyncio.timeout(timeout):
            return await self._process.wait()

    async def kill(self) -> None:
        """Kill the process with SIGKILL."""
        await _kill(self._process)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
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
