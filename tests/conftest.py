"""Names the build under test in the report's head, and runs only the tests of its tier and part.

``COMETMQ_PART``, such as ``1/2``, divides the files among processes that run side by side.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from support.checks.descriptors import DescriptorCheck
from support.checks.virtual_time import virtual_time
from support.runner import build, spark_layer
from support.runner.tiers import deselect, left_out, rounds

__all__ = ["virtual_time"]

# A busy machine must not fail a test, so there is no deadline.
settings.register_profile("comet", deadline=None, max_examples=rounds(test=50, long=200))
settings.load_profile("comet")

# Where PYTHONDONTWRITEBYTECODE is set, pytest would rewrite the assertions of all modules in each
# process, which takes twice as long as the rest of collecting.
sys.dont_write_bytecode = False

# A process that a test starts says where it was when it crashes.
os.environ.setdefault("PYTHONFAULTHANDLER", "1")

GARBAGE_OBJECTS_MIN = 10_000
"""New objects before garbage is collected; Python's 700 cost a twentieth of the unit tests."""

ROOT = Path(__file__).resolve().parent.parent
missing = spark_layer.left_out()
collect_ignore = [str(ROOT / path) for path in (*spark_layer.TESTS, "tests/spark") if missing]


def pytest_report_header() -> list[str]:
    lines = [f"build under test: {build.describe()}"]
    if missing:
        lines.append(f"left out: tests with Spark, {', '.join(missing)} missing: make setup-spark")
    return lines


def pytest_sessionstart(session: pytest.Session) -> None:
    # A shell that runs us in the background has SIGINT ignored, and children would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    reason = build.mismatch()
    if reason:
        raise pytest.UsageError(f"expected the {build.EXPECTED} build, but {reason}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: repeats another test, and is for long runs")
    config.addinivalue_line("markers", "needs(*programs): needs more than Python and a C compiler")
    config.addinivalue_line("markers", "promise: shows a promise of guarantees.md")
    config.pluginmanager.register(DescriptorCheck(), "descriptors")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    deselect(config, items, list(left_out(items)))


def pytest_collection_finish() -> None:
    # Thousands of test objects live until the end: no collection needs to examine them again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS_MIN, 20, 20)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    elsewhere = collection_path in _files_of_other_parts(tuple(config.args))
    return True if elsewhere else None


@functools.cache
def _files_of_other_parts(paths: tuple[str, ...]) -> set[Path]:
    """The files that other parts run: of N parts each has every Nth file, in order of size.

    They are not imported: an import takes as long as many tests.
    """
    number, count = map(int, os.environ.get("COMETMQ_PART", "1/1").split("/"))
    places = [Path(path.partition("::")[0]).absolute() for path in paths]
    found = {file for place in places for file in (place, *place.rglob("test_*.py"))}
    files = sorted(
        (file for file in found if file.is_file()), key=lambda file: (file.stat().st_size, file)
    )
    return set(files).difference(files[number - 1 :: count])
