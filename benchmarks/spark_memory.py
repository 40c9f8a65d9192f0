"""How much memory a Python worker of Spark needs to read a log that is far larger.

The log is sparse: bodies of 1 MiB that are holes in the file, so 10 GB of log take next to no disk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from cometmq.protocol.record import CRC_MASK, encode_host, encode_record

FILE_BYTES = 1 << 30
HOST = encode_host("10.0.0.1", 10911)
POLL_S = 0.02


def make_sparse_log(folder: Path, size_bytes: int, *, body_bytes: int = 1 << 20) -> int:
    """Make log files of 1 GiB, full of messages whose bodies are zeros; return how many there are.

    The bodies are never written: the file system gives zeros for what was skipped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    empty = _record(b"", 0, 0)
    head, tail = empty[:88], empty[88:]
    crc = crc32(bytes(body_bytes)) & CRC_MASK
    total = len(empty) + body_bytes
    count = 0
    for base in range(0, size_bytes, FILE_BYTES):
        with (folder / f"{base:020d}").open("wb") as file:
            for at in range(0, FILE_BYTES - total - 8, total):
                head = _record(b"", base + at, crc)[:84]
                file.seek(at)
                file.write(total.to_bytes(4, "big") + head[4:] + body_bytes.to_bytes(4, "big"))
                file.seek(at + total - len(tail))
                file.write(tail)
                count += 1
            file.truncate(FILE_BYTES)
    return count


def _record(body: bytes, log_offset: int, crc: int) -> bytes:
    return encode_record(
        b"large",
        body,
        b"TAGS\x01large\x02",
        queue_id=0,
        queue_offset=log_offset >> 20,
        log_offset=log_offset,
        born_time_ms=1_700_000_000_000,
        born_host=HOST,
        store_time_ms=1_700_000_000_000,
        store_host=HOST,
        crc=crc,
    )


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
