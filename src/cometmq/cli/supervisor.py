"""Runs several servers as one: starts them, restarts one that ends, and stops all.

Each server is a process. It prints a line that starts with ``ready``, and stops in order at the end
of its standard input. So the servers also stop if the supervisor is killed.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cometmq.cli.serve import stop_signals

log = logging.getLogger(__name__)

READY = b"ready "
STOP_S_MAX = 60.0
"""A server may take long to write what is in memory; one that takes longer is killed."""


@dataclass(frozen=True)
class RestartPolicy:
    """When a server that ended is started again. The pause doubles from restart to restart."""

    pause_s: float = 1.0
    pause_s_max: float = 30.0
    restarts_max: int = 5
    """Restarts in a row; one more failure ends all servers."""
    steady_s: float = 60.0
    """A server that ran for so long has recovered: restarts are counted from one again."""

    def pause(self, restart: int) -> float:
        """Return the pause before a restart, counted from 1."""
        return min(self.pause_s * 2.0 ** (restart - 1), self.pause_s_max)


class _Child:
    """One server: the process that runs now, and the processes that replace it."""

    def __init__(self, name: str, command: Sequence[str], policy: RestartPolicy) -> None:
        self.name = name
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The text of its first ready line."""
        self._command = command
        self._policy = policy
        self._stopping = asyncio.Event()
        self._process: Process | None = None
        self._run = asyncio.create_task(self._keep_running(), name=name)

    @property
    def ended(self) -> asyncio.Task[int]:
        """Done with an exit code when the server has ended and is not restarted."""
        return self._run

    async def stop(self) -> bool:
        """Stop the server; return whether it ended in order."""
        self._stopping.set()
        if self._process is not None:
            _ask_to_stop(self._process)
        ended, _ = await asyncio.wait([self._run], timeout=STOP_S_MAX)
        if not ended and self._process is not None:
            log.error("%s did not stop within %g s and is killed", self.name, STOP_S_MAX)
            self._process.kill()
        return await self._run == 0

    async def _keep_running(self) -> int:
        restarts = 0
        while True:
            began = asyncio.get_running_loop().time()
            code = await self._run_once()
            if self._stopping.is_set():
                return code
            how = _ending(code)
            if not self.ready.done():
                log.error("%s %s before it was ready: stopping all", self.name, how)
                return max(code, 1)
            if asyncio.get_running_loop().time() - began >= self._policy.steady_s:
                restarts = 0
            if restarts == self._policy.restarts_max:
                log.error(
                    "%s %s after %d restarts in a row: stopping all", self.name, how, restarts
                )
                return max(code, 1)
            restarts += 1
            pause = self._policy.pause(restarts)
            log.error(
                "%s %s: restart %d of at most %d in %g s",
                self.name, how, restarts, self._policy.restarts_max, pause,
            )  # fmt: skip
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                return 0
            except TimeoutError:
                pass

    async def _run_once(self) -> int:
        # A session of its own: Ctrl-C at a terminal reaches only the supervisor.
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, start_new_session=True
            )
        except OSError as problem:  # such as no memory: it may pass
            log.error("%s: the process cannot be started: %s", self.name, problem)
            return 1
        if self._stopping.is_set():
            _ask_to_stop(process)
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.startswith(READY):
                continue
            if self.ready.done():
                log.info("%s is ready again", self.name)
            else:
                self.ready.set_result(line[len(READY) :].decode().strip())
        return await process.wait()


async def supervise(
    programs: Sequence[tuple[str, Sequence[str]]],
    ready: Callable[[list[str]], str],
    policy: RestartPolicy | None = None,
) -> int:
    """Run programs until a signal asks to stop, or until one of them cannot run.

    Args:
        programs: name and command of each.
        ready: makes the line to print once all are ready, without its first word, from what
            follows this word in theirs.
        policy: when a program that ended is started again.

    Returns:
        The exit code: 0 if all stopped in order after a signal, the code of a program that could
        not run, otherwise 1.
    """
    stopping: asyncio.Future[Any] = asyncio.create_task(stop_signals().wait())
    children = [_Child(name, command, policy or RestartPolicy()) for name, command in programs]
    all_ready: asyncio.Future[Any] = asyncio.gather(*(child.ready for child in children))
    # Two children that end before they are ready cancel it, and nobody waits for it any more.
    all_ready.add_done_callback(lambda done: done.cancelled() or done.exception())
    ends: list[asyncio.Future[Any]] = [child.ended for child in children]
    await asyncio.wait([stopping, all_ready, *ends], return_when=asyncio.FIRST_COMPLETED)
    if all_ready.done():
        print(f"ready {ready(all_ready.result())}", flush=True)
        await asyncio.wait([stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
    all_ready.cancel()
    failed = [end.result() for end in ends if end.done()]
    log.info("stopping %d processes", len(ends) - len(failed))
    in_order = await asyncio.gather(*(child.stop() for child in children))
    stopping.cancel()
    return failed[0] if failed else int(not all(in_order))


def _ask_to_stop(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with the Python of this process."""
    return [sys.executable, "-m", module, *arguments]
