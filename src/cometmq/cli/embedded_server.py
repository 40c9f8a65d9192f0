"""The server of `cometmq.embedded`: runs until the last process that uses the folder has left.

Each process holds a lease, a connection to the server. The process sends the token of the address
file; the server responds with ``+``. The process leaves by ending its side of the connection. If
other leases are left, the server closes the connection. After the last lease it responds with ``.``
and stops, and the connection ends with it. Until the process that started the server has its lease,
standard input counts as one, so that no server is left if that process is killed. The first line of
standard input has the settings. If the server cannot start, it writes ``failed`` and the reason to
its standard output: a full disk has no room for a line in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import os
import secrets
import sys
import time
import zlib
from hmac import compare_digest
from pathlib import Path

import msgspec

from cometmq.cli import logs
from cometmq.cli.exit_codes import exit_with
from cometmq.cli.serve import serve
from cometmq.cli.server_options import ServerOptions
from cometmq.cli.servers import Standalone, standalone_configurations
from cometmq.embedded import (
    ADDRESS,
    FAILED,
    FILES,
    SERVER_LOCK,
    SERVER_LOG,
    STOP_S,
    TRY_S,
    Address,
)
from cometmq.model.address import host_and_port
from cometmq.model.errors import CometError
from cometmq.remoting.ports import LOOPBACK
from cometmq.system.files import FileLock, Files
from cometmq.system.log_format import LogSettings

TOKEN_BYTES = 24
LINE_BYTES_MAX = 200
GREETING_S = 5.0
"""Time for a new connection to send its token."""
LOG_BYTES_MAX = 1024 * 1024
"""From this size on the log is continued in a new file; the one before is kept."""


class EmbeddedServer:
    """A name server and a broker that live as long as their leases.

    Args:
        standalone: the servers.
        folder: for the address file.
        settings_crc: the checksum of the line with the settings.
        end: a descriptor of a pipe that is closed when the last lease has ended.
    """

    def __init__(self, standalone: Standalone, folder: Path, settings_crc: int, end: int) -> None:
        self._standalone = standalone
        self._address = folder / ADDRESS
        self._settings_crc = settings_crc
        self._end = end
        self._token = secrets.token_hex(TOKEN_BYTES)
        self._leases = 1
        self._holds_first = True
        """Whether standard input counts as a lease: until the starter has one."""
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Serve, and accept leases."""
        await self._standalone.start()
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._end_first)
        self._listener = await loop.create_server(lambda: _Lease(self, self._token), LOOPBACK, 0)
        host, port = self._listener.sockets[0].getsockname()[:2]
        assert self._standalone.name_server is not None
        address = Address(
            self._standalone.name_server.address,
            host_and_port(host, port),
            self._token,
            os.getpid(),
            self._settings_crc,
        )
        try:
            _write_private(self._address, msgspec.json.encode(address))
        except OSError as error:
            raise CometError(f"cannot write {self._address}: {error.strerror}") from error

    async def stop(self) -> None:
        """Accept no lease, and stop the servers."""
        if self._listener is not None:
            self._listener.close()
            self._address.unlink(missing_ok=True)
        await self._standalone.stop()

    def _end_first(self) -> None:
        if self._holds_first:
            self._holds_first = False
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.leave()

    def enter(self) -> bool:
        """Count a lease; False if the server stops already."""
        if self._end < 0:
            return False
        self._leases += 1
        self._end_first()  # the starter's lease replaces its standard input
        return True

    def leave(self) -> bool:
        """Count the end of a lease; return whether it was the last one, and the server stops."""
        self._leases -= 1
        if self._leases or self._end < 0:
            return False
        os.close(self._end)
        self._end = -1
        return True

    def __str__(self) -> str:
        return str(self._standalone)


class _Lease(asyncio.Protocol):
    """A connection of a process that uses the folder."""

    def __init__(self, server: EmbeddedServer, token: str) -> None:
        self._server = server
        self._expected = f"{token}\n".encode()
        self._met = b""
        self._entered = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the token."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(GREETING_S, self._check_token)

    def data_received(self, data: bytes) -> None:
        """Read the token."""
        if not self._entered:
            self._met += data
            if b"\n" in data or len(self._met) > LINE_BYTES_MAX:
                self._check_token()

    def _check_token(self) -> None:
        assert self._transport is not None
        if self._entered:
            return
        if compare_digest(self._met, self._expected) and self._server.enter():
            self._entered = True
            self._transport.write(b"+")
        else:
            self._transport.abort()

    def eof_received(self) -> bool:
        """The process has left; keep the connection if it was the last one."""
        return self._left()

    def connection_lost(self, error: Exception | None) -> None:
        """The process has left, or was killed."""
        if self._timer is not None:
            self._timer.cancel()
        self._left()

    def _left(self) -> bool:
        if not self._entered:
            return False
        self._entered = False
        is_last = self._server.leave()
        if is_last and self._transport is not None:
            self._transport.write(b".")
        return is_last


class BoundedLog(io.TextIOBase):
    """Standard error as a file that is continued in a new one when it is large.

    What does not write through this object, such as the interpreter, writes to the same file.

    Args:
        path: the file; the one before is ``X.1``.
        descriptor: the file, open for appending; later the new file.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__()
        self._path = path
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Append a text; it is lost if the disk is full."""
        with contextlib.suppress(OSError):
            if os.fstat(self._descriptor).st_size >= LOG_BYTES_MAX:
                self._continue_in_new_file()
            os.write(self._descriptor, text.encode(errors="replace"))
        return len(text)

    def _continue_in_new_file(self) -> None:
        try:
            self._path.replace(f"{self._path}.1")
            fresh = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError:  # the folder was removed, or may not be written any more
            os.ftruncate(self._descriptor, 0)
        else:
            os.dup2(fresh, self._descriptor)
            os.close(fresh)


def _write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, all at once."""
    fresh = path.with_suffix(".tmp")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    fresh.replace(path)


def _lock(folder: Path) -> FileLock:
    """Wait until the server before has ended, and lock the folder.

    Raises:
        CometError: it did not end in time.
    """
    deadline = time.monotonic() + STOP_S
    while True:
        try:
            return Files().lock(folder / SERVER_LOCK, b"")
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise CometError(
                    f"another embedded broker uses {folder.parent} and does not respond: end it"
                ) from None
        time.sleep(TRY_S)


def _run(folder: Path, line: bytes) -> int:
    files = folder / FILES
    lock = _lock(files)
    try:
        options = ServerOptions(namesrv_port=0, broker_port=0, host=LOOPBACK, store=folder)
        name_server_configuration, broker_configuration = standalone_configurations(
            options, json.loads(line)
        )
        logs.configure("warning", form=broker_configuration[LogSettings].format)
        ended, end = os.pipe()
        server = EmbeddedServer(
            Standalone(name_server_configuration, broker_configuration, None),
            files,
            zlib.crc32(line),
            end,
        )
        return serve(server, lambda: str(server), until_end_of=ended, small=True)
    finally:
        lock.release()


def _run_or_report(folder: Path, line: bytes) -> int:
    sys.stderr = BoundedLog(folder / FILES / SERVER_LOG, sys.stderr.fileno())
    try:
        return _run(folder, line)
    except Exception as error:
        reason = f"{error}" if isinstance(error, CometError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):  # the starter has left: it was ready before
            os.write(sys.stdout.fileno(), FAILED + reason.encode(errors="replace"))
        raise


def main() -> None:
    """Run the server; the arguments are the path of modules in JSON, and the folder."""
    gc.disable()  # modules leave next to no garbage; `event_loop.run` enables it
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(sys.stdin.fileno(), 4096)
        if not part:
            return  # the starter was killed
        line += part
    exit_with(lambda: _run_or_report(Path(sys.argv[2]), line), "cometmq.embedded")
