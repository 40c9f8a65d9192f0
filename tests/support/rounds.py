"""How many rounds a long test runs: one setting for all of them.

``COMETMQ_ROUNDS`` is ``ci`` (the default), ``soak``, or a number: that part of the soak rounds,
so ``0.5`` is half of them.
"""

from __future__ import annotations

import os


def rounds(*, ci: int, soak: int) -> int:
    """Rounds of one test under the setting in force, at least one."""
    chosen = os.environ.get("COMETMQ_ROUNDS", "ci")
    if chosen == "ci":
        return ci
    if chosen == "soak":
        return soak
    try:
        return max(1, round(float(chosen) * soak))
    except ValueError:
        raise ValueError(f"COMETMQ_ROUNDS={chosen!r}: neither ci, soak nor a number") from None
