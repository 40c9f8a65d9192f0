"""Attempts of tasks that write a topic, as processes that a test kills and stops.

They are forked from a process that has loaded the writer, so an attempt begins at once.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

import pyarrow as pa

from cometmq.spark.brokers import connect
from cometmq.spark.errors import FencedError
from cometmq.spark.options.writing import TopicWriteOptions
from cometmq.spark.sink import Origin, TopicWriter

ROWS, BATCH_ROWS = 200, 20
FENCED = 3
"""The exit status of an attempt that a newer one has ended."""
LIMIT_S = 120.0

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["cometmq.spark.brokers", "cometmq.spark.sink"])


class Attempt:
    """A running attempt.

    Args:
        name_servers, topic: where it writes.
        task: the number of the task; all its attempts have the same rows, in other orders.
        seed: of the order.
        delivery: the option of that name.
    """

    def __init__(
        self, name_servers: str, topic: str, task: int, seed: int, delivery: str = "exactly-once"
    ) -> None:
        arguments = (name_servers, topic, task, seed, delivery)
        self._process: BaseProcess = _forks.Process(target=_write, args=arguments, daemon=True)
        self._process.start()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def join(self) -> int:
        """Wait for its end; return its exit status, below 0 for a signal."""
        self._process.join(LIMIT_S)
        status = self._process.exitcode
        assert status is not None, f"an attempt has not ended within {LIMIT_S:g} s"
        return status


def bodies_of(task: int) -> list[str]:
    """Return the rows of a task."""
    return [f"{task}:{row}" for row in range(ROWS)]


def _write(name_servers: str, topic: str, task: int, seed: int, delivery: str) -> None:
    options = TopicWriteOptions(
        name_servers=name_servers,
        topic=topic,
        delivery=delivery,
        batch_bytes=1024,
        pending_max=2,
        rows_per_s=1_000,
        try_timeout_ms=5_000,
        delivery_timeout_ms=60_000,
    )
    bodies = bodies_of(task)
    random.Random(seed).shuffle(bodies)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, ROWS, BATCH_ROWS):
            yield pa.record_batch({"body": bodies[start : start + BATCH_ROWS]})

    writer = TopicWriter(connect(options), options, Origin("attempts", 0, task))
    try:
        writer._write(batches())  # a fenced attempt of this process is not killed: it need not wait
    except FencedError:
        os._exit(FENCED)
    os._exit(0)
