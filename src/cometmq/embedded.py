"""A durable broker in a folder, for one application, as SQLite gives it a database.

The broker is a process of its own beside the application: neither stops the other's event loop. All
processes that open one folder share one broker. Each holds a connection to it, the lease. When the
last lease ends, also because its process was killed, the broker stops cleanly.

The folder is the store. Below ``embedded`` in it are:

    address.json   the addresses of the broker and the token for a lease; only its owner can read it
    start.lock     locked while a process looks for the broker or starts it
    server.lock    locked by the broker
    server.log     the warnings of the broker; older ones are in server.log.1
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import selectors
import socket
import subprocess
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

import msgspec

from cometmq.model.arguments import shows_line
from cometmq.model.errors import CometError, ConfigError
from cometmq.model.missing_attributes import Missing
from cometmq.system.files import FileLock, Files, is_disk_full
from cometmq.system.platforms import SYSTEM, require_servers

__all__ = ["Broker", "EmbeddedError", "open"]

log = logging.getLogger(__name__)

FILES = "embedded"
ADDRESS, START_LOCK, SERVER_LOCK, SERVER_LOG = (
    "address.json",
    "start.lock",
    "server.lock",
    "server.log",
)
VARIABLE = "COMETMQ_EMBEDDED_NAME_SERVERS"
"""A variable with name servers: if it is set, clients use them, and no broker is started."""
START_S = 30.0
"""Time for a start; it includes the recovery of a large store after a crash."""
STOP_S = 15.0
"""Time for an orderly stop after the last lease has ended."""
ANSWER_S = 5.0
"""Time for the broker to accept a lease."""
TRY_S = 0.02
READY, FAILED = b"ready ", b"failed "
"""The lines that the broker writes to its standard output: it serves, or it failed for a reason."""
LOG_TAIL_BYTES = 2_000
_PROGRAM = """
import json, sys
sys.path += [each for each in json.loads(sys.argv[1]) if each not in sys.path]
from cometmq.cli.embedded_server import main
main()
"""
"""The broker imports modules from its own Python first, then from the paths of this process."""


_NO_FOLDER = re.compile(r":memory:|[\w.-]+:\d+|\w+://.*")
_OPEN = 'async with embedded.open("data") as broker:'
_PARAMETERS = {
    "folder": "dir directory file filename path root store store_dir",
    "settings": "conf config options properties",
    "name_servers": "address addresses host hosts namesrv server servers url",
}
_MEANT = {other: name for name, others in _PARAMETERS.items() for other in others.split()}
"""Our parameters, by their names in other libraries."""
_PRODUCER = 'Producer(broker) as producer: await producer.send("orders", b"hello")'
_CONSUMER = 'PushConsumer(broker, topic="orders", group="billing", handler=bill)'
_ADMIN = 'AdminClient(broker) as admin: await admin.create_topic("orders", queues=4)'
_INSTEAD = {
    f"async with {_PRODUCER}": "producer produce publish put send",
    f"await {_CONSUMER}.run()": "consume consumer get listen receive subscribe",
    f"async with {_ADMIN}": "create_topic declare topic topics",
    "broker.name_servers": "address addresses host port uri url",
    "broker.start()": "connect open run serve",
    "broker.close()": "disconnect shutdown stop terminate",
}
"""The attributes of a broker in other libraries, by the line to write instead."""


class EmbeddedError(CometError):
    """The broker of a folder cannot be started or used."""


class Address(msgspec.Struct, frozen=True):
    """The content of ``address.json``. The broker that wrote it may have been killed."""

    name_servers: str
    lease: str
    token: str
    pid: int
    settings_crc: int = 0


@shows_line(_OPEN, _MEANT)
def open(
    folder: str | os.PathLike[str],
    *,
    name_servers: str = "",
    settings: Mapping[str, str] | None = None,
) -> Broker:
    """Return the broker of a folder; ``with`` or ``async with`` starts and leaves it.

    Args:
        folder: the store; it is made if it is missing. ``cometmq broker --store`` opens it later.
        name_servers: use these servers, and start no broker: the way to move to servers. If empty,
            the variable ``COMETMQ_EMBEDDED_NAME_SERVERS`` is used.
        settings: settings of the broker by RocketMQ's keys; each value is text. They apply only
            if this process starts the broker; a warning is logged if it runs with other settings.

    Raises:
        ConfigError: the folder is not a path; a setting is not text, or names another store.

    Example:
        async with embedded.open("data") as broker, Producer(broker) as producer:
            await producer.send("orders", b"42")
    """
    return Broker(folder, name_servers=name_servers, settings=settings)


class Broker:
    """The broker of a folder. Make one with `open`."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        name_servers: str = "",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(folder, str | os.PathLike) or str(folder) == "" or "\0" in str(folder):
            raise ConfigError(f"folder={folder!r}: expected a path: embedded.open('data')")
        if _NO_FOLDER.fullmatch(str(folder)):
            raise ConfigError(
                f"folder={folder!r}: expected a path, such as 'data'. For servers that run write "
                "Producer('127.0.0.1:9876'), for a broker in memory `cometmq.testing.Cluster`"
            )
        if not isinstance(settings, Mapping | None):
            raise ConfigError(f"settings={settings!r}: expected a dict: {{'deleteWhen': '05'}}")
        self.folder = Path(folder).expanduser().absolute()
        """The store."""
        self._settings = dict(settings or {})
        for key, value in self._settings.items():
            if not isinstance(value, str):
                raise ConfigError(f"settings: {key}={value!r}: expected text, such as 'true'")
        if "storePathRootDir" in self._settings:
            raise ConfigError("settings: storePathRootDir: the folder is the store: open that one")
        self._elsewhere = name_servers or os.environ.get(VARIABLE, "")
        self._name_servers = self._elsewhere
        self._files = self.folder / FILES
        self._start_lock: FileLock | None = None
        self._lease: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starting_or_closing = threading.RLock()  # a signal handler may close in a start
        self._giving_up = threading.Event()

    @property
    def name_servers(self) -> str:
        """The address for clients. A client also takes the broker itself: ``Producer(broker)``."""
        if not self._name_servers:
            raise EmbeddedError(
                f"the broker of {self.folder} is not open: use it within `with` or `async with`, "
                f"as in `{_OPEN}`"
            )
        return self._name_servers

    @property
    def alive(self) -> bool:
        """Whether the broker runs; False before the start, and after the broker was killed.

        A killed broker is not restarted: let the application end, or open the folder again.
        """
        if self._elsewhere:
            return True
        lease = self._lease
        if lease is None:
            return False
        try:
            return bool(lease.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def start(self) -> None:
        """Use the broker of the folder, and start it if none runs.

        Raises:
            ConfigError: brokers do not run on this system.
            EmbeddedError: the broker cannot be started, or does not respond; the text says why.
        """
        self._start(threading.Event())

    def _start(self, giving_up: threading.Event) -> None:
        if self._elsewhere:
            log.info("no embedded broker is started name_servers=%s", self._elsewhere)
            return
        require_servers()
        with self._starting_or_closing:
            if self._lease is not None or self._start_lock is not None:
                raise EmbeddedError(f"the broker of {self.folder} is open already: open it once")
            self._giving_up = giving_up
            self._find_or_start(time.monotonic() + START_S)

    def _find_or_start(self, deadline: float) -> None:
        try:
            self._files.mkdir(parents=True, exist_ok=True)
            _open_brokers.add(self)
            self._start_lock = self._locked(deadline)
            try:
                if not self._join():
                    self._start_server(deadline)
            finally:
                self._start_lock.release()
                self._start_lock = None
        except OSError as error:
            raise _cannot_use(self.folder, error) from error

    def close(self) -> None:
        """Leave the broker. If no other process uses it, it stops, and the call waits for that.

        Each acknowledged message is on the disk, even if the broker does not stop cleanly. A start
        in another thread fails with `EmbeddedError`. Several threads may call this; each waits.
        """
        self._giving_up.set()
        with self._starting_or_closing:
            self._leave()

    def _leave(self) -> None:
        lease, self._lease = self._lease, None
        self._name_servers = self._elsewhere
        if lease is None:
            return
        process, self._process = self._process, None
        stops = False
        with lease, contextlib.suppress(OSError):
            lease.shutdown(socket.SHUT_WR)
            lease.settimeout(STOP_S)
            stops = lease.recv(1) == b"."
            while stops and lease.recv(1):
                pass  # the broker holds the connection until it has ended
        if process is None:
            return
        if stops:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        if process.returncode is None:  # others use it: reap it when they have left
            threading.Thread(target=process.wait, name="embedded broker", daemon=True).start()

    def __await__(self) -> NoReturn:
        raise TypeError(f"a broker is opened without `await`: write `{_OPEN}`")

    async def __aenter__(self) -> Self:
        giving_up = threading.Event()
        starting = asyncio.ensure_future(asyncio.to_thread(self._start, giving_up))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            giving_up.set()
            await asyncio.wait([starting])
            if not starting.cancelled() and starting.exception() is None:
                await asyncio.to_thread(self.close)
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        closing = asyncio.ensure_future(asyncio.to_thread(self.close))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait([closing])
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _locked(self, deadline: float) -> FileLock:
        """Wait until no other process looks for the broker or starts it."""
        path = self._files / START_LOCK
        while True:
            try:
                return Files().lock(path, b"")
            except BlockingIOError:
                self._check_time(
                    deadline, lambda: f"{path} was locked by another process that starts it"
                )
            self._giving_up.wait(TRY_S)

    def _check_time(self, deadline: float, met: Callable[[], str]) -> None:
        if self._giving_up.is_set():
            raise EmbeddedError(f"the start of the broker of {self.folder} was cancelled")
        if time.monotonic() >= deadline:
            raise EmbeddedError(
                f"the broker of {self.folder} was not ready within {START_S:g} s: {met()}"
            )

    def _join(self) -> bool:
        """Take a lease of the broker that runs; return False if none responds at the address.

        The address may be old, or a copy in a copied folder: the broker of this folder holds its
        lock and knows the token.
        """
        with contextlib.suppress(BlockingIOError):
            Files().lock(self._files / SERVER_LOCK, b"").release()
            return False
        try:
            data = (self._files / ADDRESS).read_bytes()
            address = msgspec.json.decode(data, type=Address)
        except (FileNotFoundError, msgspec.MsgspecError):
            return False
        host, _, port = address.lease.rpartition(":")
        try:
            lease = socket.create_connection((host, int(port)), timeout=ANSWER_S)
        except (OSError, ValueError):
            return False
        try:
            lease.sendall(f"{address.token}\n".encode())
            response = lease.recv(1)
        except OSError:
            response = b""
        if response != b"+":
            lease.close()
            return False
        lease.settimeout(None)
        self._lease, self._name_servers = lease, address.name_servers
        if self._settings and address.settings_crc != zlib.crc32(self._settings_line()):
            log.warning(
                "settings have no effect: the broker of %s was started with other settings; "
                "open the folder with the same settings everywhere",
                self.folder,
            )
        return True

    def _start_server(self, deadline: float) -> None:
        modules = json.dumps([str(Path(each).absolute()) for each in sys.path])
        flags = ["-P", *["-E"] * sys.flags.ignore_environment, *["-s"] * sys.flags.no_user_site]
        command = [self._python(), *flags, "-X", "no_debug_ranges", "-c", _PROGRAM]
        with (self._files / SERVER_LOG).open("ab") as errors:
            begin = errors.tell()
            try:
                process = subprocess.Popen(
                    [*command, modules, str(self.folder)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    cwd=self.folder,  # keeps no other folder from being removed
                    # A session of its own: Ctrl-C at a terminal reaches only the application.
                    start_new_session=True,
                )
            except OSError as error:
                raise EmbeddedError(f"cannot start {command[0]}: {error}") from error
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:  # the end of its input is the end of a first lease
            try:
                # Every user can read the arguments of a process, and settings may be passwords.
                with contextlib.suppress(BrokenPipeError):  # it ended: it says why
                    os.write(process.stdin.fileno(), self._settings_line())
                self._wait_ready(process, deadline, begin)
                if not self._join():
                    raise EmbeddedError(
                        f"the broker of {self.folder} refused its first lease: "
                        f"{self._logged_since(begin)}"
                    )
            except BaseException:
                self._process = None
                process.kill()
                process.wait()
                raise

    def _python(self) -> str:
        """Return the program of Python: this one, or the one of ``multiprocessing``."""
        spawn = sys.modules.get("multiprocessing.spawn")
        program = os.fsdecode((spawn and spawn.get_executable()) or sys.executable or "")
        if not program:
            met = "sys.executable is empty, expected the path of Python"
        elif getattr(sys, "frozen", False) and program == sys.executable:
            met = f"sys.executable is {program}, a frozen application, expected a Python"
        else:
            return program
        raise EmbeddedError(
            f"cannot start the broker of {self.folder}: {met}: name a Python that has CometMQ "
            "with `multiprocessing.set_executable`, or run `cometmq standalone --store` and set "
            f"{VARIABLE} to its name server"
        )

    def _settings_line(self) -> bytes:
        return json.dumps(self._settings, sort_keys=True).encode() + b"\n"

    def _wait_ready(self, process: subprocess.Popen[bytes], deadline: float, begin: int) -> None:
        assert process.stdout is not None
        path, met = self._files / SERVER_LOG, b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while READY not in met or not met.endswith(b"\n"):
                if selector.select(TRY_S):
                    part = os.read(process.stdout.fileno(), 4096)
                    if not part:
                        why = met.partition(FAILED)[2].decode(errors="replace")
                        why = why or self._logged_since(begin) or _end_of(process, self._python())
                        raise EmbeddedError(f"the broker of {self.folder} did not start: {why}")
                    met += part
                self._check_time(deadline, lambda: f"see {path}: {self._logged_since(begin)}")

    def _logged_since(self, begin: int) -> str:
        """Return the end of what the broker has logged since its start."""
        path = self._files / SERVER_LOG
        with path.open("rb") as stream:
            stream.seek(max(begin, path.stat().st_size - LOG_TAIL_BYTES))
            return stream.read().decode(errors="replace").strip()

    def _leave_to_parent(self) -> None:
        """In a forked child: the lease is the parent's, and so is a start."""
        if self._lease is not None:
            self._lease.close()
        if self._start_lock is not None:
            self._start_lock.release()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._lease = self._start_lock = self._process = None
        self._starting_or_closing = threading.RLock()  # another thread of the parent may hold it


for _line, _names in _INSTEAD.items():
    for _name in _names.split():
        setattr(Broker, _name, Missing(_name, _line))

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from cometmq.model.missing_names import missing_name

        raise missing_name(__name__, name)


def _cannot_use(folder: Path, error: OSError) -> EmbeddedError:
    expected = (
        "room on the disk; delete files or choose another folder"
        if is_disk_full(error)
        else "a folder that this user may write; choose another one or change its owner"
    )
    return EmbeddedError(
        f"cannot use the folder {folder}: {error.filename}: {error.strerror}: expected {expected}"
    )


def _end_of(process: subprocess.Popen[bytes], program: str) -> str:
    """Return how a process ended that wrote nothing: another program, or one that was killed."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ANSWER_S)
    code = process.returncode
    return f"{program} ended with exit code {code} and wrote nothing, expected a Python"


_open_brokers: weakref.WeakSet[Broker] = weakref.WeakSet()


def _after_fork() -> None:
    for broker in list(_open_brokers):
        broker._leave_to_parent()


SYSTEM.after_fork(_after_fork)
