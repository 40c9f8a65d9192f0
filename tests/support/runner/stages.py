"""Runs stages of tests as concurrent processes, and counts their results.

A stage is one pytest process, or a preparation that other stages need. The scheduler starts stages
in their order while processors are free. A stage that exceeds its time limit is killed and fails.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from support.runner.tiers import ALL, TEST
from support.runner.versions import ALL_VERSIONS

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "build" / "test-results"
LIMIT_S = 3 * 3600.0
"""It only ends a stage that hangs: the longest took less than half of it on a busy machine."""
TEST_LIMIT_S = 1200
"""A test that takes this long fails with the stacks of its threads, and the next one runs."""
LONG_TEST_LIMIT_S = 3600
"""The same with long random rounds, which take up to ten minutes on a busy machine."""
DUMP_AFTER_S = 30
"""So long after its limit a test that hangs on prints its stacks; its stage's limit ends it."""
SIGNAL_WAIT_S = 1.0
"""A signal just before a wait does not end it, and is handled only after it."""
TESTS_FAILED = 1
"""pytest's exit status when it ran all tests and some failed."""
RERUNS_MAX = 3
"""If more tests fail, load on the machine is not the cause, and none is run again."""
LOG_TAIL = 30_000
SLOWEST = 20
"""How many of the slowest tests a run lists."""
PYTEST = ("-m", "pytest")
ERROR_LINES, WIDTH_MAX = 5, 200
FAILURES_SHOWN = 4
"""At the end of a run, with their messages and commands."""
REASONS_MAX = 3
LINES_MAX = FAILURES_SHOWN * (ERROR_LINES + 3)
"""The lines of these failures; with the counts of the run they fit on a screen of 40 lines."""


@dataclass(frozen=True)
class Stage:
    """Tests of one kind on one build, or a preparation that other stages need."""

    name: str
    paths: tuple[str, ...] = ()
    build: str = "compiled"
    cluster: str = ""
    """The cluster it runs on; empty if the stage does not choose one."""
    part: str = ""
    """Which part of the tests it runs, for example 1/2; empty for all."""
    tier: str = TEST
    variables: tuple[tuple[str, str], ...] = ()
    """Further environment variables."""
    cores: float = 1.0
    """How many processors it counts for when stages run side by side; less if it mostly waits."""
    needs: str = ""
    """The preparation that must end before it starts."""
    runner: tuple[str, ...] = PYTEST
    tests: tuple[str, ...] = ()
    """The only tests to run, as pytest node ids; empty for all."""
    prepares: tuple[str, ...] = ()
    """The command, if this stage is a preparation and runs no test."""

    @property
    def title(self) -> str:
        """Its name in the tables."""
        build = "" if self.prepares else f"({self.build})"
        return " ".join(filter(None, (self.name, self.cluster, self.part, build)))

    @property
    def report(self) -> Path:
        """The file of its JUnit report; the log is in the same folder."""
        which = self.part.replace("/", "-of-")
        parts = filter(None, (self.name, self.cluster, which, self.build))
        return RESULTS / f"{'-'.join(parts).replace(' ', '-')}.xml"

    @property
    def log(self) -> Path:
        """The file of its output."""
        return self.report.with_suffix(".log")

    @property
    def test_limit_s(self) -> float:
        """When a test of this stage fails because it hangs."""
        return LONG_TEST_LIMIT_S if self.tier == ALL else TEST_LIMIT_S

    def repeat_command(self, node: str) -> str:
        """A command line that runs one of its tests again, or the whole stage without a test."""
        if self.runner != PYTEST or not node:
            tests = f" --test {shlex.quote(node)}" if node else ""
            build = f" --build {self.build}" if not self.prepares else ""
            name = shlex.quote(self.name)
            return f".venv/bin/python tests/run.py --tier {self.tier}{build}{tests} {name}"
        chosen = {"COMETMQ_TIER": self.tier, **self._chosen(), **dict(self.variables)}
        chosen.pop("PYTEST_DEBUG_TEMPROOT", None)
        variables = " ".join(f"{name}={value}" for name, value in chosen.items())
        return f"{variables} .venv/bin/python -m pytest {shlex.quote(node)}"

    def _chosen(self) -> dict[str, str]:
        """The variables by which it differs from a run of pytest without any."""
        build = {"COMETMQ_BUILD": self.build} if self.build == "interpreted" else {}
        return build | ({"COMETMQ_CLUSTERS": self.cluster} if self.cluster else {})

    def environment(self) -> dict[str, str]:
        """The variables of its process."""
        environment = {**os.environ, "COMETMQ_EXPECT_BUILD": self.build, "COMETMQ_TIER": self.tier}
        folders = (ROOT / "src", ROOT, ROOT / "tests")
        environment["PYTHONPATH"] = os.pathsep.join(map(str, folders))
        environment["PYTHON"] = os.path.realpath(sys.executable)  # outside of .venv, for make
        environment["PYTEST_TIMEOUT"] = str(self.test_limit_s)
        environment.pop("COMETMQ_BUILD", None)
        environment.update(self._chosen())
        if self.part:
            environment["COMETMQ_PART"] = self.part
        environment.update(self.variables)
        return environment

    def command(self) -> list[str]:
        """The command line of its process."""
        if self.prepares:
            return list(self.prepares)
        options = ("-q", f"--junitxml={self.report}", "-o", "junit_family=xunit1")
        dump = ("-o", f"faulthandler_timeout={self.test_limit_s + DUMP_AFTER_S}")
        return [sys.executable, *self.runner, *(self.tests or self.paths), *options, *dump]


@dataclass(frozen=True)
class Failure:
    """A test that failed."""

    node: str
    """Its pytest node id; empty if the stage itself ended early."""
    why: str
    """The first line of its error."""
    message: str = ""
    """The end of its traceback: the lines with the error."""
    cluster: str = ""
    """The cluster it connected to, from its report; empty for none."""

    @property
    def is_on_real_cluster(self) -> bool:
        """Whether the test connected to one of RocketMQ's own clusters."""
        return self.cluster in ALL_VERSIONS

    def __str__(self) -> str:
        return f"{self.node}: {self.why}" if self.node else self.why


@dataclass(frozen=True)
class Outcome:
    """The counts, times and failures of a stage."""

    stage: Stage
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    expected: int = 0
    """Tests that failed as expected, because a feature is missing."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    failures: tuple[Failure, ...] = ()
    passed_on_rerun: tuple[Failure, ...] = ()
    """Tests that failed first and passed when they ran alone."""
    reasons: tuple[str, ...] = ()
    """Why tests were skipped, one reason for each."""
    slowest: tuple[tuple[float, str], ...] = ()
    """Seconds and node id of its slowest tests."""


_lock_held: list[int] = []
"""The lock of the results folder; stages inherit it, so it lasts as long as any of them lives."""


@contextmanager
def results_folder() -> Iterator[None]:
    """An empty folder for the reports, which no other run in this tree changes until the end."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.with_suffix(".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            sys.exit(
                f"tests: {RESULTS} is in use: {lock.read() or 'another process'}, or a stage that"
                " it started, runs tests in this tree; wait until it has ended, or end it"
            )
        lock.truncate(0)
        lock.write(f"process {os.getpid()}")
        lock.flush()
        shutil.rmtree(RESULTS, ignore_errors=True)
        RESULTS.mkdir()
        _lock_held.append(lock.fileno())
        try:
            yield
        finally:
            _lock_held.clear()


def run_stages(stages: Sequence[Stage], cores: float) -> list[Outcome]:
    """Run all stages, as many at a time as processors allow; return outcomes in their order."""
    waiting, outcomes = list(stages), dict[Stage, Outcome]()
    running: dict[Future[Outcome], Stage] = {}
    with ThreadPoolExecutor(len(stages)) as threads, _kills_stages_on_signal():
        while waiting or running:
            while (stage := next_stage(waiting, list(running.values()), cores)) is not None:
                waiting.remove(stage)
                running[threads.submit(run_stage, stage)] = stage
            for ended in wait(running, SIGNAL_WAIT_S, FIRST_COMPLETED).done:
                outcomes[running.pop(ended)] = ended.result()
        return [rerun_on_quiet_machine(outcomes[stage]) for stage in stages]


def next_stage(waiting: Sequence[Stage], running: Sequence[Stage], cores: float) -> Stage | None:
    """The first waiting stage whose preparation has ended, if processors are free for it."""
    busy = sum(stage.cores for stage in running)
    unfinished = {stage.name for stage in (*waiting, *running) if stage.prepares}
    for stage in waiting:
        if stage.needs not in unfinished and (not running or busy + stage.cores <= cores):
            return stage
    return None


def run_stage(stage: Stage) -> Outcome:
    """Run one stage to its end or its time limit."""
    print(f"=== {stage.title} starts", flush=True)
    began, timed_out = time.monotonic(), threading.Event()
    with stage.log.open("wb") as log:
        process = subprocess.Popen(
            stage.command(),
            cwd=ROOT,
            env=stage.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=_lock_held,
        )

    def end_at_limit() -> None:
        timed_out.set()
        _kill_group(process.pid)

    limit = threading.Timer(LIMIT_S, end_at_limit)
    limit.daemon = True
    limit.start()
    try:
        _groups.add(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
    finally:
        limit.cancel()
        _kill_group(process.pid)  # servers that a broken test left behind
        _groups.remove(process.pid)
    process.returncode = os.waitstatus_to_exitcode(status)
    outcome = outcome_of(
        stage,
        process.returncode,
        time.monotonic() - began,
        usage.ru_utime + usage.ru_stime,
        timed_out=timed_out.is_set(),
    )
    if not _groups.are_killed:
        _print_end(outcome)
    return outcome


class ProcessGroups:
    """The process groups of the stages that run."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self.are_killed = False

    def add(self, group: int) -> None:
        """Add the group of a stage that has started; after ``kill_all`` it is killed at once."""
        with self._lock:
            self._running.add(group)
            if self.are_killed:
                _kill_group(group)

    def remove(self, group: int) -> None:
        """Remove the group of a stage that has ended."""
        with self._lock:
            self._running.discard(group)

    def kill_all(self) -> None:
        """Kill all processes of all stages, also of stages that a thread is about to start."""
        with self._lock:
            self.are_killed = True
            for group in self._running:
                _kill_group(group)


_groups = ProcessGroups()


@contextmanager
def _kills_stages_on_signal() -> Iterator[None]:
    """Stages have sessions of their own, so no signal to the runner reaches them."""

    def end(number: int, _frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # make and timeout send it more than once
        os.write(2, f"tests: {signal.Signals(number).name} ends the run\n".encode())
        raise SystemExit(128 + number)

    ending = (signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.getsignal(each) for each in ending}
    before = {each: handler for each, handler in before.items() if handler != signal.SIG_IGN}
    for each in before:
        signal.signal(each, end)
    try:
        yield
    except BaseException:
        _groups.kill_all()
        raise
    finally:
        for each, handler in before.items():
            if signal.getsignal(each) is end:
                signal.signal(each, handler)


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _print_end(outcome: Outcome) -> None:
    counts = f"{outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped"
    if outcome.expected:
        counts += f", {outcome.expected} failed as expected"
    if outcome.stage.prepares:
        counts = "failed" if outcome.failed else "ready"
    print(f"=== {outcome.stage.title}: {counts} in {outcome.seconds:.0f} s", flush=True)
    if outcome.failed:
        with outcome.stage.log.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_TAIL))
            print(log.read(LOG_TAIL).decode(errors="replace"), flush=True)


def rerun_on_quiet_machine(outcome: Outcome) -> Outcome:
    """Run failed tests of RocketMQ's clusters once more, if they are few, when nothing else runs.

    Three Java brokers on two cores sometimes block a client for a minute or lose a commit. Tests
    of our own servers are not run again. Tests that pass only the second time are printed.
    """
    stage, failures = outcome.stage, outcome.failures
    on_real = all(each.is_on_real_cluster for each in failures)
    if not 0 < len(failures) <= RERUNS_MAX or not on_real:
        return outcome
    nodes = tuple(each.node for each in failures)
    met = run_stage(replace(stage, name=f"{stage.name} again", tests=nodes, part=""))
    if met.failed or met.passed != len(failures):
        return outcome
    passed = outcome.passed + met.passed
    return replace(outcome, passed=passed, failed=0, failures=(), passed_on_rerun=failures)


def outcome_of(
    stage: Stage, status: int, seconds: float, cpu_seconds: float = 0.0, *, timed_out: bool = False
) -> Outcome:
    """Count a stage by its report; a stage that ended early has failed."""
    counts = dict.fromkeys(("passed", "failed", "skipped", "expected"), 0)
    failures: tuple[Failure, ...] = ()
    slowest: list[tuple[float, str]] = []
    reasons: list[str] = []
    cases: list[ET.Element] = []
    unreadable = ""
    if stage.report.exists():
        try:
            cases = list(ET.parse(stage.report).getroot().iter("testcase"))
        except ET.ParseError as error:
            unreadable = f"wrote a report that is no XML: {error}"
        failures = tuple(failure for case in cases for failure in _failures(case))
        for case in cases:
            counts[_result(case)] += 1
        skips = [case.find("skipped") for case in cases if _result(case) == "skipped"]
        reasons = [skip.get("message", "") for skip in skips if skip is not None]
        slowest = sorted(
            ((float(case.get("time", 0)), _node(case)) for case in cases), reverse=True
        )
    if timed_out:
        failures = (*failures, Failure("", f"was killed at its limit of {LIMIT_S:.0f} s"))
    elif status not in (0, TESTS_FAILED) or (status and not failures):
        failures = (*failures, Failure("", f"ended with status {status}"))
    elif not cases and not stage.prepares:
        failures = (*failures, Failure("", unreadable or "ran no test"))
    counts["failed"] = len(failures)
    return Outcome(
        stage,
        **counts,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        failures=failures,
        slowest=tuple(slowest[:SLOWEST]),
        reasons=tuple(reasons),
    )


def _result(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if (skipped := case.find("skipped")) is None:
        return "passed"
    return "expected" if skipped.get("type") == "pytest.xfail" else "skipped"


def _failures(case: ET.Element) -> Iterator[Failure]:
    """The failures of a test; on CI a skipped test is a failure."""
    noted = case.find("properties/property[@name='cluster']")
    cluster = "" if noted is None else noted.get("value", "")
    wrong = [*case.findall("failure"), *case.findall("error")]
    if os.environ.get("CI") and _result(case) == "skipped":
        wrong += case.findall("skipped")
    for each in wrong:
        why = (each.get("message") or "").strip().partition("\n")[0]
        what = "skipped on CI: " if each.tag == "skipped" else ""
        yield Failure(_node(case), f"{what}{why[:200]}", _error_lines(each.text or ""), cluster)


def _error_lines(trace: str) -> str:
    """The last lines of a traceback that pytest marks as the error, and where it was raised."""
    lines = [line[:WIDTH_MAX] for line in trace.rstrip().splitlines()]
    errors = [line for line in lines if line.startswith("E ")][:ERROR_LINES]
    return "\n".join([*errors, *lines[-1:]])


def _node(case: ET.Element) -> str:
    # a test that a decorator of another file has made has that file
    path = f"{case.get('classname', '').replace('.', '/')}.py"
    return f"{path if (ROOT / path).is_file() else case.get('file')}::{case.get('name')}"


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """One line for each stage, in Markdown: counts, seconds, CPU seconds."""
    rows = [
        "| Stage | Passed | Failed | Skipped | Expected to fail | Seconds | CPU seconds |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for each in outcomes:
        counts = f"{each.passed:,} | {each.failed} | {each.skipped} | {each.expected}"
        if each.stage.prepares:
            counts = f" | {each.failed} |  | "
        times = f"{each.seconds:.0f} | {each.cpu_seconds:.0f}"
        rows.append(f"| {each.stage.title} | {counts} | {times} |")
    return rows


def skips(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """How many tests were skipped for each reason."""
    counts = Counter(reason for each in outcomes for reason in each.reasons)
    for reason, count in counts.most_common(REASONS_MAX):
        yield f"{count} skipped: {reason}"[:WIDTH_MAX]


def failures(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Each failure with its message and the command that repeats it; the first ones at length."""
    found = [(each.stage, failure) for each in outcomes for failure in each.failures]
    for stage, failure in found[FAILURES_SHOWN:]:
        yield f"FAILED in {stage.title}: {failure}"[:WIDTH_MAX]
    for stage, failure in found[:FAILURES_SHOWN]:
        yield f"FAILED in {stage.title}: {failure}"
        yield from failure.message.splitlines()
        yield f"  repeat: {stage.repeat_command(failure.node)}"


def slowest_tests(outcomes: Sequence[Outcome]) -> list[str]:
    """The slowest tests of all stages, in Markdown, the slowest first."""
    found = sorted(
        ((seconds, node, each.stage) for each in outcomes for seconds, node in each.slowest),
        key=lambda row: -row[0],
    )
    return ["| Seconds | Test | Stage |", "|--:|---|---|"] + [
        f"| {seconds:.1f} | `{node}` | {stage.title} |" for seconds, node, stage in found[:SLOWEST]
    ]
