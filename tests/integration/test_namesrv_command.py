"""``cometmq namesrv`` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq.protocol.codes import RequestCode
from cometmq.remoting import RemotingClient, check
from support.processes import forks

COMMAND = (sys.executable, "-m", "cometmq", "namesrv")
TIMEOUT_S = 120.0


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        assert process.stdout is not None
        process.stdout.close()


async def update(address: str, body: bytes) -> None:
    client = RemotingClient()
    try:
        code = RequestCode.UPDATE_NAMESRV_CONFIG
        check(await client.call(address, code, body=body, timeout=60))
    finally:
        await client.close()


async def test_it_says_ready_keeps_its_settings_and_ends_on_sigterm(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("# mine\nlistenPort=0\nserverWorkerThreads=8\n")
    with running("-c", str(file)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready namesrv=127.0.0.1:")
        address = line.split()[1].partition("=")[2]
        await update(address, b"orderMessageEnable=true")
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    text = file.read_text()
    assert text == "# mine\nlistenPort=0\nserverWorkerThreads=8\norderMessageEnable=true\n"


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*forks.python(), *COMMAND[1:], *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_settings_are_printed_with_their_origins(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("orderMessageEnable=true\n")

    process = ended("-c", str(file), "--port", "1234", "--print-config")

    assert process.returncode == 0
    assert f"# {file}:1\norderMessageEnable=true\n" in process.stdout
    assert "# command line\nlistenPort=1234\n" in process.stdout
    assert f"configStorePath={file}\n" in process.stdout


@pytest.mark.parametrize("text", ["listenPrt=1", "listenPort=high", "listenPort=65536"])
def test_wrong_settings_end_it_with_code_2(tmp_path: Path, text: str) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text(text)

    process = ended("-c", str(file))

    assert process.returncode == 2
    assert "listenPort" in process.stderr
