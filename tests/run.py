"""Runs the stages of a tier; prints a table of their times and one line that counts all tests.

``python tests/run.py --tier quick|test|all`` runs a tier; names of stages, or the beginnings of
names, select some of its stages. Each stage is a separate process with one build.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support import spark_layer  # noqa: E402
from support.stages import (  # noqa: E402
    Outcome,
    Stage,
    results_folder,
    run_stages,
    slowest_tests,
    table,
)
from support.tiers import ALL, QUICK, TEST, TIERS  # noqa: E402
from support.versions import ALL_VERSIONS, VERSIONS  # noqa: E402

BOTH = ("compiled", "interpreted")
CLUSTERS = ("comet", *VERSIONS)
UNIT = ("tests/unit", "tests/golden")
PARTS = 4
"""Of the quick tests: two at a time would leave the processors idle while they wait."""
CONFORMANCE = ("tests/conformance_run/run.py",)
EXPECTED = "tests/conformance_run/expected_failures.py"
MEMORY, MEMORY_MIN = Path("/dev/shm"), 2 << 30
WITHOUT_SPARK = tuple(f"--ignore={path}" for path in spark_layer.TESTS)


def stages_of(tier: str) -> list[Stage]:
    """All stages of a tier; first the one that others wait for, then the longer before the shorter.

    So none of the long ones is left alone at the end.
    """
    if tier == QUICK:
        paths = ("tests/unit", *WITHOUT_SPARK)
        parts = [Stage("unit", paths, part=f"{n}/{PARTS}", cores=0.5) for n in range(1, PARTS + 1)]
        return [replace(stage, tier=tier, variables=_in_memory()) for stage in parts]
    builds = BOTH if tier == ALL else BOTH[:1]
    versions = ALL_VERSIONS if tier == ALL else VERSIONS

    def on_builds(stage: Stage) -> Iterator[Stage]:
        return (replace(stage, build=build) for build in builds)

    stages = [
        Stage("install Spark", prepares=("make", "--silent", "setup-spark"), cores=0.6),
        Stage("interop", ("tests/interop",), cores=0.4),
        *(_spark("local", part) for part in ("1/2", "2/2")),
        *on_builds(Stage("client", ("tests/client",), cluster="comet", cores=0.3)),
        *on_builds(Stage("integration", ("tests/integration",), cores=0.4)),
        *(
            Stage("client", ("tests/client",), cluster=name, cores=0.4)
            for name in reversed(versions)
        ),
        _spark("standalone"),
        *on_builds(Stage("faults", ("tests/faults",), cores=0.4)),
        *(
            Stage("unit", (*UNIT, *WITHOUT_SPARK), build, variables=_in_memory(), cores=0.8)
            for build in BOTH
        ),
        *on_builds(Stage("conformance", ("tests/conformance",), cores=0.3, runner=CONFORMANCE)),
        Stage("simulation", ("tests/simulation",), cores=0.9),
        *on_builds(
            Stage("unit spark", spark_layer.TESTS, needs="install Spark", variables=_in_memory())
        ),
    ]
    return [replace(stage, tier=tier) for stage in stages]


def _in_memory() -> tuple[tuple[str, str], ...]:
    """The variable that puts the folders of unit tests into memory, if there is room.

    Half of what these tests wait for is fsync. Tests of other kinds write to the disk.
    """
    try:
        has_room = shutil.disk_usage(MEMORY).free >= MEMORY_MIN and os.access(MEMORY, os.W_OK)
    except OSError:
        has_room = False
    return (("PYTEST_DEBUG_TEMPROOT", str(MEMORY)),) if has_room else ()


def _spark(place: str, part: str = "") -> Stage:
    """The Spark tests: one session for all clusters, because a session is slow to start."""
    return Stage(
        f"spark {place}",
        ("tests/spark",),
        part=part,
        variables=(("COMETMQ_SPARK", place), ("COMETMQ_CLUSTERS", ",".join(CLUSTERS))),
        needs="install Spark",
        cores=0.8,
    )


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
        for failure in outcome.failures:
            yield f"FAILED in {outcome.stage.title}: {failure}"


def _arguments() -> argparse.Namespace:
    names = sorted({stage.name for stage in stages_of(ALL)})
    parser = argparse.ArgumentParser(description="Run the tests.")
    parser.add_argument("stage", nargs="*", help=f"one of: {', '.join(names)}; default: all")
    parser.add_argument("--tier", choices=TIERS, default=TEST, help="default: test")
    parser.add_argument("--build", choices=BOTH, help="only this build")
    cores = os.cpu_count() or 1
    parser.add_argument("--cores", type=float, default=cores, help="processors to keep busy")
    asked = parser.parse_args()
    for name in asked.stage:
        if not any(stage.startswith(name) for stage in names):
            parser.error(f"no stage {name}; expected one of {', '.join(names)}")
    return asked


def _chosen(asked: argparse.Namespace) -> Iterator[Stage]:
    """The selected stages, and the preparations that they need."""
    stages = stages_of(asked.tier)
    chosen = [
        replace(stage, build=asked.build or stage.build)
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
