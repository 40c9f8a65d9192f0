"""Runs every example and every Python block of the documentation against real servers."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.remoting.ports import free_port
from support.checks import plugin_options
from support.checks.waiting import wait_until
from support.processes import examples, forks
from support.processes.server import Standalone, standalone
from tools.generate import pages

TESTED_BLOCK = re.compile(r"<!-- run as a test -->\n```python\n(.*?)```", re.DOTALL)
GROUP = pages.ROOT / "examples" / "consumer_group"
TESTED_BLOCKS = {
    f"{path.stem}-{number}".replace("-", "_"): match.group(1)
    for path in pages.pages()
    for number, match in enumerate(TESTED_BLOCK.finditer(path.read_text()))
}


def address(server: Standalone) -> str:
    host, port = server.namesrv
    return f"{host}:{port}"


@pytest.fixture(scope="module")
def name_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("examples")) as running:
        yield address(running)


def test_every_example_is_expected_to_print_something() -> None:
    assert {path.stem for path in examples.every_example()} == set(examples.EXPECTED)
    assert set(examples.NEEDS_VERSION) < set(examples.EXPECTED)


@pytest.mark.parametrize("path", examples.every_example(), ids=lambda path: path.stem)
def test_example_runs_and_prints_what_it_says(name_servers: str, path: Path) -> None:
    assert re.fullmatch(examples.EXPECTED[path.stem], examples.run(path, name_servers))


def test_order_is_kept_in_one_queue_per_key(name_servers: str) -> None:
    output = examples.run(examples.FOLDER / "03_send_in_order.py", name_servers)
    queues: dict[str, set[str]] = {}
    for line in output.splitlines():
        order, _, rest = line.partition(" ")
        queues.setdefault(order, set()).add(rest.rpartition(" ")[2])

    assert all(len(found) == 1 for found in queues.values()), output


def test_order_is_kept_by_a_handler_that_fails_once(tmp_path: Path) -> None:
    with standalone(tmp_path) as running:
        output = examples.run(examples.FOLDER / "10_consume_in_order.py", address(running))
    steps: dict[str, list[str]] = {}
    for line in output.splitlines():
        order, _, step = line.partition(" ")
        steps.setdefault(order, []).append(step)

    assert steps == {key: ["placed", "paid", "shipped"] for key in ("order-1", "order-2")}


def test_a_consumer_shows_its_health_over_http_until_sigterm(name_servers: str) -> None:
    port = free_port()
    with examples.running(examples.FOLDER / "25_health.py", name_servers, str(port)) as process:
        wait_until(lambda: http_status(port, "/live") == 200)
        wait_until(lambda: http_status(port, "/ready") == 200)
        process.send_signal(signal.SIGTERM)


def test_a_class_filter_selects_messages(tmp_path: Path) -> None:
    config = tmp_path / "filtersrv.conf"
    with standalone(tmp_path / "server") as running:
        host, port = running.broker
        config.write_text(f"connectWhichBroker={host}:{port}\nclientUploadFilterClassEnable=true\n")
        command = [sys.executable, "-m", "cometmq", "filtersrv", "-c", str(config)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert re.match(r"ready filtersrv=127\.0\.0\.1:\d+ ", process.stdout.readline())
                path = examples.FOLDER / "28_class_filter.py"
                output = examples.run(path, address(running))
                process.send_signal(signal.SIGTERM)
                assert process.wait(examples.STOP_S) == 0
            finally:
                process.kill()

    assert sorted(output.splitlines()) == [
        'cheap: {"price": 12, "count": 3}',
        'cheap: {"price": 30, "count": 3}',
    ]


def http_status(port: int, path: str) -> int | None:
    """Return the status of a GET request, or None if nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except ConnectionError:
        return None
    finally:
        connection.close()


class Worker:
    """A worker of the tutorial, as a process."""

    def __init__(self, name_servers: str) -> None:
        self.process = subprocess.Popen(
            [*forks.python(), str(GROUP / "worker.py"), name_servers, "0.05"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        self._lines = self.process.stdout
        self.packed: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._lines:
            self.packed.append(line.split(" of ")[0])

    def end(self, number: int) -> int:
        """Send a signal, and wait until the process and all it printed are there."""
        self.process.send_signal(number)
        status = self.process.wait(120)
        self._reader.join(120)
        self._lines.close()
        return status


def test_workers_of_the_tutorial_share_the_hats_and_lose_none(tmp_path: Path) -> None:
    hats = {f"packed hat {number}" for number in range(20)}
    with standalone(tmp_path) as running:
        where = address(running)

        def order() -> None:
            assert examples.run(GROUP / "shop.py", where) == "ordered 20 hats\n"

        order()
        one = Worker(where)
        wait_until(lambda: set(one.packed) == hats)
        two = Worker(where)
        one.packed.clear()
        wait_until(lambda: order() or bool(two.packed and one.packed))
        wait_until(lambda: set(one.packed) | set(two.packed) == hats)
        one.packed.clear()
        two.packed.clear()
        order()
        wait_until(lambda: bool(one.packed))
        assert one.end(signal.SIGINT) == 0
        wait_until(lambda: set(one.packed) | set(two.packed) == hats)
        two.packed.clear()
        order()
        wait_until(lambda: set(two.packed) == hats)
        two.end(signal.SIGKILL)


def test_python_blocks_of_the_documentation_pass_as_tests(tmp_path: Path) -> None:
    """One pytest runs all of them; each block is a module of its own."""
    for name, code in TESTED_BLOCKS.items():
        (tmp_path / f"test_{name}.py").write_text(code)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin_options.OPTIONS, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(TESTED_BLOCKS)} passed" in done.stdout, done.stdout
