"""Which tests a run includes: the tier.

``COMETMQ_TIER`` is ``quick``, ``test`` (the default) or ``all``. ``quick`` and ``test`` leave
repetitions to ``all``: the same test on a further RocketMQ cluster, the interpreted
build of slow suites, long random rounds. A test that is such a repetition is marked
``@pytest.mark.long``.
"""

from __future__ import annotations

import os

import pytest

QUICK, TEST, ALL = "quick", "test", "all"
TIERS = (QUICK, TEST, ALL)


def tier() -> str:
    """The tier of this run."""
    chosen = os.environ.get("COMETMQ_TIER", TEST)
    if chosen not in TIERS:
        raise pytest.UsageError(f"COMETMQ_TIER={chosen!r}: expected one of {', '.join(TIERS)}")
    return chosen


def is_long_run() -> bool:
    """Whether the tier is ``all``: every test on every cluster and build."""
    return tier() == ALL


def rounds(*, test: int, long: int) -> int:
    """Rounds of a random test: ``long`` in the tier ``all``, otherwise ``test``."""
    return long if is_long_run() else test


def deselect(config: pytest.Config, items: list[pytest.Item], dropped: list[pytest.Item]) -> None:
    """Take tests out of a run; pytest counts them as deselected."""
    if dropped:
        gone = set(dropped)
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in gone]
