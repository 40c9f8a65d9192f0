"""Child processes of the tests: started with a log, awaited, gone when the tests end."""

from __future__ import annotations

import atexit
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

POLL_SECONDS = 0.05
STOP_SECONDS_MAX = 120.0
LAUNCHER = Path(__file__).resolve().with_name("die_with_parent.py")

_running: set[Process] = set()


class ProcessError(AssertionError):
    """A program did not do what it was started for; the text carries the end of its log."""


def accepts(port: int) -> bool:
    """Whether something on this machine accepts connections on the port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


class Process:
    """One program with its output in a log file.

    With `talks`, its standard input and output are pipes. The caller reads the output and closes
    it: what a program wrote before it was killed is still there to read.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        talks: bool = False,
    ) -> None:
        self.log = log
        self._name = Path(arguments[0]).name
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            self._popen = subprocess.Popen(
                [sys.executable, "-S", str(LAUNCHER), *arguments],
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else sink,
                stderr=sink,
                env=None if env is None else dict(env),
                cwd=cwd,
            )
        self.stdin, self.stdout = self._popen.stdin, self._popen.stdout
        _running.add(self)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def wait_until(self, ready: Callable[[], object], what: str, timeout: float) -> None:
        """Poll ``ready`` until it is true; fail if the program ends or the time is up first."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.is_running:
                raise self.error(f"ended with {self._popen.returncode} before {what}")
            if time.monotonic() > deadline:
                raise self.error(f"{what} did not come within {timeout:.0f} s")
            time.sleep(POLL_SECONDS)

    def stop(self, timeout: float = STOP_SECONDS_MAX) -> int:
        """End the program with SIGTERM and return its exit status."""
        self._popen.terminate()
        return self.wait(timeout)

    def kill(self) -> None:
        """End the program with SIGKILL: it can save nothing."""
        self._popen.kill()
        self.wait(STOP_SECONDS_MAX)

    def wait(self, timeout: float) -> int:
        """Wait for the end of the program and return its exit status."""
        try:
            status = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
            self._forget()
            raise self.error(f"was still running after {timeout:.0f} s") from None
        self._forget()
        return status

    def _forget(self) -> None:
        _running.discard(self)
        if self.stdin is not None:
            with contextlib.suppress(OSError):
                self.stdin.close()

    def error(self, text: str) -> ProcessError:
        """An error that quotes the end of the log."""
        tail = self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""
        return ProcessError(f"{self._name} {text}; {self.log}:\n{tail}")


@atexit.register
def _kill_the_rest() -> None:
    for process in list(_running):
        with contextlib.suppress(ProcessError):
            process.kill()
