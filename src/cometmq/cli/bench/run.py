"""Runs one load: warm-up, measured seconds, a line of progress each second."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from cometmq.cli.bench.meter import BenchError, Durations, Load, Meter, System, work_of
from cometmq.cli.bench.results import Result
from cometmq.cli.build import version_line
from cometmq.model.errors import CometError, ConfigError

SYSTEMS = {
    "cometmq": ("comet", ""),
    "rocketmq": ("comet", ""),
    "kafka": ("kafka", "aiokafka"),
    "nats": ("nats", "nats-py"),
}
"""The module of each system below, and the package that it needs."""
FIRST_S_MAX = 60.0
"""How long the first message may take."""
STOP_S_MAX = 30.0
STEP_S = 1.0
CONSUMING = ("consumer", "pop")

Show = Callable[[str], None]


async def run(name: str, servers: str, load: Load, pids: Sequence[int], show: Show) -> Result:
    """Run a load; return what was measured.

    Args:
        name: of the system, a key of `SYSTEMS`.
        servers: the addresses, as the system's client takes them.
        load: how to load them.
        pids: processes of the servers on this machine, whose processor time is measured.
        show: gets lines of progress.

    Raises:
        ConfigError: the system, the load or a process is unknown, or a package is missing.
        BenchError: no message got through, or the load failed.
    """
    system = _system(name)
    work = work_of(name, system.WORKS, load.kind)
    _cpu_s(pids)
    try:
        version = await system.version(servers)
    except CometError:
        raise
    except Exception as error:
        raise _failure(servers, error) from None
    show(f"{name} ({version}), {load.kind}: {load.warm_s:g} s of warm-up, then {load.seconds:g} s")
    meter = Meter()
    running = asyncio.ensure_future(work(servers, load, meter))
    watching = asyncio.create_task(_watch(load, meter, pids, show))
    try:
        await asyncio.wait([running, watching], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            watching.cancel()
            await asyncio.wait([watching])
            if (failure := running.exception()) is not None:
                raise failure if isinstance(failure, CometError) else _failure(servers, failure)
            raise BenchError("the load ended by itself")
        begin, figures = watching.result()
        meter.over.set()
        await asyncio.wait([running], timeout=STOP_S_MAX)
    finally:
        meter.over.set()
        for task in (running, watching):
            task.cancel()
        await asyncio.wait([running, watching])
    with contextlib.suppress(asyncio.CancelledError):
        running.result()
    return Result(
        system=name, version=version, client=version_line(), began=begin, load=load, **figures
    )


def _failure(servers: str, error: BaseException) -> BenchError:
    """Return the error of a command for one of a client of another system."""
    return BenchError(f"{servers}: {type(error).__name__}: {error}")


def _system(name: str) -> System:
    if name not in SYSTEMS:
        raise ConfigError(f"--against {name}: expected one of {', '.join(SYSTEMS)}")
    module, package = SYSTEMS[name]
    if package:
        try:
            import_module(package.partition("-")[0])
        except ImportError:
            raise ConfigError(
                f"{name} needs the package {package}: pip install {package}"
            ) from None
    found: System = import_module(f"cometmq.cli.bench.{module}")
    return found


async def _watch(
    load: Load, meter: Meter, pids: Sequence[int], show: Show
) -> tuple[str, dict[str, Any]]:
    """Wait for warm-up and measured time; return the begin and the figures."""
    try:
        async with asyncio.timeout(FIRST_S_MAX):
            await meter.begun.wait()
    except TimeoutError:
        why = meter.last_error or "there was no error"
        raise BenchError(f"no message got through within {FIRST_S_MAX:g} s: {why}") from None
    await asyncio.sleep(load.warm_s)
    meter.durations, meter.recent, meter.errors = Durations(), Durations(), 0
    began = datetime.now(UTC).isoformat(timespec="seconds")
    start, count, own, theirs = time.perf_counter(), meter.count, time.process_time(), _cpu_s(pids)
    rates: list[float] = []
    last, last_count, is_drained = start, count, False
    for step in range(1, math.ceil(load.seconds / STEP_S) + 1):
        await asyncio.sleep(start + min(step * STEP_S, load.seconds) - time.perf_counter())
        now = time.perf_counter()
        is_drained = meter.count == last_count and load.kind in CONSUMING and not load.rate
        if is_drained:
            break
        rates.append((meter.count - last_count) / (now - last))
        recent, meter.recent = meter.recent, Durations()
        show(_line(now - start, rates[-1], recent, meter.errors))
        last, last_count = now, meter.count
    ended = meter.last if is_drained else time.perf_counter()
    seconds, messages = ended - start, meter.count - count
    own, theirs = time.process_time() - own, _cpu_s(pids) - theirs
    return began, {
        "seconds": round(seconds, 3),
        "messages": messages,
        "is_drained": is_drained,
        "errors": meter.errors,
        "last_error": meter.last_error if meter.errors else "",
        "rate": round(messages / seconds, 1) if messages else 0.0,
        "rates": [round(each, 1) for each in rates],
        "milliseconds": meter.durations.milliseconds(),
        "client_cpu_us": round(own / messages * 1e6, 2) if messages else None,
        "server_cpu_us": round(theirs / messages * 1e6, 2) if messages and pids else None,
        "buckets": meter.durations.counts,
    }


def _line(second: float, rate: float, recent: Durations, errors: int) -> str:
    shown = recent.milliseconds()
    times = "  ".join(f"{name} {shown[name]:.2f} ms" for name in ("p50", "p99", "max") if shown)
    failed = f"  errors {errors:,}" if errors else ""
    return f"{second:5.0f} s  {rate:>11,.0f}/s  {times}{failed}"


def _cpu_s(pids: Sequence[int]) -> float:
    """Return the processor seconds of processes, with those of their children that have ended.

    Raises:
        ConfigError: one does not run on this machine, or the system is not Linux.
    """
    total = 0.0
    for pid in pids:
        try:
            values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError as error:
            raise ConfigError(
                f"--server-pid {pid}: {error.strerror}; expected a process of this Linux machine"
            ) from None
        total += sum(map(int, values[11:15])) / os.sysconf("SC_CLK_TCK")
    return total
