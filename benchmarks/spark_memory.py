"""How much memory a Python worker of Spark needs to read a log that is far larger."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

POLL_S = 0.02


class WorkerMemory:
    """Watches the Python workers below this process, within ``with``; the peak is in MiB.

    Only memory that no file backs counts; the interpreter with PySpark and Arrow is a part of it.
    """

    def __init__(self) -> None:
        self.peak_mib = 0.0
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="worker-memory", daemon=True)

    def __enter__(self) -> WorkerMemory:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._done.wait(POLL_S):
            for pid in _workers(os.getpid()):
                self.peak_mib = max(self.peak_mib, _anonymous_mib(pid))


def _workers(ancestor: int) -> Iterator[int]:
    """Processes below another one that run Spark's Python workers."""
    parents = dict(_parents())
    below: set[int] = set()
    more = {ancestor}
    while more:
        below |= more
        more = {pid for pid, parent in parents.items() if parent in below} - below
    for pid in below - {ancestor}:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"pyspark" in command and b"java" not in command.split(b"\0")[0]:
            yield pid


def _parents() -> Iterator[tuple[int, int]]:
    """Every process and its parent."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            yield int(folder.name), int(fields[1])


def _anonymous_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


def read_all(spark: Any, folder: Path, batch_bytes: int, expected: int) -> float:
    """Read every byte of a log and return the peak of a worker's memory in MiB.

    Args:
        spark: a session.
        folder: the log's files.
        batch_bytes: the bound of a batch.
        expected: how many messages there are, lest little be read with little memory.
    """
    source = spark.read.format("rocketmq-log").option("path", str(folder))
    source = source.option("logEnd", "log").option("batch.bytes", str(batch_bytes))
    frame = source.load().selectExpr("count(*) as messages", "sum(length(body)) as bytes")
    with WorkerMemory() as memory:
        messages = frame.collect()[0].messages
    if messages != expected:
        raise RuntimeError(f"{messages} messages were read, expected {expected}")
    return memory.peak_mib
