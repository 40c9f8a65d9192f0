"""Measures our Spark formats beside Spark's own Parquet source, all in one run.

Everything runs once to warm up, a new JVM being two to three times slower; then come the rounds, in
each of which every subject runs once, so that a slow minute of the machine meets all of them. Table
and raw figures land in ``benchmarks/results/spark.md`` and ``spark.json``.

Examples::

    make bench-spark                                  everything, about ten minutes
    make bench-spark BENCH='--quick'                  a fifth of the messages, one round
    make bench-spark BENCH='--only kernel,log,archive'
    make bench-spark BENCH='--servers ours,java-5.3.3 --only topic,write'
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import machine
import servers
import spark_kernel
import spark_memory
from spark_data import make_parquet, make_store
from spark_subjects import OF_BROKERS, OF_FILES, Bench, Subject, fill

from cometmq.cli.build import version_line

sys.path.append(str(servers.TESTS))
from support.sparse_log import make_sparse_log

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
FILES = Path("build/bench/spark")
GB = 1000**3
INTERPRETED_ROWS = 50_000
BATCH_BYTES = {1 << 20: 150, 16 << 20: 200}
"""Bounds of a batch, and how many MiB a worker may then take, itself included."""
KERNEL = (
    Subject("kernel", "decoder alone, core columns", goal=3000),
    Subject("kernel-properties", "decoder alone, with properties"),
    Subject("kernel-everything", "decoder alone, everything and checksums"),
    Subject("plain-kernel", "decoder alone, interpreted, core columns"),
)
MEMORY = tuple(
    Subject(
        f"memory-{size >> 20}",
        f"worker that reads {{size:g}} GB of log, `batch.bytes` of {size >> 20} MiB",
        goal=goal,
        unit="MiB",
        more_is_better=False,
    )
    for size, goal in BATCH_BYTES.items()
)
Values = dict[str, list[float]]


def main() -> int:
    """Run what the command line asks for; 1 if a goal is missed."""
    options = _options()
    os.environ["JAVA_HOME"] = str(servers.toolchain.java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder = options.folder.absolute()
    values: Values = {}
    print(f"making {options.messages} messages", flush=True)
    make_store(folder / "store", options.messages)
    make_parquet(folder / "parquet", folder / "store")
    if _asked(options, KERNEL):
        _measure_kernel(folder, options, values)
    if _asked(options, (*OF_FILES, *OF_BROKERS)):
        with _session(folder, tcp=options.tcp) as spark:
            _measure_sources(Bench(spark, folder, options.messages), options, values)
    if _asked(options, MEMORY):
        _measure_memory(folder, options, values)
    print(f"\n{_markdown(options, values)}")
    missed = [each.name for each in _subjects() if not _reached(each, values)]
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(each.name for each in _subjects())
    parser.add_argument("--quick", action="store_true", help="a fifth of the messages, one round")
    parser.add_argument("--messages", type=int, help="default 1,000,000")
    parser.add_argument("--rounds", type=int, help="default 3")
    parser.add_argument("--only", default="", help=f"some of: {names}")
    parser.add_argument("--servers", default="ours", help=f"some of: {', '.join(servers.KINDS)}")
    parser.add_argument(
        "--sparse-gb", type=float, default=10, help="of log for the memory's figure"
    )
    parser.add_argument("--save", default="spark", metavar="NAME", help="name of the result files")
    parser.add_argument("--folder", type=Path, default=FILES)
    parser.add_argument("--tcp", action="store_true", help="talk to Python workers as is default")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.messages = options.messages or (200_000 if options.quick else 1_000_000)
    unknown = set(filter(None, options.only.split(","))) - {each.name for each in _subjects()}
    if unknown:
        parser.error(f"no such subject: {', '.join(sorted(unknown))}; there are {names}")
    return options


def _subjects() -> Sequence[Subject]:
    return (*KERNEL, *OF_FILES, *OF_BROKERS, *MEMORY)


def _asked(options: argparse.Namespace, subjects: Sequence[Subject]) -> list[Subject]:
    only = set(filter(None, options.only.split(",")))
    return [each for each in subjects if not only or each.name in only]


@contextmanager
def _session(folder: Path, *, tcp: bool) -> Iterator[Any]:
    """A session whose Python workers did nothing yet."""
    from cometmq.spark.sessions import local_session

    conf = {
        "spark.local.dir": folder / "local",
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.log.level": "FATAL",
        "spark.python.unix.domain.socket.enabled": not tcp,
    }
    spark = local_session(2, "6g", **conf)
    try:
        yield spark
    finally:
        spark.stop()


def _measure_sources(bench: Bench, options: argparse.Namespace, values: Values) -> None:
    _measure(bench, OF_FILES, options, values)
    if _asked(options, OF_BROKERS):
        for name in options.servers.split(","):
            _measure_broker(bench, name, options, values)


def _measure_kernel(folder: Path, options: argparse.Namespace, values: Values) -> None:
    for number in range(1, options.rounds + 1):
        found = spark_kernel.rates(folder / "store", options.messages)
        plain = _interpreted_rate(folder / "store")
        rates = [*found.values(), plain]
        for subject, rate in zip(KERNEL, rates, strict=True):
            if subject in _asked(options, KERNEL):
                _note(number, subject, subject.name, rate / 1e3, options, values)


def _interpreted_rate(store: Path) -> float:
    done = subprocess.run(
        [sys.executable, str(HERE / "spark_kernel.py"), str(store), str(INTERPRETED_ROWS)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | {"COMETMQ_BUILD": "interpreted"},
    )
    rate: float = json.loads(done.stdout)["core"]
    return rate


def _measure(
    bench: Bench,
    subjects: Sequence[Subject],
    options: argparse.Namespace,
    values: Values,
    suffix: str = "",
) -> None:
    """Run each subject once for nothing, and then once in every round."""
    asked = _asked(options, subjects)
    for number in range(options.rounds + 1):
        for subject in asked:
            assert subject.measure is not None
            value = subject.measure(bench)
            if number:
                _note(number, subject, subject.name + suffix, value, options, values)


def _measure_broker(bench: Bench, kind: str, options: argparse.Namespace, values: Values) -> None:
    broker = servers.KINDS[kind]((bench.folder / "broker").absolute(), flush="ASYNC_FLUSH")
    try:
        broker.start()
        bench.name_servers = f"127.0.0.1:{broker.namesrv_port}"
        bench.topic, bench.writes = "bench-read", "bench-write"
        for topic in (bench.topic, bench.writes):
            _make_topic(broker, topic)
        fill(bench)
        _measure(bench, OF_BROKERS, options, values, "" if kind == "ours" else f" {kind}")
    finally:
        broker.stop()


def _make_topic(broker: servers.Server, topic: str) -> None:
    connection = servers.Connection(("127.0.0.1", broker.port), timeout=10.0)
    try:
        servers.kit.ok(servers.kit.create_topic(connection, topic, read=8, write=8))
    finally:
        connection.close()


def _measure_memory(folder: Path, options: argparse.Namespace, values: Values) -> None:
    """Read a huge log in sessions of their own, as workers keep what they once needed."""
    sparse = folder / "sparse"
    shutil.rmtree(sparse, ignore_errors=True)
    count = make_sparse_log(sparse / "commitlog", int(options.sparse_gb * GB))
    try:
        for subject, size in zip(MEMORY, BATCH_BYTES, strict=True):
            if subject in _asked(options, MEMORY):
                with _session(folder, tcp=options.tcp) as spark:
                    peak = spark_memory.read_all(spark, sparse, size, count)
                _note(1, subject, subject.name, peak, options, values)
    finally:
        shutil.rmtree(sparse)


def _note(
    number: int,
    subject: Subject,
    name: str,
    value: float,
    options: argparse.Namespace,
    values: Values,
) -> None:
    values.setdefault(name, []).append(value)
    print(f"round {number}  {name:<22}{value:10.1f} {subject.unit}", flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    settings = {key: str(value) for key, value in vars(options).items()}
    raw = {"machine": machine.facts(), "settings": settings, "values": values}
    (RESULTS / f"{options.save}.json").write_text(json.dumps(raw, indent=1) + "\n")
    (RESULTS / f"{options.save}.md").write_text(_markdown(options, values))


def _reached(subject: Subject, values: Mapping[str, list[float]]) -> bool:
    return subject.name not in values or subject.reached(median(values[subject.name]))


def _markdown(options: argparse.Namespace, values: Mapping[str, list[float]]) -> str:
    import pyspark

    lines = ["# Our Spark formats beside Spark's own", ""]
    lines += [f"- {name}: {fact}" for name, fact in machine.facts().items()]
    lines += [
        f"- {version_line()}, PySpark {pyspark.__version__} on 2 cores of this process's JVM",
        f"- {options.messages} messages of 128 bytes; {options.rounds} rounds after one to warm up;"
        " median, and how far the rounds lie apart in % of it",
        f"- Spark talks to its Python workers through {'TCP' if options.tcp else 'Unix sockets'}",
        "",
        "| what | figure | goal |",
        "|---|---|---|",
    ]
    for subject in _subjects():
        for name, found in values.items():
            if name.partition(" ")[0] == subject.name:
                lines.append(_line(subject, name.partition(" ")[2], found, options))
    return "\n".join(lines) + "\n"


def _line(
    subject: Subject, server: str, found: Sequence[float], options: argparse.Namespace
) -> str:
    middle = median(found)
    spread = 50 * (max(found) - min(found)) / middle
    goal = ""
    if subject.goal is not None and not server:
        sign = "≥" if subject.more_is_better else "≤"
        goal = f"{sign} {subject.goal:g} {'met' if subject.reached(middle) else 'MISSED'}"
    title = subject.title.format(size=options.sparse_gb) + (f", {server}" if server else "")
    return f"| {title} | {middle:.0f} {subject.unit} ±{spread:.0f}% | {goal} |"


if __name__ == "__main__":
    sys.exit(main())
