"""Measures our Spark formats beside Spark's own sources, and beside RocketMQ's and Kafka's brokers.

Every subject runs once to warm up, a new JVM being two to three times slower; then come the rounds,
in each of which every subject runs once and another one first. Spark talks to its Python workers as
is its default; some subjects are measured through Unix sockets as well, some also with messages
that are not in the page cache. Brokers flush synchronously, but for the rows that say otherwise;
Kafka as is its default. Spark's Kafka connector is a jar for the installed version of Spark, and is
left out where that version has none. Table and raw figures land in
``benchmarks/results/spark.md`` and ``spark.json``, after each figure, so that a run can be
continued.

Examples::

    make bench-spark                                  five rounds: prints its plan first
    make bench-spark BENCH='--quick'                  each subject once, few messages: no verdicts
    make bench-spark BENCH='--parts kernel,files'
    make bench-spark BENCH='--minutes 9 --continue'
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import cold
import figures
import loadgen
import machine
import rivals
import servers
import spark_kernel
import spark_memory
from figures import Figure, Figures
from spark_data import BODY_BYTES, make_large_log, make_parquet, make_store
from spark_subjects import (
    COLD,
    OF_ASYNC_BROKERS,
    OF_BROKERS,
    OF_FILES,
    OF_KAFKA,
    Bench,
    Subject,
    fill,
    fill_kafka,
)
from verdict import ROUNDS_MIN
from warm_memory import warm_memory

from cometmq.cli.build import version_line
from support.spark.spark_versions import spark_versions

HERE = Path(__file__).resolve().parent
FILES = Path("build/bench/spark")
GB = 1000**3
CACHED_MAX = 0.1
"""How much may be in the page cache if messages count as cold, as a part of their bodies."""
INTERPRETED_ROWS = 50_000
NOISE_CORES_MAX = 0.3
TOPIC_QUEUES = 8
WARM_LOADS = (loadgen.Load(), loadgen.Load(batch=32, window=4))
BATCH_BYTES = {1 << 20: 150, 16 << 20: 200}
"""Bounds of a batch, and how many MiB a worker may then take, itself included."""
SOCKETS = {"tcp": "TCP (Spark's default)", "unix": "Unix sockets"}
WITH_UNIX_SOCKETS = ("log", "log-batch", "topic", "write", "topic-batch")
OURS, REFERENCE = BROKERS = ("cometmq", "rocketmq-5.3.3")
KAFKA = "kafka"
KAFKA_GROUPS = ("org.apache.kafka", "org.apache.commons")
"""What Spark's Kafka connector needs beside itself, as Maven names it."""
HEAD = (
    *("what", "server", "flush", "Python workers", "page cache", "warm memory"),
    *("figure", "x", "target"),
)
"""Columns of the table."""
FLUSHES = {"SYNC_FLUSH": "synchronous", "ASYNC_FLUSH": "asynchronous", "": "-"}
KERNEL = (
    Subject("kernel", "decoder alone, core columns", target=3000),
    Subject("kernel-properties", "decoder alone, with properties"),
    Subject("kernel-everything", "decoder alone, everything and checksums"),
    Subject("plain-kernel", "decoder alone, interpreted, core columns"),
)
MEMORY = tuple(
    Subject(
        f"memory-{size >> 20}",
        f"worker that reads a log of bodies of 128 B to 128 KiB, `batch.bytes` of {size >> 20} MiB",
        target=target,
        unit="MiB",
        more_is_better=False,
    )
    for size, target in BATCH_BYTES.items()
)
SUBJECTS = (*KERNEL, *OF_FILES, *OF_BROKERS, *OF_KAFKA, *OF_ASYNC_BROKERS, *MEMORY)
PARTS = {"kernel": 20.0, "files": 60.0, "brokers": 240.0, "sockets": 35.0, "memory": 45.0}
"""Parts of a run, and how many seconds of each round they take on a quiet machine."""


@dataclass(frozen=True)
class Variant:
    """How subjects are measured."""

    server: str = ""
    """The broker, or empty for files."""
    flush: str = ""
    socket: str = "tcp"
    is_cold: bool = False
    """Whether the messages are not in the page cache."""

    def __str__(self) -> str:
        parts = (self.server or "files", self.socket, "cold" if self.is_cold else "")
        return ", ".join(part for part in parts if part)


def main() -> int:
    """Run what the command line asks for."""
    options = _options()
    _print_plan(options)
    if options.plan:
        return 0
    machine.refuse_other_sources()
    machine.refuse_dirty_tree(allowed=options.quick or options.dirty)
    import pyspark

    os.environ["JAVA_HOME"] = str(servers.toolchain.java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    results = Figures(
        figures.where(options.save, quick=options.quick),
        machine.facts()
        | {"CometMQ": version_line(), "PySpark": f"{pyspark.__version__}, two cores"},
        {"messages": options.messages, "large log, GB": options.log_gb, "quick": options.quick},
        options.noise_max,
    )
    if options.resume:
        results.resume()
    try:
        Run(options, results).run()
    except KeyboardInterrupt:
        print("stopped early; --continue goes on from here", file=sys.stderr)
    table = _markdown(results)
    results.path.with_suffix(".md").write_text(table)
    print(f"\n{table}\nsaved as {results.path.with_suffix('.md')}")
    return 1 if results.doubts() or results.missing() else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="each subject once, few messages")
    parser.add_argument("--messages", type=int, help="default 1,000,000")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS_MIN}, the least for verdicts")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--without-rocketmq", action="store_true", help="in the part brokers")
    parser.add_argument("--subjects", help="only these, by the names that a run prints")
    parser.add_argument(
        "--log-gb", type=float, help="size of the log that the memory row reads, default 4"
    )
    parser.add_argument("--save", metavar="NAME", help="name of the result files")
    parser.add_argument("--folder", type=Path, default=FILES)
    figures.add_run_arguments(parser, NOISE_CORES_MAX)
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    names = {each.name for each in SUBJECTS}
    options.subjects = options.subjects.split(",") if options.subjects else sorted(names)
    if unknown := set(options.subjects) - names:
        parser.error(f"no such subject: {', '.join(sorted(unknown))}")
    options.rounds = options.rounds or (1 if options.quick else ROUNDS_MIN)
    options.messages = options.messages or (100_000 if options.quick else 1_000_000)
    options.log_gb = options.log_gb or (1.0 if options.quick else 4.0)
    options.save = options.save or ("spark-quick" if options.quick else "spark")
    options.folder = options.folder.absolute()
    if options.quick:
        options.noise_max = float("inf")
    return options


def _print_plan(options: argparse.Namespace) -> None:
    seconds = sum(_expected_s(part, options) for part in options.parts)
    for part in options.parts:
        print(f"plan: {part:<9}{_expected_s(part, options):>6.0f} s")
    print(
        f"plan: {options.rounds} rounds, and one to warm up: {seconds / 60 + 1:.0f} minutes on a "
        "quiet machine\n",
        flush=True,
    )


def _expected_s(part: str, options: argparse.Namespace) -> float:
    passes = options.rounds + (part in ("files", "brokers", "sockets"))
    return PARTS[part] * passes * (0.4 if options.quick else 1.0)


class Run:
    """One run of the comparison."""

    def __init__(self, options: argparse.Namespace, results: Figures) -> None:
        self.options = options
        self.results = results
        self.folder: Path = options.folder
        minutes = options.minutes
        self._ends = time.monotonic() + 60 * minutes if minutes else float("inf")
        self._warm = "as found"
        self._jars: Sequence[Path] = ()
        """In all sessions: Spark's one JVM takes jars at its start only."""

    def run(self) -> None:
        """Measure all parts that were asked for."""
        messages = self.options.messages
        print(f"making {messages} messages", flush=True)
        make_store(self.folder / "store", messages)
        make_store(self.folder / "json-store", messages, json_bodies=True)
        make_parquet(self.folder / "parquet", self.folder / "store")
        if "brokers" in self.options.parts:
            self._jars = self._kafka_jars()
        parts: dict[str, Callable[[], None]] = {
            "kernel": self._kernel,
            "files": self._files,
            "brokers": self._brokers,
            "sockets": self._sockets,
            "memory": self._memory,
        }
        for part in self.options.parts:
            if time.monotonic() + _expected_s(part, self.options) > self._ends:
                print("the time is up; --continue goes on from here")
                return
            with ExitStack() as stack:
                if not self.options.quick:
                    machine.wait_until_quiet(self.options.quiet_wait, self.options.noise_max)
                    self._warm = stack.enter_context(warm_memory())
                parts[part]()

    def _rounds(self) -> range:
        return range(1, self.options.rounds + 1)

    def _missing(self, subjects: Sequence[Subject], variant: Variant, number: int) -> list[Subject]:
        return [
            subject
            for subject in figures.rotated(list(subjects), number)
            if subject.name in self.options.subjects
            and not self.results.has(number, str(variant), subject.name)
        ]

    def _take(
        self,
        number: int,
        subject: Subject,
        variant: Variant,
        measure: Callable[[machine.NoiseWatch], float],
    ) -> None:
        """Take a figure; ``measure`` enters the watch for as long as the figure is measured."""

        def once() -> Figure:
            watch = machine.NoiseWatch()
            value = measure(watch)
            print(
                f"round {number}  {subject.name:<19}{variant!s:<17}"
                f"{figures.number(value):>8} {subject.unit}  noise {watch.noise.total:.2f}",
                flush=True,
            )
            values = {"figure": value}
            return Figure(number, str(variant), subject.name, values, watch.noise, self._warm)

        self.results.servers[str(variant)] = {
            "server": variant.server,
            "socket": variant.socket,
            "page cache": "cold" if variant.is_cold else "warm",
        }
        try:
            self.results.take(once)
        except Exception as error:  # whatever Spark raises: the other subjects still count
            self.results.fail(number, str(variant), [subject.name], error)

    def _measure(
        self, bench: Bench, number: int, subjects: Sequence[Subject], variant: Variant
    ) -> None:
        for subject in self._missing(subjects, variant, number):

            def measure(watch: machine.NoiseWatch, each: Subject = subject) -> float:
                assert each.measure is not None
                if variant.is_cold:
                    _drop(bench)
                with watch:
                    return each.measure(bench)

            self._take(number, subject, variant, measure)

    def _measure_both(
        self, bench: Bench, number: int, subjects: Sequence[Subject], variant: Variant
    ) -> None:
        """Measure subjects, and those that are measured cold as well."""
        self._measure(bench, number, subjects, variant)
        if some := _cold(subjects):
            self._measure(bench, number, some, replace(variant, is_cold=True))

    def _warm_up(self, bench: Bench, subjects: Sequence[Subject], variant: Variant) -> None:
        for subject in subjects:
            if subject.name not in self.options.subjects:
                continue
            assert subject.measure is not None
            try:
                subject.measure(bench)
            except Exception as error:  # as in _take
                self.results.fail(0, str(variant), [subject.name], error)

    def _kernel(self) -> None:
        variant = Variant(socket="")
        store, rows = self.folder / "store", self.options.messages
        choices = ("core", "properties", "everything")
        for number in self._rounds():
            for subject in self._missing(KERNEL, variant, number):
                at = KERNEL.index(subject)
                choice = choices[at] if at < len(choices) else ""

                def measure(watch: machine.NoiseWatch, choice: str = choice) -> float:
                    with watch:
                        if choice:
                            return spark_kernel.rates(store, rows)[choice] / 1e3
                        return _interpreted_rate(store) / 1e3

                self._take(number, subject, variant, measure)

    def _files(self) -> None:
        variant = Variant()
        if not any(self._misses_both(OF_FILES, variant, number) for number in self._rounds()):
            return
        with self._bench("tcp") as bench:
            self._warm_up(bench, OF_FILES, variant)
            for number in self._rounds():
                self._measure_both(bench, number, OF_FILES, variant)

    def _misses_both(self, subjects: Sequence[Subject], variant: Variant, number: int) -> bool:
        """Whether a round lacks figures, warm or cold."""
        if self._missing(subjects, variant, number):
            return True
        some = _cold(subjects)
        return bool(some and self._missing(some, replace(variant, is_cold=True), number))

    def _brokers(self) -> None:
        """All brokers in each round, with either flush mode, and with one session of Spark."""
        jars = self._jars
        ours = [OURS] if self.options.without_rocketmq else BROKERS
        with self._bench("tcp") as bench:
            warmed: set[bool] = set()
            for number in self._rounds():
                for server in figures.rotated([*ours, *([KAFKA] if jars else [])], number):
                    is_kafka = server == KAFKA
                    modes = (("SYNC_FLUSH", OF_BROKERS), ("ASYNC_FLUSH", OF_ASYNC_BROKERS))
                    for flush, subjects in (("ASYNC_FLUSH", OF_KAFKA),) if is_kafka else modes:
                        variant = Variant(server, flush)
                        if not self._misses_both(subjects, variant, number):
                            continue
                        try:
                            with self._kafka(bench) if is_kafka else self._broker(bench, variant):
                                if is_kafka not in warmed:
                                    warm_up = OF_KAFKA if is_kafka else OF_BROKERS
                                    self._warm_up(bench, warm_up, variant)
                                    warmed.add(is_kafka)
                                self._measure_both(bench, number, subjects, variant)
                        except Exception as error:  # as in _take
                            names = [each.name for each in subjects]
                            self.results.fail(number, str(variant), names, error)

    def _kafka_jars(self) -> Sequence[Path]:
        """The connector for the installed version of Spark; none if it has none, which is noted."""
        import pyspark

        minor = ".".join(pyspark.__version__.split(".")[:2])
        found = {each.minor: each for each in spark_versions()}.get(minor)
        if found is None or "Kafka connector" not in found.artifacts:
            self.results.left_out = [f"{KAFKA}: Maven Central has no connector for Spark {minor}"]
            return ()
        rivals.Kafka.prepare()
        return servers.toolchain.spark_jars(found.artifacts["Kafka connector"], *KAFKA_GROUPS)

    def _sockets(self) -> None:
        """Some subjects again, with Spark talking to its workers through Unix sockets."""
        of_files = [each for each in OF_FILES if each.name in WITH_UNIX_SOCKETS]
        of_brokers = [each for each in OF_BROKERS if each.name in WITH_UNIX_SOCKETS]
        files = Variant(socket="unix")
        ours = Variant(OURS, "SYNC_FLUSH", "unix")
        with self._bench("unix") as bench:
            self._warm_up(bench, of_files, files)
            for number in self._rounds():
                self._measure(bench, number, of_files, files)
            try:
                with self._broker(bench, ours):
                    self._warm_up(bench, of_brokers, ours)
                    for number in self._rounds():
                        self._measure(bench, number, of_brokers, ours)
            except Exception as error:  # as in _take
                self.results.fail(1, str(ours), [each.name for each in of_brokers], error)

    def _memory(self) -> None:
        """Read a large log in sessions of their own, as workers keep what they once needed."""
        variant = Variant()
        if not any(self._missing(MEMORY, variant, number) for number in self._rounds()):
            return
        large = self.folder / "large"
        print(f"making a log of {self.options.log_gb:g} GB", flush=True)
        count = make_large_log(large / "commitlog", int(self.options.log_gb * GB))
        try:
            for number in self._rounds():
                for subject in self._missing(MEMORY, variant, number):
                    size = list(BATCH_BYTES)[MEMORY.index(subject)]
                    self._take(
                        number,
                        subject,
                        variant,
                        lambda watch, size=size: self._peak(large, size, count, watch),
                    )
        finally:
            shutil.rmtree(large)

    def _peak(self, large: Path, batch_bytes: int, count: int, watch: machine.NoiseWatch) -> float:
        """Read the log in a new session; what the workers used is lost when the session ends."""
        with self._session("tcp") as spark, watch:
            return spark_memory.read_all(spark, large, batch_bytes, count)

    @contextmanager
    def _session(self, socket: str) -> Iterator[Any]:
        """A session whose Python workers did nothing yet."""
        from cometmq.spark.sessions import local_session

        conf = {
            "spark.local.dir": self.folder / "local",
            "spark.sql.warehouse.dir": self.folder / "warehouse",
            "spark.log.level": "FATAL",
        }
        if socket == "unix":
            conf["spark.python.unix.domain.socket.enabled"] = True
        if self._jars:
            conf["spark.jars"] = ",".join(map(str, self._jars))
        spark = local_session(2, "6g", **conf)
        try:
            yield spark
        finally:
            spark.stop()

    @contextmanager
    def _bench(self, socket: str) -> Iterator[Bench]:
        with self._session(socket) as spark:
            yield Bench(spark, self.folder, self.options.messages)

    @contextmanager
    def _kafka(self, bench: Bench) -> Iterator[None]:
        """A fresh broker of Kafka that has the topic that is read."""
        broker = KafkaOfTopics(bench.folder / "broker", flush="ASYNC_FLUSH")
        try:
            broker.start()
            bench.topic, bench.kafka = "bench-read", broker.address
            bench.dropped = broker.store, broker.pids
            fill_kafka(bench)
            yield
        finally:
            bench.dropped = None
            broker.stop()

    @contextmanager
    def _broker(self, bench: Bench, variant: Variant) -> Iterator[None]:
        """A fresh broker that is warm and has the topic that is read."""
        kind = servers.KINDS[variant.server]
        broker = kind(bench.folder / "broker", flush=variant.flush)
        try:
            broker.start()
            target = loadgen.Target(broker.address, broker.pids)
            for load in (*WARM_LOADS, loadgen.Load("pull", 4, 1)):
                loadgen.run(load, target, topic="warm", warmup_s=0, duration_s=kind.settle_s / 3)
            bench.name_servers = f"127.0.0.1:{broker.namesrv_port}"
            bench.topic, bench.writes = "bench-read", "bench-write"
            for topic in (bench.topic, bench.writes):
                servers.make_topic(broker, topic, queues=TOPIC_QUEUES)
            bench.topic_count = lambda topic: servers.message_count(
                broker, topic, queues=TOPIC_QUEUES
            )
            fill(bench)
            bench.dropped = broker.store, broker.pids
            bench.events = "bench-events"
            servers.make_topic(broker, bench.events, queues=1)
            bench.batches = "bench-batches"
            one_by_one = loadgen.Load(conns=1, window=1, count=1000)
            sent = loadgen.run(one_by_one, target, topic=bench.batches, warmup_s=0, duration_s=60)
            if doubt := loadgen.doubts(sent, at_least=one_by_one.count):
                raise loadgen.LoadError(f"the topic of the batches is in doubt: {doubt}")
            yield
        finally:
            bench.dropped = None
            broker.stop()


class KafkaOfTopics(rivals.Kafka):
    """Makes topics of as many partitions as ours have queues when they are first written to."""

    more: ClassVar[dict[str, str | int]] = {
        "auto.create.topics.enable": "true",
        "num.partitions": TOPIC_QUEUES,
    }


def _cold(subjects: Sequence[Subject]) -> list[Subject]:
    return [each for each in subjects if each.name in COLD]


def _drop(bench: Bench) -> None:
    """Take the messages out of the page cache.

    Raises:
        RuntimeError: too much of them stayed there.
    """
    bodies_mib = bench.messages * BODY_BYTES / 2**20
    found = [bench.dropped] if bench.dropped else [(Path(each), []) for each in bench.stores]
    left_mib = sum(cold.drop(pids, folder, cold.COLD_ENOUGH * bodies_mib) for folder, pids in found)
    if left_mib > CACHED_MAX * bodies_mib:
        raise RuntimeError(
            f"{left_mib:.0f} MiB stayed in the page cache, of messages with {bodies_mib:.0f} MiB"
        )


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


def _markdown(results: Figures) -> str:
    lines = figures.head_lines("Our Spark formats beside Spark's own", results)
    lines += [
        "- messages have 128 bytes; a rate counts the rows that a query returned or wrote, and "
        "another number than that of the messages is a failure",
        "- x: how many times better CometMQ's figure is, in the same round, than that of Spark's "
        f"own source (in our row) or of {REFERENCE} or Kafka (in their rows)",
        "- Targets with x are ratios to Spark's own source or to Kafka. Others are values, because "
        "nothing of Spark's does the same; they hold for this machine only.",
        "- page cache: warm if the messages are in it, cold if they are read from the disk",
        "- CPU: of Spark's JVM, its Python workers, the broker and the benchmark itself",
        "",
        f"| {' | '.join(HEAD)} |",
        "|" + "---|" * len(HEAD),
    ]
    for subject in SUBJECTS:
        for name, facts in results.servers.items():
            if results.values(subject.name, name, "figure"):
                lines.append(_table_line(results, subject, name, facts))
    lines += ["", *figures.noise_lines(results), *figures.doubt_lines(results)]
    return "\n".join(lines) + "\n"


def _table_line(results: Figures, subject: Subject, variant: str, facts: dict[str, str]) -> str:
    values = results.values(subject.name, variant, "figure")
    better = subject.more_is_better
    times: list[float] = []
    if facts["server"] in (REFERENCE, KAFKA):
        ours = results.values(
            subject.ours or subject.name, variant.replace(facts["server"], OURS), "figure"
        )
        times = figures.ratios(ours, values, more_is_better=better)
    elif subject.twin:
        twin = results.values(subject.twin, variant, "figure")
        times = figures.ratios(values, twin, more_is_better=better)
    warm = dict.fromkeys(
        each.warm_memory
        for each in results.taken
        if (each.server, each.row) == (variant, subject.name)
    )
    targets = []
    is_ratio = bool(subject.twin or subject.ours)
    in_doubt = results.is_in_doubt(subject.name, variant)
    if subject.target is not None and (times or not is_ratio) and facts["server"] != REFERENCE:
        targets.append(
            figures.target_cell(
                times if is_ratio else list(values.values()),
                subject.target,
                more_is_better=better or is_ratio,
                sign="x" if is_ratio else "",
                in_doubt=in_doubt,
            )
        )
    if subject.value is not None:
        targets.append(
            figures.target_cell(
                list(values.values()), subject.value, more_is_better=better, in_doubt=in_doubt
            )
        )
    heap = {**servers.KINDS, **rivals.KINDS}[facts["server"]].heap if facts["server"] else ""
    flush = ""
    if facts["server"]:
        flush = "ASYNC_FLUSH" if subject in (*OF_ASYNC_BROKERS, *OF_KAFKA) else "SYNC_FLUSH"
    cells = [
        subject.title,
        (facts["server"] or "files") + (f", heap {heap}" if heap else ""),
        FLUSHES[flush],
        SOCKETS.get(facts["socket"], "-"),
        facts["page cache"],
        ", ".join(warm),
        figures.cell(values.values(), rounds=results.rounds, more_is_better=better)
        + f" {subject.unit}",
        figures.cell(times, more_is_better=True, sign="x") if times else "",
        "; ".join(targets),
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
