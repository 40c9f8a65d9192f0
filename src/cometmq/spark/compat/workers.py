"""Python workers of Spark: processes that Spark forks, and reuses for later tasks."""

from __future__ import annotations

import gc
import sys
from functools import cache


@cache
def exempt_loaded_modules() -> None:
    """Exempt what is loaded from garbage collections; once in a worker, never in another process.

    A worker collects the garbage of its whole heap after each task (``pyspark/daemon.py``). The
    modules of PySpark, Arrow and pandas make that 40 ms of processor time, more than a small task
    takes; without them it is 1 ms.
    """
    spec = sys.modules["__main__"].__spec__
    if spec is not None and spec.name == "pyspark.daemon":
        gc.freeze()
