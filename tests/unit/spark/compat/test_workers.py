"""Garbage collections in a process that is no worker of Spark stay as they are."""

from __future__ import annotations

import gc

from cometmq.spark.compat import exempt_loaded_modules


def test_another_process_exempts_nothing() -> None:
    before = gc.get_freeze_count()
    exempt_loaded_modules.__wrapped__()
    assert gc.get_freeze_count() == before
