"""Kills what a streaming program of Spark consists of, at random, and starts it again.

A round waits for progress, lets a random time pass and kills one of

    worker     a Python process of Spark: a task's, or the one that plans
    executor   the JVM that runs tasks, where it is another than the driver's
    driver     Spark's JVM and the program in front of it, with all they have started
    broker     the broker, and where it is ours the name server with it; it comes back at once

The choices follow from a seed, which a failing test prints; what the machine makes of them does
not.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import toolchain
from processes import LAUNCHER, Process, ProcessError
from servers import Cluster, connect, new_topic

from support.runner.tiers import new_seed, rounds
from support.spark.recipes import recipe

StandaloneCluster = recipe("08_small_cluster").StandaloneCluster

PROGRAM = Path(__file__).with_name("spark_program.py")
VICTIMS = ("worker", "driver", "broker")
SECOND_HOST = "127.0.0.2"
EXECUTOR = "CoarseGrainedExecutorBackend"
PROGRESS_S, END_S, GONE_S = 300.0, 300.0, 20.0
DELAY_MAX_S = 1.0
LOOK_S = 0.05


@dataclass(frozen=True)
class Place:
    """Where a program runs."""

    master: str
    daemon: int | None = None
    """The process below which executors are, if they have their own."""
    second: int | None = None
    """The process below which further executors are."""

    @property
    def victims(self) -> tuple[str, ...]:
        """What can be killed."""
        return VICTIMS if self.daemon is None else ("executor", *VICTIMS)


@contextmanager
def place(name: str, folder: Path) -> Iterator[Place]:
    """Give a place: ``local``, in the driver, or ``standalone``, on a cluster for this test.

    ``two hosts`` is a standalone cluster with two workers.
    """
    os.environ["JAVA_HOME"] = str(toolchain.java_home())
    if name == "local":
        yield Place("local[2,8]")
        return
    launcher = (sys.executable, "-S", str(LAUNCHER))
    kind = TwoHosts if name == "two hosts" else StandaloneCluster
    with kind(2, folder=folder, launcher=launcher) as cluster:
        workers = [daemon.pid for daemon in cluster.daemons[1:]]
        yield Place(cluster.master, *workers)


def newest_batch(folder: Path) -> int:
    """The newest batch in a folder of a checkpoint, -1 for none: Spark keeps the last hundred."""
    return max((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), default=-1)


class TwoHosts(StandaloneCluster):
    """A standalone cluster with two workers on two addresses: Spark speculates on another host."""

    def _start(self) -> None:
        super()._start()
        folder = self.folder
        self.folder = folder / "second"
        self._launch(
            "worker", "--host", SECOND_HOST, "--cores", str(self._cores),
            "--memory", self._memory, "--work-dir", str(self.folder), "--webui-port", "0",
            self.master,
        )  # fmt: skip
        self.folder = folder


ON_EVERY_SPARK = pytest.mark.parametrize(
    "where",
    [
        pytest.param("local", marks=pytest.mark.long),
        pytest.param("standalone", marks=pytest.mark.standalone_only),
    ],
)
"""For tests that take ``where`` they run: in the driver, or with executors of their own."""


def topic_of(cluster: Cluster) -> str:
    """Make a topic on a cluster of the test's own."""
    connection = connect(cluster.broker)
    try:
        return new_topic(cluster, connection)
    finally:
        connection.close()


def kill_at_random(
    program: str,
    folder: Path,
    where: str,
    cluster: Cluster,
    topic: str,
    feed: Callable[[], None],
    *,
    kills: int = 30,
) -> int:
    """Run a program through as many rounds as the setting in force says; returns their number.

    Args:
        program: one of `spark_program`.
        folder: for its checkpoint, its files and its logs.
        where: on which Spark, as `place` calls it.
        cluster: whose broker is killed.
        topic: what it writes or reads.
        feed: called before each round, and again while progress is awaited: gives it work.
        kills: the rounds of a long run.
    """
    seed = new_seed()
    with place(where, folder / "spark") as found:
        count = rounds(test=3 if found.daemon is None else 1, long=kills)
        killer = Killer(program, folder, found, cluster, topic, feed=feed, seed=seed)
        try:
            killer.run(count)
        finally:
            killer.close()
            print(f"seed={seed} starts={killer.starts} on={cluster.target}", found.master)
            print(*killer.done, sep="\n")
    return count


class Killer:
    """One streaming program and its cluster, and the rounds that kill them.

    Args:
        program: ``to-topic`` or ``to-parquet``.
        folder: for its checkpoint, its files and its logs.
        place: where it runs.
        cluster: whose broker is killed.
        topic: what it writes or reads.
        feed: called before each round, and again while progress is awaited: gives it work.
        seed: of the choices.
    """

    def __init__(
        self,
        program: str,
        folder: Path,
        place: Place,
        cluster: Cluster,
        topic: str,
        *,
        feed: Callable[[], None],
        seed: int,
    ) -> None:
        self._arguments = [program, str(folder), cluster.namesrv, topic, place.master]
        self._place = place
        self._folder = folder
        self._cluster = cluster
        self._feed = feed
        self._choice = random.Random(seed)
        self._kills_of_this_start = 0
        self._process: Process | None = None
        self.starts = 0
        self.done: list[str] = []
        """What happened, in words."""

    def run(self, rounds: int) -> None:
        """Kill so many times, each kind of victim equally often, then let the program finish."""
        kinds = self._place.victims
        victims = [kinds[number % len(kinds)] for number in range(rounds)]
        self._choice.shuffle(victims)
        self._start()
        for victim in victims:
            self._await_progress()
            self._await(self._is_under_way, "an open batch")
            time.sleep(self._choice.uniform(0, DELAY_MAX_S))  # the moment is what is random
            getattr(self, f"_kill_{victim}")()
            self.done.append(f"{victim} killed at batch {self._committed()}")
        (self._folder / "finish").touch()
        self._finish()

    def close(self) -> None:
        """End the program and all it started."""
        if self._process is not None and self._process.is_running:
            kill_whole(self._process)

    # --- the program ----------------------------------------------------------------------------

    def _start(self) -> None:
        self.starts += 1
        self._kills_of_this_start = 0
        log = self._folder / f"driver-{self.starts}.log"
        self._process = Process([sys.executable, str(PROGRAM), *self._arguments], log)

    @property
    def _running(self) -> Process:
        assert self._process is not None, "the program was not started"
        return self._process

    def _await_progress(self) -> None:
        """Wait until the program has committed a batch more than now, reviving it as needed."""
        goal = self._committed() + 1
        self._await(lambda: self._committed() >= goal, f"batch {goal}")

    def _await(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PROGRESS_S
        while not is_so():
            self._feed()
            self._revive()
            if time.monotonic() > deadline:
                raise self._running.error(f"no {what} within {PROGRESS_S:.0f} s")
            time.sleep(LOOK_S)

    def _finish(self) -> None:
        deadline = time.monotonic() + END_S
        while self._running.is_running or not self._ended_well():
            self._revive()
            if time.monotonic() > deadline:
                raise self._running.error(f"has not finished within {END_S:.0f} s")
            time.sleep(LOOK_S)

    def _ended_well(self) -> bool:
        return not self._running.is_running and self._running.wait(GONE_S) == 0

    def _revive(self) -> None:
        """Start the program again if it ended, which only a kill may make it do."""
        process = self._running
        if process.is_running or self._ended_well():
            return
        if not self._kills_of_this_start:
            raise process.error("failed although nothing was killed")
        self.done.append("the query failed and was started again")
        self._start()

    def _committed(self) -> int:
        """The newest batch that the checkpoint says is done."""
        return newest_batch(self._folder / "checkpoint" / "commits")

    def _is_under_way(self) -> bool:
        """Whether a batch has begun that is not done."""
        return newest_batch(self._folder / "checkpoint" / "offsets") > self._committed()

    # --- the kills ------------------------------------------------------------------------------

    def _kill_worker(self) -> None:
        self._kill_one(_is_worker, "Python worker")

    def _kill_executor(self) -> None:
        self._kill_one(lambda pid: EXECUTOR in _command(pid), "executor")

    def _kill_one(self, is_victim: Callable[[int], bool], what: str) -> None:
        where = self._place
        roots = [pid for pid in (self._running.pid, where.daemon, where.second) if pid is not None]

        def victims() -> list[int]:
            return [pid for root in roots for pid in _descendants(root) if is_victim(pid)]

        self._await(lambda: bool(victims()), what)
        self._kills_of_this_start += 1
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(self._choice.choice(victims()), signal.SIGKILL)

    def _kill_driver(self) -> None:
        kill_whole(self._running)
        self._start()

    def _kill_broker(self) -> None:
        self._kills_of_this_start += 1
        self._cluster.kill_broker()
        self._cluster.start_broker()


def kill_whole(process: Process) -> None:
    """End a program and all it has started with SIGKILL, and wait until nothing is left.

    Raises:
        ProcessError: something of it is still there after a while.
    """
    whole = [*_descendants(process.pid), process.pid]
    for pid in reversed(whole):  # the program first, so that nothing is tidied up
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessError):
        process.wait(GONE_S)
    deadline = time.monotonic() + GONE_S
    while any(map(_is_alive, whole)):
        if time.monotonic() > deadline:
            raise ProcessError("processes of a killed driver are still there")
        time.sleep(LOOK_S)


def _is_worker(pid: int) -> bool:
    """Whether this is a Python process of Spark that was forked for some work."""
    parent = _parent(pid)
    return (
        parent is not None
        and "pyspark.daemon" in _command(pid)
        and ("pyspark.daemon" in _command(parent))
    )


def _descendants(root: int) -> list[int]:
    """All processes below one, the farthest last."""
    children: dict[int, list[int]] = {}
    for pid in _all():
        parent = _parent(pid)
        if parent is not None:
            children.setdefault(parent, []).append(pid)
    found, look = [], [root]
    while look:
        own = children.get(look.pop(0), [])
        found += own
        look += own
    return found


def _all() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def _stat(pid: int) -> list[str] | None:
    """The fields behind the command's name: state, parent, ..."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _parent(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def _is_alive(pid: int) -> bool:
    fields = _stat(pid)
    return fields is not None and fields[0] != "Z"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
