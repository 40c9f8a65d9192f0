"""The shops with Django and Flask: a web server, a worker, and orders that are rolled back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cometmq.remoting.ports import free_port
from support.checks.waiting import wait_until
from support.processes.examples import FOLDER, STOP_S, TIMEOUT_S
from support.processes.server import standalone

DJANGO, FLASK = FOLDER / "django_shop", FOLDER / "flask_shop"
MANAGE = [sys.executable, str(DJANGO / "manage.py")]
RUN_FLASK = [sys.executable, "-m", "flask", "--app", str(FLASK / "app.py")]


@dataclass(frozen=True)
class Shop:
    """The commands of a shop."""

    serve: list[str]
    work: list[str]
    prepare: list[str] | None = None


def django(port: int) -> Shop:
    return Shop(
        serve=[*MANAGE, "runserver", "--noreload", f"127.0.0.1:{port}"],
        work=[*MANAGE, "pack_orders"],
        prepare=[*MANAGE, "migrate", "--run-syncdb"],
    )


def flask(port: int) -> Shop:
    return Shop(serve=[*RUN_FLASK, "run", "--port", str(port)], work=[*RUN_FLASK, "pack-orders"])


@pytest.fixture(scope="module")
def name_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("shops")) as running:
        host, port = running.namesrv
        yield f"{host}:{port}"


@contextlib.contextmanager
def running(command: list[str], folder: Path, name_servers: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command until SIGTERM or its end."""
    environment = {**os.environ, "NAMESRV_ADDR": name_servers, "PYTHONUNBUFFERED": "1"}
    with (folder / "errors.log").open("a") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=errors
        )
    timer = threading.Timer(TIMEOUT_S, process.kill)  # ends each read of its output
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.communicate()


def buy(port: int, article: str) -> int:
    """Order an article; return the status, or 0 while the server does not listen."""
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/buy/{article}", method="POST")
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError:
        return 0


@pytest.mark.parametrize("of", [django, flask])
def test_a_shop_sends_what_was_committed_and_a_worker_packs_it(
    of: type[Shop], name_servers: str, tmp_path: Path
) -> None:
    port = free_port()
    shop = of(port)
    if shop.prepare is not None:
        with running(shop.prepare, tmp_path, name_servers) as process:
            assert process.wait(STOP_S) == 0, (tmp_path / "errors.log").read_text()
    with running(shop.serve, tmp_path, name_servers) as server:
        wait_until(lambda: server.poll() is not None or buy(port, "hat") == 200)
        assert server.poll() is None, (tmp_path / "errors.log").read_text()
        assert buy(port, "hat") == 409  # rolled back
        assert buy(port, "coat") == 200
        with running(shop.work, tmp_path, name_servers) as worker:
            assert worker.stdout is not None
            packed = {worker.stdout.readline().strip() for _ in range(2)}
            worker.send_signal(signal.SIGTERM)
            rest = worker.stdout.read()
            assert worker.wait(STOP_S) == 0, (tmp_path / "errors.log").read_text()

    assert packed == {"packed hat", "packed coat"}
    assert rest == ""
