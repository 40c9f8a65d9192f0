"""Runs a function over many tasks in Spark jobs of limited size.

A wave is a Spark job of a few tasks per core. Between waves the driver commits what is done, so a
run that is killed loses one wave.
"""

from __future__ import annotations

import gc
import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from cometmq.spark.errors import SourceError

Task = TypeVar("Task")
Answer = TypeVar("Answer")

TASKS_PER_CORE = 4


def waves(spark: Any, tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
    """Yield the tasks in groups of a few per core, each for one Spark job."""
    size = max(1, cores_of(spark) * TASKS_PER_CORE)
    for start in range(0, len(tasks), size):
        yield tasks[start : start + size]


def run(spark: Any, work: Callable[[Task], Answer], tasks: Sequence[Task]) -> list[Answer]:
    """Return the answers of ``work`` to the tasks, in order, from one Spark job.

    Without a session (None) this process does the work itself, one task after the other.
    """
    if spark is None:
        return [work(task) for task in tasks]
    if not tasks:
        return []
    try:
        context = spark.sparkContext
    except Exception as problem:  # a session of Spark Connect has none, and says so in many ways
        return _run_connected(spark, work, tasks, problem)
    answers = context.parallelize(list(tasks), len(tasks)).map(partial(_worked, work)).collect()
    return list(answers)


def _worked(work: Callable[[Task], Answer], task: Task) -> Answer:
    """Do the work of a task in a Python worker of Spark.

    A worker collects garbage after every task. With all imported modules that takes as long as a
    short task, so objects that exist after the first task are never looked at again.
    """
    answer = work(task)
    if not gc.get_freeze_count():
        gc.freeze()
    return answer


def cores_of(spark: Any) -> int:
    """Return how many tasks run at once."""
    if spark is None:
        return 1
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # as above
        return int(spark.conf.get("spark.default.parallelism", "8"))


def _run_connected(
    spark: Any, work: Callable[[Task], Answer], tasks: Sequence[Task], cause: Exception
) -> list[Answer]:
    """Run the tasks through a data frame, which needs pandas."""
    given = list(tasks)

    def answer(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for number in itertools.chain.from_iterable(b.column(0).to_pylist() for b in batches):
            made = pickle.dumps(work(given[number]))
            yield pa.record_batch([pa.array([number]), pa.array([made])], names=["n", "made"])

    try:
        frame = spark.range(0, len(given), 1, len(given)).mapInArrow(answer, "n long, made binary")
    except ImportError:
        raise SourceError("this session has no SparkContext; then pandas is needed") from cause
    rows = sorted(frame.collect(), key=lambda row: row["n"])
    return [pickle.loads(row["made"]) for row in rows]
