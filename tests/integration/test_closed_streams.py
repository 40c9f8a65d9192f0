"""Commands whose standard input, output or error is closed, as some supervisors start them."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from cometmq.remoting.ports import free_broker_port, free_port

LIMIT_S = 60.0
COMMAND = (sys.executable, "-m", "cometmq")
EMBEDDING = """
import sys
from cometmq import embedded
from cometmq.client.blocking import Producer
with embedded.open(sys.argv[1]) as broker, Producer(broker) as producer:
    producer.send("orders", b"hello")
"""
NUMBERS = {"<&-": {0}, ">&-": {1}, "2>&-": {2}, "<&- >&- 2>&-": {0, 1, 2}}
CLOSED = list(NUMBERS)
"""How a shell closes descriptors."""


async def start(closed: str, *words: str) -> asyncio.subprocess.Process:
    """Start a program with some of its descriptors closed; the others are pipes."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
    shell = ("/bin/sh", "-c", f'exec "$@" {closed}', "sh")
    return await asyncio.create_subprocess_exec(*shell, *words, **pipes)


def on_the_null_device(pid: int) -> set[int]:
    """Which of the first descriptors of a process are the null device."""
    folder = Path(f"/proc/{pid}/fd")
    return {n for n in range(3) if (folder / str(n)).readlink() == Path("/dev/null")}


async def until_it_listens(port: int, process: asyncio.subprocess.Process) -> None:
    ended = asyncio.ensure_future(process.wait())
    try:
        while not ended.done():
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.wait((ended,), timeout=0.05)
            else:
                writer.close()
                return
        raise AssertionError(f"it ended with {ended.result()} before it listened")
    finally:
        ended.cancel()


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize("server", ["namesrv", "broker"])
async def test_a_server_starts_and_stops_with_closed_streams(
    tmp_path: Path, server: str, closed: str
) -> None:
    """Before, the event loop got descriptor 0, and closing it at the end aborted the process."""
    port = free_port() if server == "namesrv" else free_broker_port()
    words = [server, "--port", str(port)]
    if server == "broker":
        words += ["--store", str(tmp_path)]
    process = await start(closed, *COMMAND, *words)
    async with asyncio.timeout(LIMIT_S):
        try:
            await until_it_listens(port, process)
            null = on_the_null_device(process.pid)
            process.send_signal(signal.SIGTERM)
            await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    assert process.returncode == 0
    assert null == NUMBERS[closed]


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize(
    ("words", "code"), [("namesrv --port none", 2), ("admin cluster list -n 127.0.0.1:1", 1)]
)
async def test_a_command_ends_with_its_code_with_closed_streams(
    words: str, code: int, closed: str
) -> None:
    process = await start(closed, *COMMAND, *words.split())
    async with asyncio.timeout(LIMIT_S):
        _, errors = await process.communicate()
    assert process.returncode == code
    assert (errors == b"") == ("2>&-" in closed)


@pytest.mark.parametrize("closed", CLOSED)
async def test_an_application_with_closed_streams_has_a_broker(tmp_path: Path, closed: str) -> None:
    process = await start(closed, sys.executable, "-c", EMBEDDING, str(tmp_path / "data"))
    async with asyncio.timeout(LIMIT_S):
        _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
