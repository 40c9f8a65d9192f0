"""Runs commands as forks of one process that has loaded CometMQ: 0.06 s of CPU instead of 0.35.

A command line begins with `python` instead of ``sys.executable``; `commands` is a folder for
``PATH`` with a ``cometmq`` that does the same. A fork has the arguments, environment, folder,
files, signals and exit code of the process that asks for it; it runs ``-m module``, ``-c text`` and
a file.
Tests of a start, of limits or of a process id, and servers, start a new process instead.
"""

from __future__ import annotations

import atexit
import functools
import gc
import io
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TextIO

LOADED = (
    "cometmq.cli.main",
    "cometmq.cli.commands",
    "cometmq.cli.event_loop",
    "cometmq.cli.messages",
    "cometmq.cli.servers",
    "cometmq.cli.store_files",
    "cometmq.cli.admin.commands",
    "cometmq.cli.mqadmin.commands",
    "cometmq.cli.doctor.app",
    "cometmq.client.blocking",
    "cometmq.broker.app",
)
"""The modules that commands and examples import."""
kept: list[int] = []
"""The pipe to the server, which is open as long as this process lives."""
CLIENT = Path(__file__).with_name("fork_client.py")
END_S = 60.0


@functools.cache
def python() -> tuple[str, ...]:
    """The beginning of a command line, instead of ``sys.executable``."""
    return (sys.executable, "-I", "-S", str(CLIENT), str(_server() / "socket"))


@functools.cache
def commands() -> Path:
    """A folder with a program ``cometmq``."""
    folder = _server()
    program = folder / "cometmq"
    words = " ".join(f"'{word}'" for word in python())
    program.write_text(f'#!/bin/sh\nexec {words} -m cometmq "$@"\n')
    program.chmod(0o755)
    return folder


@functools.cache
def _server() -> Path:
    """Start the server; it ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="cometmq-forks-")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"{folder.name}/socket")
        listener.listen(16)
        process = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )

    assert process.stdin is not None
    kept.append(process.stdin.fileno())

    def end() -> None:
        process.communicate(timeout=END_S)
        folder.cleanup()

    atexit.register(end)
    return Path(folder.name)


def load() -> None:
    """Import the modules of programs, also those that the command line loads while it runs."""
    for each in LOADED:
        import_module(each)
    from typer.testing import CliRunner

    from cometmq.cli.commands import app

    for words in (["--help"], ["store", "list", os.devnull]):
        CliRunner().invoke(app, words)


class Program(NamedTuple):
    """The program that a fork runs."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]


def serve(listener: socket.socket) -> Program:
    """Fork for each connection until standard input ends; return in the fork what it has to run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the whole group
    while True:
        readable, _, _ = select.select([0, listener], [], [])
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # also counts what it used
        if 0 in readable:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return _fork(connection)
        connection.close()


def _fork(connection: socket.socket) -> Program:
    """Fork again, and return in that process; this one waits for it and sends its exit code."""
    head, files, _, _ = socket.recv_fds(connection, 65_536, 3)
    size = 4 + int.from_bytes(head[:4])
    while len(head) < size:
        head += connection.recv(size - len(head))
    ended, lives = os.pipe()
    program = os.fork()
    if program == 0:
        os.close(ended)
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        return Program(*marshal.loads(head[4:]))
    for file in (*files, lives):
        os.close(file)
    connection.sendall(program.to_bytes(4))
    readable, _, _ = select.select([connection, ended], [], [])
    if connection in readable:  # the test has killed the process that stands for it
        os.kill(program, signal.SIGKILL)
    _, status = os.waitpid(program, 0)
    with suppress(OSError):
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, signed=True))
    os._exit(0)


def run(program: Program) -> None:
    """Run a program as Python does."""
    os.chdir(program.folder)
    os.environ.clear()
    os.environ.update(program.environment)
    sys.stdin = _stream(0, "r", "strict")
    sys.stdout = _stream(1, "w", "strict")
    sys.stderr = _stream(2, "w", "backslashreplace")
    first, *rest = program.arguments
    if first == "-m":
        sys.argv, sys.path[0] = rest, program.folder
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        text, *arguments = rest
        sys.argv, sys.path[0] = ["-c", *arguments], ""
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(text, "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0] = program.arguments, str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


def _stream(number: int, mode: str, errors: str) -> TextIO:
    is_unbuffered = mode == "w" and bool(os.environ.get("PYTHONUNBUFFERED"))
    file = open(number, f"{mode}b", 0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
    is_by_line = errors != "strict" or os.isatty(number)
    return io.TextIOWrapper(
        file, "utf-8", errors, line_buffering=is_by_line, write_through=is_unbuffered
    )


def main() -> None:
    """Serve until standard input ends; in a fork, run what it was asked to run."""
    code: int | None = None

    def leave() -> None:
        if code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # taking modules apart takes longer than most programs

    atexit.register(leave)  # first, so it runs last
    load()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        program = serve(listener)
    try:
        run(program)
        code = 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1


if __name__ == "__main__":
    main()
