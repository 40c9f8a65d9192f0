"""Runs every kind of test, one after the other, and closes with one line that counts them all.

``python tests/run.py`` runs all stages; names of stages choose some of them. Each stage is a
process of its own, so that the compiled and the interpreted build never meet in one. Stages of one
name, which differ by build, by cluster or by part, run side by side, and so do those that leave the
processors idle for most of their time.

RocketMQ's own brokers now and then keep somebody waiting for a minute or lose a commit when three
of them share two cores. So a few tests that failed against these are run once more by themselves;
they are named at the end even if they pass then. Tests of our own servers get no second chance.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "test-results"
sys.path.insert(0, str(ROOT))


@dataclass(frozen=True)
class Stage:
    """One kind of test on one build."""

    name: str
    paths: tuple[str, ...]
    on_every_build: bool = False
    runner: tuple[str, ...] = ("-m", "pytest")
    build: str = "compiled"
    cluster: str = ""
    """Which cluster it runs on, where there are several."""
    part: str = ""
    """Which part of the tests it runs, such as 1/2, where they are divided."""
    variables: tuple[tuple[str, str], ...] = ()
    """What else the tests are told through the environment."""
    mostly_waits: bool = False
    """Whether it waits for clocks and other programs, so that others may run beside it."""

    @property
    def title(self) -> str:
        return f"{' '.join(filter(None, (self.name, self.cluster, self.part)))} ({self.build})"

    @property
    def group(self) -> str:
        """Stages of one group that follow each other run side by side."""
        return "mostly waits" if self.mostly_waits else self.name

    @property
    def report(self) -> Path:
        which = self.part.replace("/", "-of-")
        parts = filter(None, (self.name, self.cluster, which, self.build))
        return RESULTS / f"{'-'.join(parts)}.xml"

    def environment(self) -> dict[str, str]:
        environment = {**os.environ, "COMETMQ_EXPECT_BUILD": self.build}
        environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        environment.pop("COMETMQ_BUILD", None)
        if self.build == "interpreted":
            environment["COMETMQ_BUILD"] = "interpreted"
        if self.cluster:
            environment["COMETMQ_CLUSTERS"] = self.cluster
        if self.part:
            environment["COMETMQ_PART"] = self.part
        environment.update(self.variables)
        return environment

    def command(self) -> list[str]:
        report = (f"--junitxml={self.report}", "-o", "junit_family=xunit1")
        return [sys.executable, *self.runner, *self.paths, "-q", *report]

    def process(self, log: IO[bytes] | None) -> subprocess.Popen[bytes]:
        """Start the stage."""
        return subprocess.Popen(
            self.command(), cwd=ROOT, env=self.environment(), stdout=log, stderr=log
        )

    def builds_of(self, builds: tuple[str, ...]) -> tuple[str, ...]:
        """On which of the builds at hand this stage runs: on all, or on the first."""
        return builds if self.on_every_build else builds[:1]

    def has_tests(self) -> bool:
        return any(any((ROOT / path).rglob("test_*.py")) for path in self.paths)


@dataclass(frozen=True)
class Failure:
    """A test that failed."""

    node: str
    """What pytest calls it; empty if the stage broke off."""
    why: str
    """How its error begins."""
    cluster: str = ""
    """Which cluster it talked to, as its folder noted; empty for none that it was given."""

    @property
    def is_of_others(self) -> bool:
        """Whether the test talked to one of RocketMQ's own clusters."""
        return self.cluster in REAL

    def __str__(self) -> str:
        return f"{self.node}: {self.why}" if self.node else self.why


@dataclass(frozen=True)
class Outcome:
    """What a stage counted."""

    stage: Stage
    passed: int
    failed: int
    skipped: int
    seconds: float
    failures: tuple[Failure, ...] = ()
    passed_later: tuple[Failure, ...] = ()
    """What failed first and passed when it was run by itself."""


TESTS_FAILED = 1
"""What pytest ends with when it ran all tests and some failed."""
SECOND_CHANCES = 3
"""If more fail, something is wrong with more than the hour."""
REAL = ("4.9.7", "5.3.3")
CONFORMANCE = ("tests/conformance_run/run.py",)


def _clusters() -> list[str]:
    """The clusters that the client is tested on; the real ones need a JDK."""
    said = os.environ.get("COMETMQ_CLUSTERS", "all")
    return said.split(",") if said != "all" else ["comet", *REAL]


def _spark(name: str, place: str, clusters: list[str], part: str = "") -> Stage:
    """The tests in Spark: one session for all clusters, for a session is slow to start."""
    variables = (("COMETMQ_SPARK", place), ("COMETMQ_CLUSTERS", ",".join(clusters)))
    return Stage(name, ("tests/spark",), part=part, variables=variables)


STAGES = (
    Stage("unit", ("tests/unit", "tests/golden"), on_every_build=True),
    *(Stage("client", ("tests/client",), cluster=name) for name in _clusters()),
    Stage("interop", ("tests/interop",), mostly_waits=True),
    Stage("integration", ("tests/integration",), mostly_waits=True),
    Stage("faults", ("tests/faults",), mostly_waits=True),
    Stage(
        "conformance",
        ("tests/conformance",),
        on_every_build=True,
        runner=CONFORMANCE,
        mostly_waits=True,
    ),
    *(_spark("spark", "local", _clusters(), part) for part in ("1/2", "2/2")),
    _spark("spark-standalone", "standalone", _clusters()[:1]),
)


def main() -> int:
    """Run the chosen stages; the exit status is 0 only when some tests ran and none failed."""
    stages = list(_chosen())
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    outcomes = [
        outcome
        for _, beside in groupby(stages, lambda stage: stage.group)
        for outcome in _run(list(beside))
    ]
    for outcome in outcomes:
        print(
            f"{outcome.stage.title:<28} {outcome.passed:>6} passed {outcome.failed:>4} failed "
            f"{outcome.skipped:>4} skipped {outcome.seconds:>7.1f} s"
        )
    for outcome in outcomes:
        for failure in outcome.passed_later:
            print(f"passed only by itself in {outcome.stage.title}: {failure}")
        for failure in outcome.failures:
            print(f"FAILED in {outcome.stage.title}: {failure}")
    passed = sum(outcome.passed for outcome in outcomes)
    failed = sum(outcome.failed for outcome in outcomes)
    skipped = sum(outcome.skipped for outcome in outcomes)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


def _chosen() -> Iterator[Stage]:
    names = sorted({stage.name for stage in STAGES})
    parser = argparse.ArgumentParser(description="Run every kind of test.")
    parser.add_argument("stage", nargs="*", help=f"one of: {', '.join(names)}; default: all")
    parser.add_argument("--build", choices=("compiled", "interpreted"), help="only this build")
    asked = parser.parse_args()
    unknown = set(asked.stage) - set(names)
    if unknown:
        parser.error(f"no such stage: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    builds = (asked.build,) if asked.build else _builds()
    for stage in STAGES:
        if (not asked.stage or stage.name in asked.stage) and stage.has_tests():
            yield from (replace(stage, build=build) for build in stage.builds_of(builds))


def _builds() -> tuple[str, ...]:
    return ("compiled", "interpreted") if _has_compiled_build() else ("interpreted",)


def _has_compiled_build() -> bool:
    """Whether there is a compiled build to test: a compiler worked, or nothing needs one."""
    import build_ext

    if build_ext.is_compiled() or os.environ.get("CI") or shutil.which(os.environ.get("CC", "cc")):
        return True  # where a compiler exists, a build that did not come out is a failure
    print("no C compiler here: only the interpreted build is tested", flush=True)
    return False


def _run(stages: list[Stage]) -> Iterator[Outcome]:
    """Run stages side by side; several print what they have to say when they have ended."""
    began = time.monotonic()
    running: list[tuple[Stage, subprocess.Popen[bytes], IO[bytes] | None]] = []
    outcomes = []

    def ended(process: subprocess.Popen[bytes]) -> tuple[int, float]:
        return process.wait(), time.monotonic() - began

    for stage in stages:
        print(f"=== {stage.title}", flush=True)
        log = stage.report.with_suffix(".log").open("w+b") if len(stages) > 1 else None
        running.append((stage, stage.process(log), log))
    with ThreadPoolExecutor(len(running)) as waiting:
        ends = waiting.map(ended, [process for _, process, _ in running])
        for (stage, _, log), (status, seconds) in zip(running, ends, strict=True):
            if log is not None:
                log.seek(0)
                print(f"=== {stage.title}: {log.read().decode(errors='replace')}", flush=True)
                log.close()
            outcomes.append(outcome_of(stage, status, seconds))
    yield from map(settled, outcomes)


def settled(outcome: Outcome) -> Outcome:
    """Give failed tests of others' brokers their second chance, once the machine is free."""
    stage, failures = outcome.stage, outcome.failures
    if not 0 < len(failures) <= SECOND_CHANCES or not all(each.is_of_others for each in failures):
        return outcome
    again = replace(stage, name=f"{stage.name}-again", paths=tuple(each.node for each in failures))
    print(f"=== {again.title}: {' '.join(again.paths)}", flush=True)
    met = outcome_of(again, again.process(None).wait(), 0.0)
    if met.failed or met.passed != len(failures):
        return outcome
    passed = outcome.passed + met.passed
    return replace(outcome, passed=passed, failed=0, failures=(), passed_later=failures)


def outcome_of(stage: Stage, status: int, seconds: float) -> Outcome:
    """Count a stage by its report; one that broke off counts as a failure even without any."""
    passed = failed = skipped = 0
    failures: tuple[Failure, ...] = ()
    if stage.report.exists():
        report = ET.parse(stage.report).getroot()
        failures = tuple(_failures(report))
        for suite in report.iter("testsuite"):
            counts = {key: int(suite.get(key, 0)) for key in _COUNTED}
            failed += counts["failures"] + counts["errors"]
            skipped += counts["skipped"]
            passed += counts["tests"] - sum(counts[key] for key in _COUNTED[1:])
    if status not in (0, TESTS_FAILED) or (status and not failed):
        failed, failures = failed + 1, (*failures, Failure("", f"ended with status {status}"))
    return Outcome(stage, passed, failed, skipped, seconds, failures)


def _failures(report: ET.Element) -> Iterator[Failure]:
    for case in report.iter("testcase"):
        noted = case.find("properties/property[@name='cluster']")
        cluster = "" if noted is None else noted.get("value", "")
        for wrong in (*case.findall("failure"), *case.findall("error")):
            why = (wrong.get("message") or "").strip().partition("\n")[0]
            yield Failure(f"{case.get('file')}::{case.get('name')}", why[:200], cluster)


_COUNTED = ("tests", "failures", "errors", "skipped")


if __name__ == "__main__":
    sys.exit(main())
