"""The rule by which a target is met.

A target is met only if the worse quartile of at least five rounds meets it. If only the median
does, the verdict is "met by the median", else "missed". Fewer rounds give no verdict. Where a
figure of ours failed or is in doubt, the verdict is "in doubt".
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

ROUNDS_MIN = 5


def worse_quartile(values: Sequence[float], *, more_is_better: bool) -> float:
    """The quartile on the bad side; of five values the second worst."""
    if len(values) < 2:
        return values[0]
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    return lower if more_is_better else upper


def verdict(values: Sequence[float], target: float, *, more_is_better: bool) -> str:
    """Say whether the rounds meet the target; empty with too few rounds."""
    if len(values) < ROUNDS_MIN:
        return ""

    def meets(value: float) -> bool:
        return value >= target if more_is_better else value <= target

    if meets(worse_quartile(values, more_is_better=more_is_better)):
        return "met"
    return "met by the median" if meets(median(values)) else "missed"
