"""Compiles the load generator and runs it against a broker.

The generator is ``loadgen.c``: one thread, epoll, C connections with W requests in flight on each
(written ``CxW``). It checks every answer; a run with a wrong count or an error is not a result.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import frames

HERE = Path(__file__).resolve().parent
PROGRAM = HERE.parent / "build" / "bench" / "loadgen"
SERVER_CORE, GENERATOR_CORE = 0, 1
SPARE_S = 90.0
"""What a generator may take beside its load."""
BESIDE_STARTS_S = 0.8


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
    queues: int = 8
    topics: int = 1
    tags: int = 1
    """How many tags the messages have in turn: TagA, TagB, …"""
    expression: str = "*"
    """What pulls subscribe to."""
    frame: str = ""
    """The client whose recorded frame is sent; empty for the generator's own."""
    count: int = 0
    """Ends a send run after so many messages."""
    once: bool = False
    """Ends a pull run when every lane has read its queue once."""
    split: bool = False
    """Server on one core and generator on the other, instead of both on both."""


def compile_generator() -> Path:
    """The generator's program, compiled when the source is newer."""
    source = HERE / "loadgen.c"
    newest = max(path.stat().st_mtime for path in (source, HERE / "loadgen_rivals.h"))
    if PROGRAM.exists() and PROGRAM.stat().st_mtime >= newest:
        return PROGRAM
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise LoadError("no C compiler: the load generator cannot be built")
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, "-O2", "-o", str(PROGRAM), str(source)], check=True)
    return PROGRAM


@dataclass(frozen=True)
class Target:
    """The server that gets the load."""

    address: str
    pids: Sequence[int]
    """Processes whose processor time and memory count as the server's."""
    protocol: str = "rocketmq"


def run(
    load: Load,
    target: Target,
    *,
    topic: str,
    warmup_s: float,
    duration_s: float,
    create: bool = True,
) -> dict[str, Any]:
    """Put the load on the server; returns the generator's own figures.

    Args:
        warmup_s: seconds of the same load before the figures count.
        create: whether the topic is new.
    """
    cores = os.sched_getaffinity(0)
    if load.split and len(cores) < 2:
        raise LoadError("a split run needs two cores")
    pin(target.pids, {SERVER_CORE} if load.split else cores)
    try:
        with _start(load, target, topic, warmup_s, duration_s, create=create) as generator:
            return _finish(generator, warmup_s + duration_s + SPARE_S)
    finally:
        pin(target.pids, cores)


def run_beside(
    load: Load,
    beside: Load,
    target: Target,
    *,
    topic: str,
    duration_s: float,
    create: bool = True,
    beside_target: Target | None = None,
) -> dict[str, Any]:
    """Put two loads on the server, the second on a topic of its own; it lasts as long as the first.

    Args:
        create: whether the second topic is new; the first is not.
        beside_target: the server of the second load, if it is another.

    Returns:
        The figures of the first, with those of the second below ``beside``.
    """
    beside_s = 10 * duration_s + SPARE_S
    beside_topic = f"{topic}-beside"
    second = beside_target or target
    with _start(beside, second, beside_topic, 0.5, beside_s, create=create) as generator:
        try:
            time.sleep(BESIDE_STARTS_S)
            figures = run(
                load, target, topic=topic, warmup_s=0.0, duration_s=duration_s, create=False
            )
            generator.terminate()
            return figures | {"beside": _finish(generator, SPARE_S)}
        finally:
            generator.kill()


def _start(
    load: Load,
    target: Target,
    topic: str,
    warmup_s: float,
    duration_s: float,
    *,
    create: bool = True,
) -> subprocess.Popen[str]:
    options = {
        "proto": target.protocol,
        "addr": target.address,
        "topic": topic,
        "mode": load.mode,
        "conns": load.conns,
        "window": load.window,
        "body": load.body,
        "batch": load.batch,
        "rate": load.rate,
        "queues": load.queues,
        "topics": load.topics,
        "tags": load.tags,
        "expression": load.expression,
        "count": load.count,
        "once": int(load.once),
        "create": int(create),
        "warmup": warmup_s,
        "duration": duration_s,
        "pid": ",".join(map(str, target.pids)),
    }
    if load.frame:
        path, patches = frames.write(load.frame, PROGRAM.parent / "frames")
        options |= {"frame": str(path), "patch": patches, "topic": frames.TOPIC}
        options |= {"bname": frames.BROKER}
    command = [str(compile_generator())]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    if load.split:
        command = ["taskset", "-c", str(GENERATOR_CORE), *command]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish(generator: subprocess.Popen[str], within_s: float) -> dict[str, Any]:
    try:
        stdout, stderr = generator.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        generator.kill()
        raise LoadError(f"the generator did not end within {within_s:.0f} s") from None
    if generator.returncode:
        raise LoadError(f"the generator ended with {generator.returncode}: {stderr.strip()}")
    figures: dict[str, Any] = json.loads(stdout)
    return figures


def doubts(figures: Mapping[str, Any], *, at_least: int = 0) -> str:
    """Why the figures cannot be trusted; empty when they can.

    Args:
        at_least: how many messages were to be acknowledged.
    """
    reasons = [
        f"{name}={figures[name]}"
        for name in ("errors", "bad_opaque", "lost_conns", "unanswered", "undelivered", "late")
        if figures.get(name)
    ]
    if figures.get("verify") not in ("ok", "skipped"):
        reasons.append(f"verify={figures['verify']}")
    if figures.get("acked_total", at_least) < at_least:
        reasons.append(f"{figures['acked_total']} of {at_least} messages acknowledged")
    if "beside" in figures and (beside := doubts(figures["beside"])):
        reasons.append(f"beside: {beside}")
    if figures.get("first_error"):
        reasons.append(str(figures["first_error"]))
    return " ".join(reasons)


def pin(pids: Sequence[int], cores: set[int]) -> None:
    """Let every thread of the processes run on these cores only."""
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                os.sched_setaffinity(int(task.name), cores)
            except ProcessLookupError:
                continue  # the thread has just ended
