"""Measures FastStream on CometMQ, and on NATS JetStream and Kafka in the same rounds.

Each system is durable: a publish returns when the message is on the disk. The application is the
same for all (``client_programs/faststream_app.py``): one process, one event loop, a pydantic model
as payload, no logger, and an acknowledgement after each handler. A round measures of each system

- ``publish``: 64 publishes at a time;
- ``consume``: a backlog, with the subscriber's defaults, and with 20 handlers at a time where the
  broker class lets an acknowledging subscriber have them; ours and Kafka's also with ACK_FIRST:
  Kafka's client then commits by itself, in intervals, without waiting for handlers;
- ``latency``: from the call of publish to the handler, one message after the other, and at rates
  that do not wait for the answers;

and the pipeline without a server: what our broker class adds to FastStream's own cost of a message.

Examples::

    .venv/bin/python benchmarks/faststream_apps.py                            writes the results
    .venv/bin/python benchmarks/faststream_apps.py --count 5000 --rounds 1    a look: only prints
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles

import machine
import rivals
import servers

PROGRAM = Path(__file__).resolve().parent / "client_programs" / "faststream_app.py"
COUNT, ROUNDS_MIN = 15_000, 3
NOISE_MAX = 0.3
LATENCY_COUNT, PIPELINE_COUNT = 3_000, 40_000
COMMITS_COUNT = 1_500
"""Messages that Kafka commits one by one."""
OWN_SHARE_US_MAX = 10.0
RUN_S = 300.0
TOPIC, QUEUES = "measured", 4
WORKERS = 'consume:{"max_workers":20}'
ACK_FIRST = 'consume:{"ack_policy":"ACK_FIRST"}'
RATES = ("steady:1000",)
LOADS = {
    "cometmq": ("publish", "consume", ACK_FIRST, "latency", *RATES),
    "nats": ("publish", "consume", WORKERS, "latency", *RATES),
    "kafka": ("publish", "consume", ACK_FIRST, "latency", *RATES),
}
KINDS: dict[str, type[servers.Server]] = {
    "cometmq": servers.Comet,
    "nats": rivals.Nats,
    "kafka": rivals.Kafka,
}
NAMES = {
    WORKERS: "consume, 20 at a time",
    ACK_FIRST: "consume, ACK_FIRST",
    **{rate: f"latency at {rate.partition(':')[2]} a second" for rate in RATES},
}
Figures = dict[str, dict[str, float]]
"""By system and load."""


def _run(system: str, address: str, load: str, count: int) -> dict[str, float]:
    command = [sys.executable, str(PROGRAM), system, address, load, str(count)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S, env=machine.compiled_environment()
    )
    if done.returncode:
        raise SystemExit(f"{system} {load} ended with {done.returncode}: {done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


async def _make_topic(system: str, port: int) -> None:
    """Make the topic with as many partitions as ours has queues."""
    if system == "nats":
        from nats import connect

        client = await connect(f"nats://127.0.0.1:{port}")
        await client.jetstream().add_stream(name=TOPIC, subjects=[TOPIC])
        await client.close()
    elif system == "kafka":
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}")
        await admin.start()
        await admin.create_topics([NewTopic(TOPIC, QUEUES, 1)])
        await admin.close()
    else:
        from cometmq.client import AdminClient

        async with AdminClient(f"127.0.0.1:{port}") as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)


def _measure(folder: Path, system: str, load: str, count: int) -> dict[str, float]:
    """Measure a load on a fresh server."""
    if (system, load) == ("kafka", "consume"):
        count = min(count, COMMITS_COUNT)
    elif load in ("latency", *RATES):
        count = LATENCY_COUNT
    server = KINDS[system](folder, flush="SYNC_FLUSH")
    server.start()
    try:
        port = server.namesrv_port if isinstance(server, servers.RocketServer) else server.port
        asyncio.run(_make_topic(system, port))
        address = f"127.0.0.1:{port}"
        if load.startswith("consume"):
            _run(system, address, "publish", count - 1_000)
        before = machine.cpu_seconds(server.pids)
        figures = _run(system, address, load, count)
        figures["server us"] = (machine.cpu_seconds(server.pids) - before) / count * 1e6
        return figures
    finally:
        server.stop()


def _round(folder: Path, count: int) -> Figures:
    figures: Figures = {}
    for kind in ("floor", "cometmq"):
        figures[f"{kind} pipeline"] = _run(kind, "-", "pipeline", PIPELINE_COUNT)
    loads = dict.fromkeys(load for all_loads in LOADS.values() for load in all_loads)
    for load in loads:
        for system, its_loads in LOADS.items():
            if load in its_loads:
                figures[f"{system} {load}"] = found = _measure(folder, system, load, count)
                print(system, load, json.dumps(found), file=sys.stderr, flush=True)
    return figures


def _worse(values: list[float], *, is_high_bad: bool) -> float:
    """The worse quartile; of few values, the worst."""
    if len(values) < 4:
        return max(values) if is_high_bad else min(values)
    return quantiles(values, n=4, method="inclusive")[2 if is_high_bad else 0]


def _verdicts(rounds: list[Figures]) -> list[str]:
    """Ours beside the best load of each rival, within each round."""
    lines = []
    for rival in ("nats", "kafka"):
        for load in ("publish", "consume", ACK_FIRST):
            if load not in LOADS[rival]:
                continue
            ratios = []
            for each in rounds:
                theirs = [each[f"{rival} {name}"] for name in LOADS[rival] if load in name]
                best = max(found["per second"] for found in theirs)
                ratios.append(each[f"cometmq {load}"]["per second"] / best)
            worse = _worse(ratios, is_high_bad=False)
            lines.append(
                f"- {NAMES.get(load, load)}, rate beside {rival}'s best: {median(ratios):.2f}, "
                f"worse quartile {worse:.2f}"
            )
        for load in ("latency", *RATES):
            for name in ("p50 ms", "p99 ms"):
                ratios = [
                    each[f"cometmq {load}"][name] / each[f"{rival} {load}"][name] for each in rounds
                ]
                worse = _worse(ratios, is_high_bad=True)
                lines.append(
                    f"- {NAMES.get(load, load)}, {name.removesuffix(' ms')} beside {rival}'s: "
                    f"{median(ratios):.2f}, worse quartile {worse:.2f} (below 1 is better)"
                )
    shares = [
        each["cometmq pipeline"]["client us"] - each["floor pipeline"]["client us"]
        for each in rounds
    ]
    lines.append(
        f"- what our broker class adds to FastStream's own cost of a message: {median(shares):.1f} "
        f"µs, worse quartile {_worse(shares, is_high_bad=True):.1f}, goal {OWN_SHARE_US_MAX:g}"
    )
    return lines


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    parser = argparse.ArgumentParser(description="Measure FastStream on three systems.")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument(
        "--folder", type=Path, default=machine.ROOT / "build" / "bench" / "faststream"
    )
    asked = parser.parse_args()
    machine.refuse_other_sources()
    rounds: list[Figures] = []
    versions: dict[str, str] = {}
    for system, kind in KINDS.items():
        kind.prepare()
        server = kind(asked.folder, flush="SYNC_FLUSH")
        server.start()
        about = server.describe()
        versions[system] = f"{about['version']}, {about['SYNC_FLUSH']}"
        server.stop()
    with machine.NoiseWatch() as watch:
        for _ in range(asked.rounds):
            rounds.append(_round(asked.folder, asked.count))
    packages = ("faststream", "nats-py", "aiokafka")
    loads = {
        **versions,
        "client": ", ".join(f"{name} {version(name)}" for name in packages) + ", asyncio's loop",
        "messages": f"{asked.count:,} JSON objects of about 110 bytes, {LATENCY_COUNT:,} for "
        "the latency; a topic has 4 queues or partitions",
    }
    lines = machine.page_head(
        "FastStream", loads, rounds=asked.rounds, noise=watch.noise, noise_max=NOISE_MAX
    )
    columns = dict.fromkeys(("per second", "client us", "server us"), ",.0f")
    columns |= dict.fromkeys(("p50 ms", "p99 ms"), ",.2f")
    lines += ["", "| System | Load | Messages per second | Client, µs of CPU | Server, µs of CPU |"
              " p50, ms | p99, ms |", "|---|---|--:|--:|--:|--:|--:|"]  # fmt: skip
    for name in rounds[0]:
        system, _, load = name.partition(" ")
        cells = [
            machine.cell([each[name][column] for each in rounds], form)
            if column in rounds[0][name]
            else ""
            for column, form in columns.items()
        ]
        lines.append(f"| {system} | {NAMES.get(load, load)} | {' | '.join(cells)} |")
    lines += ["", *_verdicts(rounds)]
    lines += ["", f"Kafka's commits after each handler are of {COMMITS_COUNT:,} messages."]
    machine.report(
        "faststream", lines, rounds, whole=asked.rounds >= ROUNDS_MIN and asked.count >= COUNT
    )


if __name__ == "__main__":
    main()
