"""The modules that a server loads until it is ready: each unneeded one delays the start."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
from pathlib import Path

import pytest

from cometmq.client import Producer
from cometmq.system.files import Files

LIMIT_S = 120.0
NOT_NEEDED = {
    "typer", "click", "rich", "cometmq.cli.commands", "cometmq.cli.options",
    "cometmq.client", "cometmq.spark", "cometmq.testing", "cometmq.store.inspect",
    "bz2", "cryptography", "difflib", "email", "http", "lz4", "lzma", "multiprocessing",
    "cometmq.console", "jinja2", "starlette", "uvicorn",
    "shutil", "sqlalchemy", "tempfile", "tomllib", "unittest", "urllib.request", "zstandard",
}  # fmt: skip


async def modules_loaded_by(*arguments: str) -> set[str]:
    """Start a server, stop it when it is ready, and return what it loaded until then."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "importtime", "-m", "cometmq", *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    said = []
    async with asyncio.timeout(LIMIT_S):
        async for line in process.stdout:
            said.append(line.decode())
            if line.startswith(b"ready "):
                process.send_signal(signal.SIGTERM)
                break
        await process.communicate()
    assert process.returncode == 0, "".join(said)
    loaded = [re.match(r"import time: .*\| *(\S+)$", line.rstrip()) for line in said]
    return {match[1] for match in loaded if match}


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_a_server_on_ipv6_serves_clients_at_the_address_that_it_prints(
    tmp_path: Path,
) -> None:
    words = f"standalone --namesrv-port 0 --broker-port 0 --host ::1 --store {tmp_path}/store"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cometmq", *words.split(), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        ready = await process.stdout.readline()
        found = re.match(rb"ready namesrv=(\[::1\]:\d+) broker=\[::1\]:\d+ ", ready)
        assert found, ready
        async with Producer(found[1].decode()) as producer:
            assert await producer.send("orders", b"six")
        process.send_signal(signal.SIGTERM)
        await process.communicate()


@pytest.mark.parametrize(
    ("words", "server"),
    [
        ("standalone --namesrv-port 0 --broker-port 0 --store {}/store", "cometmq.broker.app"),
        ("broker --port 0 --store {}/store", "cometmq.broker.app"),
        ("namesrv --port 0", "cometmq.namesrv.app"),
    ],
)
async def test_a_server_loads_no_module_that_it_does_not_need_to_start(
    words: str, server: str, tmp_path: Path
) -> None:
    loaded = await modules_loaded_by(*words.format(tmp_path).split())

    assert server in loaded
    assert sorted(loaded & NOT_NEEDED) == []


async def test_a_broker_alone_loads_no_name_server_and_no_supervisor(tmp_path: Path) -> None:
    loaded = await modules_loaded_by("broker", "--port", "0", "--store", str(tmp_path / "store"))

    assert "cometmq.broker.app" in loaded
    assert sorted(loaded & {"cometmq.namesrv", "cometmq.cli.supervisor"}) == []


def test_a_start_does_not_look_at_reserved_space_that_an_earlier_one_read(tmp_path: Path) -> None:
    """ext4 and XFS take such space for data while its pages of zeros are in memory."""
    size = 16 * 1024 * 1024
    file = Files().open_mapped(tmp_path / "log", size, create=True)
    file.reserve(0, size)
    file.write(0, b"record")

    assert (tmp_path / "log").read_bytes().count(0) == size - len(b"record")

    looked_at = sum(stop - start for start, stop in file.data_ranges(0, size))
    file.close()
    assert 0 < looked_at < size // 4
