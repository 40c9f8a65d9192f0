"""Measures what replication to one slave costs, and how fast it is.

A name server, a master and a slave run as processes on this machine.

- cost: processor seconds of the master per million messages of 128 bytes (16 connections with 32
  requests in flight), with a slave, less those without one in the same round;
- lag: how long a ``SYNC_MASTER`` waits for the slave under a load of 10,000 messages per second;
- catch-up: how fast an empty slave copies a log file of the master, from the start of its process;
- latency: of one send at a time, with synchronous flush at the master alone, at the slave alone,
  for which the master waits, and at both; and the last over the slower of the others in the same
  round, which is 1 if the master flushes while it waits. Both processes sync to the same disk here;
- failover: seconds from the kill of a master that a controller elected to the first send that its
  slave acknowledges as the new master, to a client of ours with default settings.

Examples::

    .venv/bin/python benchmarks/replication.py              writes benchmarks/results/replication.md
    .venv/bin/python benchmarks/replication.py --rounds 1   a look: prints, writes nothing
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import loadgen
import machine

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "interop"), str(TESTS / "conformance")]

import kit  # noqa: E402
from codes import Request  # noqa: E402
from servers import CometBroker, CometNameServer, Settings, connect  # noqa: E402

from support.brokers.replicas import CometReplica  # noqa: E402
from support.controllers.elected_processes import COMET, running_elected  # noqa: E402
from support.controllers.failover_load import Load, create_topic  # noqa: E402

ROUNDS_MIN = 5
"""Fewer rounds give no verdict, and no result file."""
NOISE_MAX = 0.3
"""In cores; a machine on which more runs beside it gives no verdict."""
LIMIT_S = 120.0
COST = loadgen.Load(conns=16, window=32, body=128)
PACED = loadgen.Load(conns=16, window=32, body=128, rate=10_000)
ONE = loadgen.Load(conns=1, window=1, body=128, queues=1)
FILL = loadgen.Load(conns=16, window=8, body=16 * 1024, count=45_000)
"""About 700 MiB: less than one log file, because an empty slave begins with the last one."""


MASTER_ALONE = "latency, the master flushes, without a slave"
SLAVE_ALONE = "latency, the slave flushes"
BOTH = "latency, both flush"
OVER_SLOWER = "latency, both flush, over the slower of the others"


class Figure(NamedTuple):
    """A figure of the table."""

    title: str
    unit: str
    target: float
    more_is_better: bool
    measure: Callable[[Path, float], float] | None
    """Measures it once: the folder, and the seconds of a load; None if others give it."""


class _Replica(CometReplica):
    """A slave whose flush is chosen."""

    def __init__(self, master: CometBroker, folder: Path, settings: Settings) -> None:
        self.namesrv = master.namesrv
        CometBroker.__init__(
            self, folder, master.namesrv, store=folder / "store", settings=settings
        )


class Brokers:
    """A master, and a slave that may be started later."""

    def __init__(self, folder: Path, *, role: str, flush: str, slave_flush: str) -> None:
        shared: Settings = {
            "mappedFileSizeCommitLog": 1 << 30,
            "mappedFileSizeConsumeQueue": 6_000_000,
            "maxHashSlotNum": 5_000_000,
            "maxIndexNum": 20_000_000,
        }
        self.name_server = CometNameServer(folder / "namesrv")
        self.master = CometBroker(
            folder / "master",
            self.name_server.address,
            store=folder / "master" / "store",
            settings=shared | {"brokerRole": role, "flushDiskType": flush},
        )
        self.slave = _Replica(
            self.master,
            folder / "slave",
            shared | {"brokerRole": "SLAVE", "brokerId": 1, "flushDiskType": slave_flush},
        )

    def load(self, load: loadgen.Load, seconds: float) -> Mapping[str, Any]:
        """Put a load on the master; return the figures of the generator."""
        target = loadgen.Target(self.master.address, [self.master.process.pid])
        topic = f"t{time.monotonic_ns()}"
        warm_s = 0.0 if load.count else 1.0
        found = loadgen.run(load, target, topic=topic, warmup_s=warm_s, duration_s=seconds)
        if doubts := loadgen.doubts(found):
            raise loadgen.LoadError(doubts)
        return found

    def await_copy(self) -> None:
        """Wait until the slave has the whole log of the master."""
        deadline = time.monotonic() + LIMIT_S
        while (ahead := _log_end(self.master.address)) != _log_end(self.slave.address) or not ahead:
            if time.monotonic() > deadline:
                raise loadgen.LoadError(f"the slave does not reach {ahead}")
            time.sleep(0.005)


def _log_end(address: str) -> int:
    connection = connect(address)
    try:
        return int(
            kit.ok(connection.request(Request.GET_BROKER_RUNTIME_INFO)).json()["table"][
                "commitLogMaxOffset"
            ]
        )
    finally:
        connection.close()


@contextmanager
def _running(
    folder: Path,
    *,
    role: str = "ASYNC_MASTER",
    flush: str = "ASYNC_FLUSH",
    slave_flush: str = "ASYNC_FLUSH",
    with_slave: bool,
) -> Iterator[Brokers]:
    shutil.rmtree(folder, ignore_errors=True)
    brokers = Brokers(folder, role=role, flush=flush, slave_flush=slave_flush)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for server in (brokers.name_server, brokers.master):
            stack.callback(server.kill)
            server.start()
        stack.callback(brokers.slave.kill)
        if with_slave:
            brokers.slave.start()
            brokers.load(loadgen.Load(conns=1, window=1, body=8, queues=1, count=10), 1.0)
            brokers.await_copy()
        yield brokers


def _cost(folder: Path, seconds: float) -> float:
    def of_master(with_slave: bool) -> float:
        with _running(folder, with_slave=with_slave) as brokers:
            return float(brokers.load(COST, seconds)["server"]["cpu_per_million"])

    return of_master(True) - of_master(False)


def _lag(folder: Path, seconds: float) -> float:
    with _running(folder, role="SYNC_MASTER", with_slave=True) as brokers:
        return float(brokers.load(PACED, seconds)["lat_us"]["p99"]) / 1000


def _catch_up(folder: Path, seconds: float) -> float:
    with _running(folder, with_slave=False) as brokers:
        brokers.load(FILL, LIMIT_S)
        size = _log_end(brokers.master.address)
        began_s = time.monotonic()  # the copy begins before the slave reports that it is ready
        brokers.slave.start()
        brokers.await_copy()
        return size / 1e6 / (time.monotonic() - began_s)


def _latency(*, master_flushes: bool, slave_flushes: bool) -> Callable[[Path, float], float]:
    def flush(is_synchronous: bool) -> str:
        return "SYNC_FLUSH" if is_synchronous else "ASYNC_FLUSH"

    def measure(folder: Path, seconds: float) -> float:
        with _running(
            folder,
            role="SYNC_MASTER" if slave_flushes else "ASYNC_MASTER",
            flush=flush(master_flushes),
            slave_flush=flush(slave_flushes),
            with_slave=slave_flushes,
        ) as brokers:
            return float(brokers.load(ONE, seconds)["lat_us"]["p50"]) / 1000

    return measure


def _failover(folder: Path, _seconds: float) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    with running_elected(COMET, (COMET, COMET), folder, allAckInSyncStateSet=True) as cluster:
        cluster.await_in_sync(2)
        create_topic(cluster)
        master = cluster.await_master()

        async def measure() -> float:
            async with Load(cluster.namesrv) as load:
                await load.until_acknowledged(500)
                return await load.time_after(master.kill)

        return asyncio.run(measure())


FIGURES = (
    Figure("cost of one slave", "s/M", 0.4, False, _cost),
    Figure("lag under load, 99 of 100 within", "ms", 10.0, False, _lag),
    Figure(
        "catch-up of an empty slave, start of its process included", "MB/s", 300.0, True, _catch_up
    ),
    Figure(MASTER_ALONE, "ms", 0.0, False, _latency(master_flushes=True, slave_flushes=False)),
    Figure(SLAVE_ALONE, "ms", 0.0, False, _latency(master_flushes=False, slave_flushes=True)),
    Figure(BOTH, "ms", 0.0, False, _latency(master_flushes=True, slave_flushes=True)),
    Figure(OVER_SLOWER, "x", 1.2, False, None),
    Figure("failover after the kill of a master", "s", 5.0, False, _failover),
)


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    asked = _arguments()
    machine.refuse_other_sources()
    taken: dict[str, list[float]] = {figure.title: [] for figure in FIGURES}
    with machine.NoiseWatch() as watch:
        for _ in range(asked.rounds):
            for figure in FIGURES:
                if figure.measure is None or asked.only not in figure.title:
                    continue
                value = figure.measure(asked.folder / "replication", asked.seconds)
                taken[figure.title].append(value)
                print(f"{figure.title}: {value:.3f} {figure.unit}", flush=True)
    taken[OVER_SLOWER] = [
        both / max(alone)
        for both, *alone in zip(taken[BOTH], taken[MASTER_ALONE], taken[SLAVE_ALONE], strict=False)
    ]
    lines = [*_head(asked, watch.noise), *_table(taken, watch.noise)]
    machine.report("replication", lines, taken, whole=asked.rounds >= ROUNDS_MIN and not asked.only)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure replication to one slave.")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default="", help="a part of the title of one figure")
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench")
    return parser.parse_args()


def _head(asked: argparse.Namespace, noise: machine.Noise) -> list[str]:
    loads = {
        "load": "bodies of 128 bytes; cost: 16 connections with 32 requests in flight; lag: 10,000"
        " messages per second; latency: one at a time",
    }
    return machine.page_head(
        "Replication to one slave", loads, rounds=asked.rounds, noise=noise, noise_max=NOISE_MAX
    )


def _table(taken: Mapping[str, Sequence[float]], noise: machine.Noise) -> list[str]:
    lines = ["| figure | unit | value | target |", "|---|---|--:|---|"]
    for figure in FIGURES:
        values = taken[figure.title]
        if not values:
            continue
        cell = f"{median(values):.3g} ({min(values):.3g}, {max(values):.3g})"
        lines.append(
            f"| {figure.title} | {figure.unit} | {cell} | {_verdict(figure, values, noise)} |"
        )
    return lines


def _verdict(figure: Figure, values: Sequence[float], noise: machine.Noise) -> str:
    if not figure.target:
        return ""
    sign = "≥" if figure.more_is_better else "≤"
    if len(values) < ROUNDS_MIN or noise.total > NOISE_MAX:
        return f"{sign} {figure.target:g} no verdict"
    found = median(values)
    is_met = found >= figure.target if figure.more_is_better else found <= figure.target
    return f"{sign} {figure.target:g} {'met' if is_met else 'missed'}"


if __name__ == "__main__":
    main()
