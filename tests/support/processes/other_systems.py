"""Runs a program as if on macOS or Windows, as far as that can be shown on Linux.

    python -m support.processes.other_systems macos|windows -m MODULE ARGUMENT...

At its end the program prints how often it made each imitated call.

CometMQ's modules then lack what that system lacks: modules and names, by the type stubs of mypy,
which list the names of each system's Python; ``/proc`` and ``/sys``; on Windows also signal
handlers of event loops, uvloop, and the rename or removal of an open file. What macOS alone has is
imitated with what Linux has. Other modules, such as the standard library's, and processes that the
program starts see Linux. Imports of compiled modules bypass the imitation: run with
``COMETMQ_BUILD=interpreted``.
"""

from __future__ import annotations

import ast
import asyncio
import atexit
import builtins
import ctypes
import errno
import fcntl
import functools
import os
import resource
import runpy
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

PLATFORMS = {"macos": "darwin", "windows": "win32"}
OURS = ("cometmq", "build_ext", "make_venv")
"""The packages and modules that lack what the other system lacks."""
KNOWN_ERRORS = {("darwin", "fcntl"): {"F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW"}}
"""Names that the stubs have for a system and its Python has not."""
FULL_SYNC, PREALLOCATE, READ_AHEAD = 51, 42, 45
"""Commands of macOS's fcntl(2)."""
OPEN_FILES_MAX = 61_440
"""The largest limit that the kernel of macOS grants."""
calls: Counter[str] = Counter()
"""How often each imitated call was made."""


# --- what the other system lacks -------------------------------------------------------------


@functools.cache
def missing_names(module: str, platform: str) -> frozenset[str]:
    """The names of a module of the standard library on Linux that another platform lacks."""
    stub = _stub_of(module)
    if stub is None:
        return frozenset()
    missing = set(_names(stub, "linux")) - set(_names(stub, platform))
    return frozenset(missing | KNOWN_ERRORS.get((platform, module), set()))


@functools.cache
def is_missing(module: str, platform: str) -> bool:
    """Whether another platform lacks a module of the standard library."""
    stub = _stub_of(module)
    if stub is None or not missing_names(module, platform):
        return False
    return all(name.startswith("_") or name in _imports(stub) for name in _names(stub, platform))


def _stub_of(module: str) -> Path | None:
    spec = find_spec("mypy")
    assert spec is not None
    path = Path(str(spec.origin)).parent.joinpath("typeshed", "stdlib", *module.split("."))
    return next(
        (each for each in (path / "__init__.pyi", path.with_suffix(".pyi")) if each.exists()), None
    )


@functools.cache
def _names(stub: Path, platform: str) -> frozenset[str]:
    return frozenset(_defined(ast.parse(stub.read_text()).body, platform))


@functools.cache
def _imports(stub: Path) -> frozenset[str]:
    """The names that a stub imports for its own use."""
    imports = (each for each in ast.walk(ast.parse(stub.read_text())) if _is_import(each))
    return frozenset(name.name for each in imports for name in each.names if not name.asname)


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _defined(body: list[ast.stmt], platform: str) -> Iterator[str]:
    seen = SimpleNamespace(platform=platform, version_info=sys.version_info)
    for node in body:
        if isinstance(node, ast.If):
            code = compile(ast.Expression(node.test), "stub", "eval")
            holds = eval(code, {"sys": seen, "TYPE_CHECKING": True})
            yield from _defined(node.body if holds else node.orelse, platform)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (name.asname or name.name for name in node.names)


# --- what CometMQ's modules see --------------------------------------------------------------


class _Seen(ModuleType):
    """A module as another system has it."""

    def __init__(self, real: ModuleType, missing: frozenset[str], other: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        vars(self).update(other)
        vars(self)["_real"], vars(self)["_missing"] = real, missing

    def __getattr__(self, name: str) -> Any:
        own = vars(self)
        if name in own["_missing"]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} here")
        return getattr(own["_real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_real"], name, value)


def take_away(system: str) -> None:
    """Take away what a system lacks, for the rest of this process."""
    platform = PLATFORMS[system]
    other: dict[str, dict[str, Any]] = {"sys": {"platform": platform}}
    absent: set[str] = set()
    if system == "macos":
        other |= _imitations()
    else:
        other["os"] = {"O_BINARY": 0}
        absent.add("uvloop")
        for name in ("add_signal_handler", "remove_signal_handler"):
            setattr(asyncio.SelectorEventLoop, name, _not_implemented)
    real_import = builtins.__import__
    seen: dict[str, _Seen] = {}

    def import_(name: str, globals: Any = None, *rest: Any, **named: Any) -> ModuleType:
        importer = (globals or {}).get("__name__", "")
        if importer.partition(".")[0] not in OURS:
            return real_import(name, globals, *rest, **named)
        if name == "msvcrt":
            return _msvcrt
        found = real_import(name, globals, *rest, **named)
        if name in absent or is_missing(name, platform):
            raise ModuleNotFoundError(f"No module named {name!r}, here", name=name)
        full = found.__name__
        if full not in seen and (full in other or missing_names(full, platform)):
            seen[full] = _Seen(found, missing_names(full, platform), other.get(full, {}))
        return seen.get(full, found)

    builtins.__import__ = import_
    atexit.register(lambda: print(f"as if on {system}: {dict(calls)}", file=sys.stderr))
    sys.addaudithook(_hook(system))


def _not_implemented(*_: Any) -> None:
    raise NotImplementedError


def _hook(system: str) -> Callable[[str, tuple[Any, ...]], None]:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])
        if system == "windows" and event in ("os.rename", "os.remove"):
            for path in arguments[: 2 if event == "os.rename" else 1]:
                if _is_open(path):
                    raise PermissionError(errno.EACCES, "another program uses this file", path)

    return hook


def _is_open(path: str) -> bool:
    """Whether a descriptor of this process refers to a file."""
    try:
        wanted = Path(path).stat()
    except OSError:
        return False
    for number in Path("/proc/self/fd").iterdir():
        try:
            found = number.stat()
        except OSError:  # the descriptor of the listing
            continue
        if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
            return True
    return False


# --- what macOS alone has --------------------------------------------------------------------


def _imitations() -> dict[str, dict[str, Any]]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip() + b"\0"
    values = {
        b"kern.bootsessionuuid": boot,
        b"hw.memsize": (8 << 30).to_bytes(8, "little"),
        b"kern.maxfilesperproc": OPEN_FILES_MAX.to_bytes(4, "little"),
    }
    return {
        "fcntl": {"fcntl": _fcntl},
        "resource": {"setrlimit": _setrlimit},
        "ctypes": {"CDLL": lambda *_, **__: _Library(values)},
    }


def _fcntl(descriptor: int, command: int, argument: Any = 0) -> Any:
    if command == FULL_SYNC:
        calls["full sync"] += 1
        return os.fsync(descriptor)
    if command == READ_AHEAD:
        return 0
    if command == PREALLOCATE:
        calls["preallocate"] += 1
        flags, mode, offset, length, _ = struct.unpack("Iiqqq", argument)
        if (flags, mode, offset) != (4, 3, 0):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        end, size = os.fstat(descriptor).st_blocks * 512, os.fstat(descriptor).st_size
        os.posix_fallocate(descriptor, end, length)
        os.ftruncate(descriptor, size)
        return argument
    return fcntl.fcntl(descriptor, command, argument)


def _setrlimit(which: int, limits: tuple[int, int]) -> None:
    """The kernel refuses a soft limit of open files that it does not grant."""
    soft, _ = limits
    if which == resource.RLIMIT_NOFILE and not 0 <= soft <= OPEN_FILES_MAX:
        raise ValueError("current limit exceeds maximum limit")
    resource.setrlimit(which, limits)


class _Call:
    """A function of a library; it has types, like a function of ctypes."""

    def __init__(self, call: Callable[..., int]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> int:
        return self._call(*arguments)


class _Library:
    """The C library of macOS, as far as it is used."""

    def __init__(self, values: dict[bytes, bytes]) -> None:
        real = ctypes.CDLL(None, use_errno=True)

        def msync(address: int, length: int, flags: int) -> int:
            calls["msync"] += 1
            assert flags == 0x10  # MS_SYNC there; 4 here
            return int(real.msync(ctypes.c_void_p(address), ctypes.c_size_t(length), 4))

        def sysctlbyname(name: bytes, value: Any, size: Any, *_: Any) -> int:
            found = values.get(name)
            if found is None:
                return -1
            ctypes.memmove(value, found, len(found))
            size._obj.value = len(found)
            return 0

        self.msync, self.sysctlbyname = _Call(msync), _Call(sysctlbyname)
        self.mincore = real.mincore


# --- what Windows alone has ------------------------------------------------------------------


def _locking(descriptor: int, mode: int, size_bytes: int) -> None:
    assert (mode, size_bytes) == (_msvcrt.LK_NBLCK, 1)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_msvcrt: Any = ModuleType("msvcrt")
_msvcrt.LK_NBLCK, _msvcrt.locking = 2, _locking


# --- running -----------------------------------------------------------------------------------


def command(system: str, module: str, *arguments: str) -> list[str]:
    """The command that runs a module as if on a system."""
    return [
        sys.executable,
        "-m",
        "support.processes.other_systems",
        system,
        "-m",
        module,
        *arguments,
    ]


def environment() -> dict[str, str]:
    """The environment of a command that runs as if on another system."""
    root = Path(__file__).resolve().parents[3]
    path = os.pathsep.join(map(str, (root / "src", root, root / "tests")))
    build = {"COMETMQ_BUILD": "interpreted", "COMETMQ_EXPECT_BUILD": "interpreted"}
    return {**os.environ, **build, "PYTHONPATH": path}


def run(system: str, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module as if on a system, to its end."""
    return subprocess.run(
        command(system, module, *arguments),
        env=environment(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


if __name__ == "__main__":
    _, chosen, _, program, *_ = sys.argv
    sys.argv = sys.argv[3:]
    from support.processes import other_systems

    other_systems.take_away(chosen)
    runpy.run_module(program, run_name="__main__", alter_sys=True)
