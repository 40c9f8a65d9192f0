"""Celery workers on our broker: results, remote control, kill -9, warm shutdown."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import kombu
import kombu.pools
import pytest
from celery import Celery

import cometmq.celery  # noqa: F401 - makes the scheme known
from cometmq.testing import ThreadedCluster
from support.checks.waiting import wait_until

IN_TIME_S = 60.0
TASKS = """
import os, time
import cometmq.celery
from celery import Celery

app = Celery("shop", broker=os.environ["BROKER"], backend="rpc://")
app.conf.worker_prefetch_multiplier = 2
app.conf.broker_transport_options = {"visibility_timeout": int(os.environ["VISIBILITY"])}
app.conf.worker_soft_shutdown_timeout = float(os.environ.get("SOFT_S", 0))
app.conf.broker_connection_retry_on_startup = True

@app.task
def add(a, b):
    return a + b

@app.task(acks_late=True, reject_on_worker_lost=True)
def note(name, gate):
    with open(os.environ["NOTES"], "a") as notes:
        print("begin", name, os.getpid(), file=notes)
    while not os.path.exists(gate):
        time.sleep(0.01)
    with open(os.environ["NOTES"], "a") as notes:
        print("end", name, file=notes)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(settings={"recallMessageEnable": "true"}) as cluster:
        yield cluster


class Shop:
    """An application, its workers, and what its tasks note."""

    def __init__(self, broker: str, folder: Path) -> None:
        self.folder = folder
        self.app = Celery("shop", broker=broker, backend="rpc://", control="cometmq.celery:Control")
        (folder / "shop.py").write_text(TASKS)
        self.notes = folder / "notes"
        self.environment = os.environ | {
            "BROKER": broker,
            "NOTES": str(self.notes),
            "VISIBILITY": "2",
        }

    @contextlib.contextmanager
    def worker(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-c", "2", *options]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--without-gossip", "--without-mingle", "-l", "INFO"],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def noted(self, word: str) -> list[str]:
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [line.split()[1] for line in lines if line.startswith(word)]

    def note(self, name: str, gate: Path) -> None:
        self.app.send_task("shop.note", (name, str(gate)), ignore_result=True)


@pytest.fixture
def shop(cluster: ThreadedCluster, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(f"cometmq://{cluster.name_servers}/{uuid.uuid4().hex}", tmp_path)
    yield shop
    if shop.app.backend.result_consumer._connection is not None:
        shop.app.backend.result_consumer.stop()
    shop.app.pool.force_close_all()
    kombu.pools.reset()
    shop.app.close()


def test_tasks_have_results_and_workers_obey(shop: Shop) -> None:
    with shop.worker("-E"):
        results = [shop.app.send_task("shop.add", (each, 1)) for each in range(20)]
        assert [each.get(timeout=IN_TIME_S) for each in results] == list(range(1, 21))
        [(worker, replies)] = shop.app.control.inspect(limit=1, timeout=IN_TIME_S).ping().items()
        assert replies == {"ok": "pong"}
        seen: list[str] = []
        with shop.app.connection_for_read() as connection:
            receiver = shop.app.events.Receiver(connection, handlers={"*": seen.append})
            capture = receiver.itercapture(limit=None, timeout=IN_TIME_S, wakeup=False)
            next(capture)
            shop.app.send_task("shop.add", (1, 1), ignore_result=True)
            wait_until(lambda: next(capture, None) is None or "task-succeeded" in str(seen))
        inspect = shop.app.control.inspect(limit=1, timeout=IN_TIME_S)
        here = shop.app.send_task("shop.add", (1, 1), countdown=9)
        wait_until(lambda: inspect.scheduled()[worker])
        assert inspect.scheduled()[worker][0]["request"]["id"] == here.id
        options = {"delay_min": 0}
        with kombu.Connection(shop.app.conf.broker_url, transport_options=options) as at_broker:
            recalled, later, *others = (
                shop.app.send_task("shop.add", (1, 1), countdown=each, connection=at_broker)
                for each in (2, 3, 3, 3)
            )
            recalled.revoke()
            shop.app.control.revoke(each.id for each in others)
            assert later.get(timeout=IN_TIME_S) == 2
        assert worker.startswith("celery@")
    assert not [each.id for each in (recalled, *others) if f"{each.id}] received" in shop.log()]


def test_kill_9_loses_no_late_acknowledged_task_and_repeats_none(shop: Shop) -> None:
    gate, opened = shop.folder / "gate", shop.folder / "opened"
    opened.touch()
    with shop.worker() as worker:
        shop.note("stuck", gate)
        wait_until(lambda: shop.noted("begin"))
        for each in range(8):
            shop.note(f"after-{each}", opened)
        wait_until(lambda: len(shop.noted("end")) == 8)
        time.sleep(0.2)  # acknowledgements are sent at once, and not waited for
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    gate.touch()
    shop.note("new", opened)
    with shop.worker():
        wait_until(lambda: {"stuck", "new"} <= set(shop.noted("end")))
    assert sorted(shop.noted("end")) == sorted(["stuck", "new", *(f"after-{i}" for i in range(8))])
    assert shop.noted("begin").count("stuck") == 2


@pytest.mark.parametrize("soft_s", [0, 3])
def test_a_cold_shutdown_returns_what_runs_after_a_soft_one_has_waited_for_it(
    shop: Shop, soft_s: int
) -> None:
    """Long before its invisible time is over."""
    shop.environment |= {"VISIBILITY": "3600", "SOFT_S": str(soft_s)}
    soon, never = shop.folder / "soon", shop.folder / "never"
    with shop.worker() as worker:
        shop.note("soon", soon)
        shop.note("stuck", never)
        wait_until(lambda: len(shop.noted("begin")) == 2)
        os.kill(worker.pid, signal.SIGQUIT)
        wait_until(lambda: ("Soft" if soft_s else "Cold") in shop.log())
        soon.touch()
        assert worker.wait(timeout=IN_TIME_S) == 0
    ended_in_time = shop.noted("end")
    assert ended_in_time == (["soon"] if soft_s else [])
    never.touch()
    with shop.worker():
        wait_until(lambda: set(shop.noted("end")) == {"soon", "stuck"})
    assert sorted(shop.noted("end")) == ["soon", "stuck"]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_warm_shutdown_ends_what_runs_and_returns_the_rest(shop: Shop, pool: str) -> None:
    if pool == "gevent":
        pytest.importorskip("gevent")
    gate = shop.folder / "gate"
    with shop.worker("-P", pool) as worker:
        names = [f"task-{each}" for each in range(6)]
        for each in names:
            shop.note(each, gate)
        wait_until(lambda: shop.noted("begin"))
        os.kill(worker.pid, signal.SIGTERM)
        if pool != "solo":
            wait_until(lambda: "Warm shutdown" in shop.log())
        gate.touch()
        assert worker.wait(timeout=IN_TIME_S) == 0
    begun = shop.noted("begin")
    assert sorted(begun) == sorted(shop.noted("end"))
    assert len(begun) < len(names), "it does not work off the backlog first"
    with shop.worker():
        wait_until(lambda: set(shop.noted("end")) == set(names))
    assert sorted(shop.noted("end")) == names, "none was executed twice"
