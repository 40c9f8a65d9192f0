"""Runs a server until a signal, or the end of its standard input, asks it to stop.

It prints one line that starts with ``ready`` when the server serves requests. On SIGTERM or Ctrl-C
it stops accepting, drains, flushes, writes the checkpoint and ends with exit code 0. If that takes
longer than the grace time, it ends with exit code 1.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable
from typing import Protocol

from cometmq.cli.event_loop import run
from cometmq.remoting.tasks import Supervisor
from cometmq.system.platforms import SERVERS, SYSTEM

log = logging.getLogger(__name__)

STOP_S = 4.5
NEW_OBJECTS_MIN = 500_000
"""New objects that are still there, after which the garbage collector looks at all objects. 20,000
connections are 400,000. Garbage of so many objects would take some tens of MiB."""
COLLECT_S = 60.0
"""The garbage collector looks at all objects once in this time at most, whatever peers do. It takes
60 ms with 10,000 connections."""
_NEVER = 2**31 - 1


class Server(Protocol):
    """A server that this module starts and stops."""

    async def start(self) -> None:
        """Serve; returns once it does."""

    async def stop(self) -> None:
        """Serve no more; also after a start that failed."""


def serve(
    server: Server,
    ready: Callable[[], str],
    *,
    until_end_of: int | None = None,
    small: bool = False,
) -> int:
    """Run a server until a signal comes.

    Args:
        server: what to run.
        ready: makes the line to print once it serves, without its first word.
        until_end_of: a file descriptor at whose end it stops, too; a supervisor holds the other
            end of the pipe.
        small: take less memory, as in `event_loop.run`.

    Returns:
        The exit code: 0 after an orderly stop, 1 when stopping took too long.
    """
    SERVERS.allow_many_files()
    return run(_serve(server, ready, until_end_of), small=small)


async def _serve(server: Server, ready: Callable[[], str], until_end_of: int | None) -> int:
    stopping = stop_signals()
    if until_end_of is not None:
        _set_at_end(stopping, until_end_of)
    jobs = Supervisor("serve")
    try:
        await server.start()
        # What the start loaded stays: the garbage collector need not look at it again. A collection
        # before would free next to nothing and delay ``ready``.
        gc.freeze()
        collect_old_rarely()
        jobs.every(COLLECT_S, collect_old, "garbage collection")
        print(f"ready {ready()}", flush=True)
        await stopping.wait()
        log.info("stopping")
    finally:
        await jobs.cancel()
        orderly = await _stop(server)
    return 0 if orderly else 1


def collect_old_rarely() -> None:
    """Let the garbage collector look at all objects of this process only in `collect_old`.

    Each open connection is twenty objects, and none is garbage when it is closed. By default ten
    collections of younger objects, 7,000 new ones each, may lead to a full one. While thousands of
    peers connect, there were twenty full ones, of up to 20 ms: no request is handled meanwhile.
    `gc.freeze` instead would keep garbage that is there at the time, and after each wave of
    connections more of it.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


def collect_old() -> None:
    """Let the garbage collector look at all objects if there are many new ones."""
    young, middle, _ = gc.get_threshold()
    if gc.get_count()[2] >= NEW_OBJECTS_MIN // (young * middle):
        gc.collect()


def stop_signals() -> asyncio.Event:
    """Return an event that SIGTERM and Ctrl-C set from now on."""
    stopping = asyncio.Event()
    SYSTEM.on_signals(asyncio.get_running_loop(), stopping.set)
    return stopping


def _set_at_end(stopping: asyncio.Event, descriptor: int) -> None:
    """Set the event at the end of a pipe; what comes before it is read and discarded."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            stopping.set()

    loop.add_reader(descriptor, readable)


async def _stop(server: Server) -> bool:
    try:
        async with asyncio.timeout(STOP_S):
            await server.stop()
    except TimeoutError:
        log.error("shutdown exceeded %g s and was aborted", STOP_S)
        return False
    return True
