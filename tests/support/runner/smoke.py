"""Runs an installed CometMQ: starts its server, sends, receives, and checks which build runs.

``python smoke.py compiled`` (or ``interpreted``) needs nothing but the installation of the Python
that runs it, so that it also serves in an environment without any tool for tests.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import cometmq
from cometmq.cli.build import compiled_modules, version_line

PACKAGE = Path(cometmq.__file__).parent
COMMAND = str(Path(sys.executable).with_name("cometmq"))
MAPS = Path("/proc/self/maps")
"""Linux's list of the files that this process has loaded."""
WITHOUT_SERVERS = ("win32",)
TIMEOUT_S = 60.0
"""Ends what hangs; a step takes a second."""


def hot_modules() -> list[str]:
    """Modules that have C types beside them, which only those on the list of the build have."""
    found = (path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.pxd"))
    return sorted(".".join(path.with_suffix("").parts) for path in found)


def check_modules(build: str) -> None:
    """Check that the import system finds the files of that build, and that the compiled ones load.

    Loading runs no module, so modules whose own imports are not installed are checked too.
    """
    expected = hot_modules() if build == "compiled" else []
    assert compiled_modules() == expected, f"{build}: expected {expected}, met {compiled_modules()}"
    for name in expected:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        importlib.util.module_from_spec(spec)


def check_server(build: str, store: str) -> None:
    """Start a name server and a broker, send a message, receive it and stop both."""
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    words = [COMMAND, "standalone", *ports, "--store", store, "--log-level", "warning"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(TIMEOUT_S, server.kill)
    watchdog.start()
    try:
        assert server.stdout is not None
        ready = server.stdout.readline()
        assert re.fullmatch(rf"ready namesrv=\S+ broker=\S+ build={build}\n", ready), ready
        address = ready.split()[1].removeprefix("namesrv=")
        sent = run("send", "smoke", "a green hat", "--tag", "new", "-n", address)
        assert sent.startswith("SEND_OK "), sent
        received = run("tail", "smoke", "--count", "1", "-n", address)
        assert received.endswith("tag=new 'a green hat'\n"), received
        if MAPS.exists():
            assert bool(libraries(server.pid)) == (build == "compiled"), libraries(server.pid)
        server.send_signal(signal.SIGTERM)
        assert server.wait(TIMEOUT_S) == 0, f"the server ended with {server.returncode}"
    finally:
        watchdog.cancel()
        server.kill()
        server.wait()


def check_refusal() -> None:
    """Check that the client loads, and that a server says where it runs."""
    importlib.import_module("cometmq.client.blocking")
    done = subprocess.run(
        [COMMAND, "standalone"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 2, done
    assert "WSL" in done.stderr, done


def run(*words: str) -> str:
    """Run a command of the installation and return what it printed."""
    done = subprocess.run(
        [COMMAND, *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{words} ended with {done.returncode}: {done.stderr}"
    return done.stdout


def libraries(pid: int) -> set[str]:
    """Compiled modules of the installation that a running process has loaded."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    paths = (line.split(maxsplit=5)[-1] for line in lines if f"{PACKAGE}{os.sep}" in line)
    return {path for path in paths if path.endswith(tuple(EXTENSION_SUFFIXES))}


def main(build: str) -> None:
    """Check the installation and print its version, its build and its folder."""
    check_modules(build)
    if sys.platform in WITHOUT_SERVERS:
        check_refusal()
    else:
        with tempfile.TemporaryDirectory(prefix="cometmq-smoke-") as store:
            check_server(build, store)
    print(f"{version_line()}, in {PACKAGE}")


if __name__ == "__main__":
    if sys.argv[1:] not in (["compiled"], ["interpreted"]):
        sys.exit("usage: python smoke.py compiled|interpreted")
    main(sys.argv[1])
