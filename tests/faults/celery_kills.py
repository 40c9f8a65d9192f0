"""Rounds of kill -9 of Celery's workers, their pool processes and the broker.

    python tests/faults/celery_kills.py ROUNDS [SEED]

Each round starts late-acknowledged tasks, kills one of the three at a random time, and starts it
again. At the end each task must have ended, and no task may begin again after the broker confirmed
its acknowledgement.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from celery import Celery
from kombu.exceptions import OperationalError

import cometmq.celery  # noqa: F401 - makes the scheme known
from cometmq.remoting.ports import free_broker_port

TASKS_A_ROUND = 20
END_S = 60.0
"""How long no task ends until the rest counts as lost."""
PROGRAM = """
import json, os, time
import cometmq.celery
from celery import Celery
from cometmq.client import SimpleConsumer
from cometmq.kombu.session import Session

notes = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
app = Celery("shop", broker=os.environ["BROKER"])
app.conf.broker_transport_options = {"visibility_timeout": 3, "delivery_limit": 1000}
app.conf.broker_connection_retry_on_startup = True
app.conf.task_ignore_result = True
acknowledge = SimpleConsumer.ack

async def ack(self, *messages):
    await acknowledge(self, *messages)
    for message in messages:
        number = message.properties["KEYS"]
        os.write(notes, f"acked {number}\\n".encode())

SimpleConsumer.ack = ack
requeue = Session.requeue

async def noted_requeue(self, held, *arguments):
    os.write(notes, f"requeued {held.message.properties['KEYS']}\\n".encode())
    await requeue(self, held, *arguments)

Session.requeue = noted_requeue

@app.task(acks_late=True, reject_on_worker_lost=True, bind=True)
def note(self, seconds):
    os.write(notes, f"begin {self.request.id}\\n".encode())
    time.sleep(seconds)
    os.write(notes, f"end {self.request.id}\\n".encode())
"""


class Processes:
    """The name server, the broker and the worker, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / "notes"
        self.notes.touch()
        (folder / "shop.py").write_text(PROGRAM)
        self.namesrv, self.port = free_broker_port(), free_broker_port()
        self.url = f"cometmq://127.0.0.1:{self.namesrv}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        comet = [sys.executable, "-m", "cometmq"]
        command = {
            "namesrv": [*comet, "namesrv", "--port", str(self.namesrv)],
            "broker": [
                *(*comet, "broker", "-n", f"127.0.0.1:{self.namesrv}", "--port", str(self.port)),
                *("--store", str(self.folder / "store")),
            ],
            "worker": [
                *(sys.executable, "-m", "celery", "-A", "shop", "worker", "-c", "2"),
                *("--without-gossip", "--without-mingle", "-l", "INFO"),
            ],
        }[name]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | {"BROKER": self.url, "NOTES": str(self.notes)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        process = self.running[name]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_child(self, choose: random.Random) -> None:
        worker = self.running["worker"].pid
        children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
        if children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(choose.choice(children)), signal.SIGKILL)


def run(folder: Path, rounds: int, seed: int) -> list[str]:
    """Run the rounds, and return what is wrong."""
    choose, sent = random.Random(seed), set[str]()
    processes = Processes(folder)
    app = Celery("shop", broker=processes.url)
    for name in ("namesrv", "broker", "worker"):
        processes.start(name)
    try:
        for number in range(rounds):
            for _ in range(TASKS_A_ROUND):
                seconds = choose.choice((0, 0, 0, 0.05, 0.5))
                sent.add(send(app, seconds))
            victim = choose.choice(("worker", "child", "broker"))
            time.sleep(choose.uniform(0, 1.0))  # the random time of the kill
            if victim == "child":
                processes.kill_child(choose)
            else:
                processes.kill(victim)
                processes.start(victim)
            print(f"round {number + 1} of {rounds}: killed {victim}", flush=True)
        left, end = sent, time.monotonic() + END_S
        while left and time.monotonic() < end:
            time.sleep(0.5)
            before, left = left, sent - ended(processes.notes)
            if len(left) < len(before):
                end = time.monotonic() + END_S
        return verdict(sent, processes.notes)
    finally:
        for name in processes.running:
            processes.kill(name)


def send(app: Celery, seconds: float) -> str:
    """Send a task; a broker that was just killed is tried again."""
    while True:
        errors = app.connection_for_write().connection_errors
        with contextlib.suppress(*errors, OSError, OperationalError):
            return str(app.send_task("shop.note", (seconds,), retry=False).id)
        time.sleep(0.1)


def ended(notes: Path) -> set[str]:
    lines = map(str.split, notes.read_text().splitlines())
    return {number for word, number in lines if word == "end"}


def verdict(sent: set[str], notes: Path) -> list[str]:
    """Return which tasks were lost, and which began again after their acknowledgement."""
    wrong = [f"lost: {each}" for each in sent - ended(notes)]
    acked, begun, copied = set[str](), defaultdict[str, int](int), defaultdict[str, int](int)
    for word, number in map(str.split, notes.read_text().splitlines()):
        begun[number] += word == "begin"
        copied[number] += word == "requeued"
        if word == "acked" and copied[number]:
            copied[number] -= 1  # a copy of the task, which a killed process left, is stored
        elif word == "acked":
            acked.add(number)
        elif word == "begin" and number in acked:
            wrong.append(f"began after its acknowledgement: {number}")
    again = sum(count > 1 for count in begun.values())
    print(f"{len(sent)} tasks, {len(acked)} acknowledged, {again} executed more than once")
    return wrong


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # ends the processes
    number, given = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory(prefix="celery-kills-") as name:
        found = run(Path(name), number, given)
    print(*found[:20], sep="\n")
    print("passed" if not found else f"FAILED: {len(found)}")
    sys.exit(bool(found))
