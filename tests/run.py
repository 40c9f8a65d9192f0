"""Runs the stages of a tier; prints a table of their times and one line that counts all tests.

``python tests/run.py --tier quick|test|interop|all`` runs a tier; names of stages, or their
beginnings, select some of its stages. ``--changed`` runs the tests that a change touches. Each
stage is a separate process with one build.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.runner import affected, spark_layer  # noqa: E402
from support.runner.stages import (  # noqa: E402
    Outcome,
    Stage,
    failures,
    results_folder,
    run_stages,
    skips,
    slowest_tests,
    table,
)
from support.runner.tiers import ALL, INTEROP, ONLY, QUICK, TEST, TIERS, WITHOUT  # noqa: E402
from support.runner.versions import ALL_VERSIONS, VERSIONS  # noqa: E402

BOTH = ("compiled", "interpreted")
WITHOUT_SPARK = tuple(f"--ignore={path}" for path in spark_layer.TESTS)
HOT = ("tests/golden", "tests/unit/protocol", "tests/unit/sql92", *WITHOUT_SPARK)
"""Tests that mostly call compiled modules: they show a difference between the builds."""
PARTS = 4
"""The quick tests run in this many parts: with two, processors would idle while tests wait."""
CONFORMANCE = ("tests/conformance_run/run.py",)
EXPECTED = "tests/conformance_run/expected_failures.py"
MEMORY, MEMORY_MIN = Path("/dev/shm"), 2 << 30


def stages_of(tier: str) -> list[Stage]:
    """All stages of a tier: the preparation, then long stages before short ones.

    So no long stage runs alone at the end.
    """
    stages = {QUICK: _quick, TEST: _test, INTEROP: _interop, ALL: _all}[tier]()
    return [replace(stage, tier=tier, variables=_variables(stage, tier)) for stage in stages]


def _variables(stage: Stage, tier: str) -> tuple[tuple[str, str], ...]:
    without = (("COMETMQ_PROGRAMS", WITHOUT),) if tier in (QUICK, TEST) else ()
    return stage.variables + without


def _quick() -> Iterator[Stage]:
    paths = ("tests/unit", *WITHOUT_SPARK)
    for number in range(1, PARTS + 1):
        yield Stage("unit", paths, part=f"{number}/{PARTS}", cores=0.5, variables=_in_memory())


def _test() -> Iterator[Stage]:
    if with_spark := spark_layer.has_java():
        yield _install_spark()
        yield _spark("local", "comet")
    yield from _servers("compiled")
    yield _units("compiled")
    yield Stage("unit", HOT, "interpreted", cores=0.8, variables=_in_memory())
    if with_spark:
        yield _unit_spark("compiled")


def _interop() -> Iterator[Stage]:
    yield _install_spark()
    yield _spark("local", *VERSIONS)
    for part in ("1/2", "2/2"):
        yield Stage("interop", ("tests/interop",), part=part, cores=0.5)
    for version in reversed(VERSIONS):
        yield Stage("client", ("tests/client",), cluster=version, cores=0.4)
    yield _programs()


def _all() -> Iterator[Stage]:
    yield _install_spark()
    yield Stage("interop", ("tests/interop",), cores=0.4)
    for part in ("1/2", "2/2"):
        yield _spark("local", "comet", *VERSIONS, part=part)
    for version in reversed(ALL_VERSIONS):
        yield Stage("client", ("tests/client",), cluster=version, cores=0.4)
    yield _spark("standalone", "comet", *VERSIONS)
    for build in BOTH:
        yield from _servers(build)
        yield _units(build)
        yield _unit_spark(build)


def _servers(build: str) -> Iterator[Stage]:
    """Our servers and our client, as processes on loopback or in virtual time."""
    for part in ("1/2", "2/2"):
        yield Stage("client", ("tests/client",), build, "comet", part, cores=0.3)
        yield Stage("integration", ("tests/integration",), build, part=part, cores=0.4)
    yield Stage("faults", ("tests/faults",), build, cores=0.4)
    yield Stage("conformance", ("tests/conformance",), build, cores=0.2, runner=CONFORMANCE)
    if build == BOTH[0]:
        yield Stage("simulation", ("tests/simulation",), cores=0.9)


def _programs() -> Stage:
    """The tests of our own servers that need etcd and the like."""
    paths = ("tests/integration", "tests/faults", "tests/unit/metrics")
    return Stage("programs", paths, cores=0.4, variables=(("COMETMQ_PROGRAMS", ONLY),))


def _units(build: str) -> Stage:
    paths = ("tests/unit", "tests/golden", *WITHOUT_SPARK)
    return Stage("unit", paths, build, cores=0.8, variables=_in_memory())


def _unit_spark(build: str) -> Stage:
    needs = "install Spark"
    return Stage("unit spark", spark_layer.TESTS, build, needs=needs, variables=_in_memory())


def _changed(since: str) -> Iterator[Stage]:
    """The tests of a change, without tests of RocketMQ's programs and of Spark."""
    found = affected.affected_tests(affected.changed_files(since))
    elsewhere = [path for path in found if path.startswith(("tests/interop/", "tests/spark/"))]
    if elsewhere:
        print(f"left to make test-interop and the Spark stages: {' '.join(elsewhere)}")
    here = tuple(path for path in found if path not in elsewhere)
    if not here:
        sys.exit(f"tests: the files that differ from {since} touch no test")
    print("touched:", *here, sep="\n  ", flush=True)
    yield Stage("changed", here, cluster="comet")


def _install_spark() -> Stage:
    return Stage("install Spark", prepares=("make", "--silent", "setup-spark"), cores=0.6)


def _spark(place: str, *clusters: str, part: str = "") -> Stage:
    """The Spark tests: one session for all clusters, because a session is slow to start."""
    return Stage(
        f"spark {place}",
        ("tests/spark",),
        part=part,
        variables=(("COMETMQ_SPARK", place), ("COMETMQ_CLUSTERS", ",".join(clusters))),
        needs="install Spark",
        cores=0.6,
    )


def _in_memory() -> tuple[tuple[str, str], ...]:
    """The variable that puts the folders of unit tests into memory, if there is room.

    Half of what these tests wait for is fsync. Tests of other kinds write to the disk.
    """
    try:
        has_room = shutil.disk_usage(MEMORY).free >= MEMORY_MIN and os.access(MEMORY, os.W_OK)
    except OSError:
        has_room = False
    return (("PYTEST_DEBUG_TEMPROOT", str(MEMORY)),) if has_room else ()


def main() -> int:
    """Run the chosen stages; the exit status is 0 only when some tests ran and none failed."""
    asked = _arguments()
    stages = list(_chosen(asked))
    began = time.monotonic()
    with results_folder():
        outcomes = run_stages(stages, asked.cores)
        print(*_closing(outcomes), sep="\n")
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"{asked.tier}: {minutes} min {seconds} s on {os.cpu_count()} processors")
    expected = sum(outcome.expected for outcome in outcomes)
    print(f"{expected} expected to fail: what our servers do not support yet ({EXPECTED})")
    passed, failed, skipped = (
        sum(getattr(outcome, key) for outcome in outcomes)
        for key in ("passed", "failed", "skipped")
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


def _closing(outcomes: list[Outcome]) -> Iterator[str]:
    yield from ("", *table(outcomes), "", *slowest_tests(outcomes), "")
    for outcome in outcomes:
        for failure in outcome.passed_on_rerun:
            yield f"passed only by itself in {outcome.stage.title}: {failure}"
    yield from skips(outcomes)
    yield from failures(outcomes)
    yield from _full_disk()


def _full_disk() -> Iterator[str]:
    """A warning if the disk is so full that brokers delete files by their default settings."""
    folder = tempfile.gettempdir()
    disk = shutil.disk_usage(folder)
    percent = 100 * disk.used / (disk.used + disk.free)
    if percent > 75:
        yield f"the disk of {folder} is {percent:.0f} % full: brokers delete the oldest files above"
        yield "75 % (diskMaxUsedSpaceRatio) and refuse sends above 90 %, so tests of them may fail"


def _arguments() -> argparse.Namespace:
    names = sorted({stage.name for stage in stages_of(ALL)})
    parser = argparse.ArgumentParser(description="Run the tests.")
    parser.add_argument("stage", nargs="*", help=f"one of: {', '.join(names)}; default: all")
    parser.add_argument("--tier", choices=TIERS, default=TEST, help="default: test")
    parser.add_argument("--build", choices=BOTH, help="only this build")
    parser.add_argument("--test", action="append", default=[], help="only this test of the stage")
    what = "run the tests that the changes since a commit touch; default: the last commit"
    parser.add_argument("--changed", nargs="?", const="HEAD", metavar="COMMIT", help=what)
    cores = os.cpu_count() or 1
    parser.add_argument("--cores", type=float, default=cores, help="processors to keep busy")
    asked = parser.parse_args()
    for name in asked.stage:
        if not any(stage.startswith(name) for stage in names):
            parser.error(f"no stage {name}; expected one of {', '.join(names)}")
    return asked


def _chosen(asked: argparse.Namespace) -> Iterator[Stage]:
    """The selected stages, and the preparations that they need."""
    stages = stages_of(asked.tier) if asked.changed is None else list(_changed(asked.changed))
    chosen = [
        replace(stage, build=asked.build or stage.build, tests=tuple(asked.test))
        for stage in stages
        if not stage.prepares and (not asked.stage or stage.name.startswith(tuple(asked.stage)))
    ]
    if not chosen:
        sys.exit(f"tests: the tier {asked.tier} has no stage {' or '.join(asked.stage)}")
    needed = {stage.needs for stage in chosen}
    if not asked.build and not _has_compiled_build():
        chosen = [replace(stage, build="interpreted") for stage in chosen]
    yield from (stage for stage in stages if stage.prepares and stage.name in needed)
    yield from dict.fromkeys(chosen)


def _has_compiled_build() -> bool:
    """Whether there is a compiled build to test: a compiler worked, or nothing needs one."""
    import build_ext

    if build_ext.is_compiled() or os.environ.get("CI") or build_ext.has_compiler():
        return True  # if there is a compiler, a build that fails is a failure of the tests
    print("no C compiler here: only the interpreted build is tested", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
