"""Runs the tests of transports that Kombu and Celery ship in their source packages, on our broker.

    python tests/interop/celery_suites.py kombu [OPTIONS OF PYTEST]
    python tests/interop/celery_suites.py celery REDIS [OPTIONS OF PYTEST]
    python tests/interop/celery_suites.py celery-on-redis REDIS [OPTIONS OF PYTEST]

The package index has the packages; the versions are the installed ones. Celery's tests, half an
hour of them, keep results in a Redis server, such as redis://127.0.0.1:6379, and also run with it
as their broker, to compare. They need: django freezegun pydantic pytest-celery pytest-click
pytest-order pytest-rerunfailures pytest-subtests redis.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from cometmq.testing import ThreadedCluster

LIMIT_S = 3600.0
KOMBU = """
import os

import kombu
import pytest

import cometmq.kombu
from t.integration import common

URL = os.environ["BROKER"]


@pytest.fixture
def connection():
    return kombu.Connection(URL)


@pytest.fixture
def invalid_connection():
    return kombu.Connection("cometmq://localhost:12345")


@pytest.fixture
def failover_connection():
    return kombu.Connection(f"cometmq://localhost:12345;{URL}", connect_timeout=10)


class test_functionality(common.BasicFunctionality): pass
class test_exchange_types(common.BaseExchangeTypes): pass
class test_time_to_live(common.BaseTimeToLive): pass
class test_priority(common.BasePriority): pass
class test_message(common.BaseMessage): pass
class test_event_loop(common.BaseEventLoop): pass
class test_failover(common.BaseFailover): pass
"""
IN_EACH_PROCESS = "import cometmq.celery\n"
"""A worker that a test starts without an application knows the transport, too."""


def tests_of(package: str, folder: Path) -> Path:
    """Download the source package of an installed one, and return a folder that has its tests."""
    wanted = f"{package}=={version(package)}"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", package]
    subprocess.run([*pip, "-d", folder, wanted], check=True)
    [archive] = folder.glob(f"{package}-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    found = folder / "tests"
    shutil.copytree(archive.with_name(archive.name.removesuffix(".tar.gz")) / "t", found / "t")
    return found


def run(folder: Path, what: str, environment: Mapping[str, str], options: Sequence[str]) -> int:
    """Run tests in a process, and return the exit status of pytest."""
    command = [
        *(sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-c", os.devnull),
        *("--rootdir", ".", "-o", "python_classes=test_* Test*", "-p", "no:cacheprovider"),
        *("--timeout", "180", what, *options),
    ]
    found = os.environ | {"PYTHONPATH": "."} | environment
    return subprocess.run(command, cwd=folder, env=found, timeout=LIMIT_S, check=False).returncode


def kombu(options: Sequence[str]) -> int:
    """Run all of Kombu's base classes of tests, and return the exit status of pytest."""
    with tempfile.TemporaryDirectory() as name, ThreadedCluster() as cluster:
        folder = tests_of("kombu", Path(name))
        (folder / "test_ours.py").write_text(KOMBU)
        broker = {"BROKER": f"cometmq://{cluster.name_servers}"}
        return run(folder, "test_ours.py", broker, options)


def celery(redis: str, options: Sequence[str], *, on_redis: bool) -> int:
    """Run Celery's integration tests, and return the exit status of pytest."""
    server = urlsplit(redis)
    with (
        tempfile.TemporaryDirectory() as name,
        ThreadedCluster(settings={"recallMessageEnable": "true"}) as cluster,
    ):
        folder = tests_of("celery", Path(name))
        if not on_redis:
            (folder / "sitecustomize.py").write_text(IN_EACH_PROCESS)
        environment = {
            "TEST_BROKER": f"{redis}/1" if on_redis else f"cometmq://{cluster.name_servers}",
            "TEST_BACKEND": redis,
            "REDIS_HOST": server.hostname or "127.0.0.1",
            "REDIS_PORT": str(server.port or 6379),
        }
        return run(folder, "t/integration", environment, options)


def main(command: str, *options: str) -> int:
    """Run what the command line names."""
    if command == "kombu":
        return kombu(options)
    return celery(options[0], options[1:], on_redis=command == "celery-on-redis")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
