"""Times the decoder of columns alone, on one core, over the log files of a store.

``python benchmarks/spark_kernel.py STORE ROWS`` prints rows per second of each choice of columns as
JSON; with ``COMETMQ_BUILD=interpreted`` in the environment, those of the interpreted build.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from spark_data import segments

from cometmq.spark.batches import RecordDecoder
from cometmq.spark.schema import CORE, Column, log_columns, topic_columns

WINDOW_BYTES = 1024 * 1024
CHOICES: dict[str, tuple[Sequence[Column], bool]] = {
    "core": (CORE, False),
    "properties": (topic_columns(properties=True), False),
    "everything": (log_columns(properties=True, validate=True), True),
}
"""Columns, and whether checksums are looked at."""


def rates(root: Path, rows_max: int) -> dict[str, float]:
    """Return the rows per second of CPU time for every choice of columns."""
    _rate(root, 1000, *CHOICES["everything"])  # to warm up
    return {name: _rate(root, rows_max, *choice) for name, choice in CHOICES.items()}


def _rate(root: Path, rows_max: int, columns: Sequence[Column], crc: bool) -> float:
    decoder = RecordDecoder(columns, broker_name="broker-a", crc=crc)
    rows, seconds = 0, 0.0
    for path in segments(root):
        data = path.read_bytes()
        began = time.process_time()
        for batch in decoder.batches(data, 0, len(data)):
            rows += batch.num_rows
            if rows >= rows_max:
                break
        seconds += time.process_time() - began
        if rows >= rows_max:
            break
    return rows / seconds


if __name__ == "__main__":
    print(json.dumps(rates(Path(sys.argv[1]), int(sys.argv[2]))))
