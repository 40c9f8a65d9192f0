"""Compiles the load generator and runs it against a broker.

The generator is ``loadgen.c``: one thread, epoll, C connections with W requests in flight on each
(written ``CxW``). It checks every answer; a run with a wrong count or an error is not a result.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAM = HERE.parent / "build" / "bench" / "loadgen"
SERVER_CORE, GENERATOR_CORE = 0, 1


class LoadError(Exception):
    """The generator could not run, or what it saw cannot be trusted."""


@dataclass(frozen=True)
class Load:
    """What the generator is to do."""

    mode: str = "send"
    conns: int = 16
    window: int = 32
    body: int = 128
    batch: int = 0
    rate: int = 0
    split: bool = False
    """Server on one core and generator on the other, instead of both on both."""


def compile_generator() -> Path:
    """The generator's program, compiled when the source is newer."""
    source = HERE / "loadgen.c"
    if PROGRAM.exists() and PROGRAM.stat().st_mtime >= source.stat().st_mtime:
        return PROGRAM
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise LoadError("no C compiler: the load generator cannot be built")
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, "-O2", "-o", str(PROGRAM), str(source)], check=True)
    return PROGRAM


def run(
    load: Load, *, address: str, pids: list[int], topic: str, warmup_s: float, duration_s: float
) -> dict[str, Any]:
    """Put the load on the broker at ``address``; returns the generator's own figures.

    Args:
        pids: processes whose CPU time and memory count as the server's.
        warmup_s: seconds of the same load before the figures count.
    """
    cores = os.sched_getaffinity(0)
    if load.split and len(cores) < 2:
        raise LoadError("a split run needs two cores")
    _pin(pids, {SERVER_CORE} if load.split else cores)
    command = [str(compile_generator()), "--addr", address, "--topic", topic]
    command += ["--mode", load.mode, "--conns", str(load.conns), "--window", str(load.window)]
    command += ["--body", str(load.body), "--batch", str(load.batch), "--rate", str(load.rate)]
    command += ["--warmup", str(warmup_s), "--duration", str(duration_s)]
    command += ["--pid", ",".join(map(str, pids))]
    if load.split:
        command = ["taskset", "-c", str(GENERATOR_CORE), *command]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=warmup_s + duration_s + 90,
            check=False,
        )
    finally:
        _pin(pids, cores)
    if done.returncode:
        raise LoadError(f"the generator ended with {done.returncode}: {done.stderr.strip()}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def doubts(figures: Mapping[str, Any]) -> str:
    """Why the figures cannot be trusted; empty when they can."""
    reasons = [
        f"{name}={figures[name]}"
        for name in ("errors", "bad_opaque", "lost_conns", "unanswered", "late")
        if figures.get(name)
    ]
    if figures.get("verify") not in ("ok", "skipped"):
        reasons.append(f"verify={figures['verify']}")
    if figures.get("first_error"):
        reasons.append(str(figures["first_error"]))
    return " ".join(reasons)


def _pin(pids: list[int], cores: set[int]) -> None:
    """Let every thread of the processes run on these cores only."""
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                os.sched_setaffinity(int(task.name), cores)
            except ProcessLookupError:
                continue  # the thread has just ended
