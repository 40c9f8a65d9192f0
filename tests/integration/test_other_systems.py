"""The client as if on Windows; servers as if on macOS, and their refusal as if on Windows.

See `support.processes.other_systems` for what these systems lack.
"""

from __future__ import annotations

import ast
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq.client import Message, StartFrom, blocking
from support.processes import other_systems

ROOT = Path(__file__).resolve().parents[2]
END_S = 60.0
MESSAGES = 20
OF_CLIENT = (
    "tests/unit/system/platforms/test_interface.py",
    "tests/client/test_broadcast.py",
    "tests/client/test_sending.py::test_a_message_arrives_as_it_was_sent",
    "tests/client/test_sending.py::test_thousands_of_begun_sends_are_stored_once_each",
    "tests/client/test_running.py::test_signal_handlers_are_those_from_before_once_no_consumer_runs",
    "tests/client/test_running.py::test_cancelling_a_run_closes_in_good_order",
    "tests/client/test_blocking.py::test_what_was_sent_is_read",
    "tests/client/test_blocking.py::test_handlers_run_in_threads_and_may_send",
    "tests/client/test_blocking.py::test_an_interrupted_wait_loses_no_message",
)
"""Tests of the client with a server that runs on Linux as it is."""
OF_FILES = ("tests/unit/system/platforms/test_interface.py", "tests/unit/system/test_files.py")
OF_LINUX = "not holes and not lock_keeps and not process_lock"
"""macOS is not asked for holes, and only there flock collides with the locks of processes."""


def passed(system: str, *tests: str) -> int:
    """Run tests as if on a system, and return how many passed."""
    done = other_systems.run(system, "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None
    return int(found[1])


@contextmanager
def standalone(store: Path, log: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A name server and a broker as if on macOS, and the address of the name server."""
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    words = other_systems.command("macos", "cometmq", "standalone", "--store", str(store), *ports)
    with log.open("a") as stderr:
        server = subprocess.Popen(
            words,
            env=other_systems.environment(),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert server.stdout is not None
        ready = server.stdout.readline()
        assert ready.startswith("ready namesrv="), log.read_text()
        yield server, ready.split()[1].removeprefix("namesrv=")
    finally:
        server.kill()
        server.communicate()


def test_the_client_runs_as_if_on_windows() -> None:
    assert passed("windows", *OF_CLIENT) > len(OF_CLIENT)


def test_files_are_kept_as_if_on_macos() -> None:
    assert passed("macos", *OF_FILES, "-k", OF_LINUX) > 100


def test_a_broker_as_if_on_macos_keeps_what_it_acknowledged_when_it_is_killed(
    tmp_path: Path,
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    bodies = [b"%d" % number for number in range(MESSAGES)]
    with standalone(store, log) as (server, address):
        second = other_systems.run("macos", "cometmq", "broker", "--store", str(store))
        assert (second.returncode, "another process" in second.stderr) == (1, True), second.stderr
        with blocking.Producer(address, group="p") as producer:
            for body in bodies:
                producer.send(Message(topic="orders", body=body))
        server.send_signal(signal.SIGKILL)
        server.wait(END_S)
    with standalone(store, log) as (server, address):
        with blocking.PullConsumer(address, group="c", start_from=StartFrom.FIRST) as consumer:
            consumer.assign(consumer.fetch_queues("orders"))
            received = [next(consumer).body for _ in bodies]
        server.send_signal(signal.SIGTERM)
        assert server.wait(END_S) == 0
    assert sorted(received, key=int) == bodies
    assert "store recovered ending='killed'" in log.read_text()
    calls = ast.literal_eval(log.read_text().rpartition("as if on macos: ")[2])
    assert calls["full sync"] > 0


@pytest.mark.parametrize(
    "words", ["standalone", "namesrv", "broker", "demo", "store list STORE", "doctor"]
)
def test_a_server_as_if_on_windows_names_the_ways_to_run_it(words: str, tmp_path: Path) -> None:
    arguments = words.replace("STORE", str(tmp_path)).split()
    done = other_systems.run("windows", "cometmq", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    reason, _, rest = done.stderr.partition("\n")
    assert reason == (
        "cometmq: CometMQ's servers need Linux or, for development, macOS, and this is Windows: run"
        " them in a container or in WSL (docs/explanation/systems.md shows both); the client runs"
        " here"
    )
    assert rest.startswith("as if on windows:")
