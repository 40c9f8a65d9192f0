"""Only one package imports system calls; each module uses only names that its systems have."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import windows
from support.processes.other_systems import is_missing, missing_names

SOURCES = Path(__file__).resolve().parents[3] / "src"
OF_SYSTEMS = SOURCES / "cometmq" / "system" / "platforms"
OF_FILTERS = {SOURCES / "cometmq" / "filtersrv" / name for name in ("sandboxed.py", "worker.py")}
"""The sandbox of class filters is of Linux; its program runs without the package, and says so."""
ASKED = {("sys", "platform"), ("os", "name"), ("platform", "system"), ("os", "uname")}
DIFFERENT = ("os", "signal", "socket", "mmap", "time")
"""Modules that lack names on some systems."""
IMPORTS = re.compile(
    r"^\s*(import|from) (os|signal|socket|mmap|time|sys|fcntl|resource|errno|select|ctypes|platform"
    r"|posix|pwd|grp|termios|tty|pty|syslog|msvcrt|winreg)\b", re.MULTILINE
)  # fmt: skip
CLIENT = (
    "cometmq.client", "cometmq.client.blocking", "cometmq.cli.main", "cometmq.cli.commands",
    "cometmq.cli.admin.app", "cometmq.cli.mqadmin.app",
)  # fmt: skip


def sources() -> list[Path]:
    found = [path for path in SOURCES.rglob("*.py") if OF_SYSTEMS not in path.parents]
    return [path for path in found if path not in OF_FILTERS]


@functools.cache
def of_client() -> frozenset[Path]:
    """The modules that applications and the tools for administrators load."""
    program = (
        f"import {', '.join(CLIENT)}, sys\n"
        "for name, each in sys.modules.items():\n"
        "    if name.startswith('cometmq'): print(each.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SOURCES), "COMETMQ_BUILD": "interpreted"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return frozenset(Path(line) for line in done.stdout.splitlines())


@functools.cache
def uses(path: Path) -> tuple[tuple[int, str, str], ...]:
    """The names of modules that a file uses: line, module, name; no name if it is imported.

    What asks a module for a name, as ``hasattr(os, "fork")`` does, is a use of ``hasattr``.
    """
    imported: dict[str, str] = {}
    found: list[tuple[int, str, str]] = []
    text = path.read_text()
    if not IMPORTS.search(text):
        return ()
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        if isinstance(node, ast.Import):
            imported.update({each.asname or each.name: each.name for each in node.names})
            found += [(node.lineno, each.name, "") for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.lineno, node.module, each.name) for each in node.names]
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.append((node.lineno, imported.get(node.value.id, ""), node.attr))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            asked = node.args[0]
            if node.func.id in ("hasattr", "getattr") and isinstance(asked, ast.Name):
                found.append((node.lineno, imported.get(asked.id, ""), node.func.id))
    return tuple(found)


def lacking(path: Path, platform: str) -> Iterator[str]:
    for line, module, name in uses(path):
        if module in sys.stdlib_module_names and (
            name in missing_names(module, platform) or (not name and is_missing(module, platform))
        ):
            yield f"{path.relative_to(SOURCES.parent)}:{line}: {module} {name}"


def test_no_module_uses_what_macos_lacks() -> None:
    assert [each for path in sources() for each in lacking(path, "darwin")] == []


def test_no_module_of_the_client_uses_what_windows_lacks() -> None:
    client = [path for path in sources() if path in of_client()]
    assert len(client) > 150
    assert [each for path in client for each in lacking(path, "win32")] == []


def test_the_tests_that_run_on_windows_use_what_windows_has() -> None:
    """`tests/windows.py` leaves out by name each test that does not run there."""
    unit = Path(__file__).resolve().parents[1]
    paths = [path for name in windows.TESTS for path in ((unit / name), *(unit / name).rglob("*"))]
    lack = {
        path.relative_to(unit).as_posix()
        for path in paths
        if path.suffix == ".py" and any(lacking(path, "win32"))
    }
    assert lack == {name.partition("::")[0] for name in windows.LEFT_OUT}


def test_no_module_asks_for_the_system() -> None:
    assert [
        f"{path.relative_to(SOURCES)}:{line}: {module}.{name}"
        for path in sources()
        for line, module, name in uses(path)
        if (module, name) in ASKED or (module in DIFFERENT and name in ("hasattr", "getattr"))
    ] == []


@pytest.mark.parametrize(
    ("module", "name", "platform"),
    [
        ("os", "fdatasync", "darwin"),
        ("os", "posix_fadvise", "darwin"),
        ("fcntl", "F_OFD_SETLK", "darwin"),
        ("time", "CLOCK_BOOTTIME", "darwin"),
        ("os", "O_DIRECTORY", "win32"),
        ("os", "register_at_fork", "win32"),
        ("mmap", "MADV_RANDOM", "win32"),
        ("signal", "SIGKILL", "win32"),
    ],
)
def test_the_stubs_say_what_a_system_lacks(module: str, name: str, platform: str) -> None:
    assert name in missing_names(module, platform)


def test_the_stubs_say_which_modules_a_system_lacks() -> None:
    modules = ("fcntl", "resource", "pwd", "os", "signal", "mmap")
    assert [name for name in modules if is_missing(name, "win32")] == ["fcntl", "resource", "pwd"]
    assert [name for name in modules if is_missing(name, "darwin")] == []
