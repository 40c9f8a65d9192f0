"""Message traces as data frames: records, latencies, messages not consumed or consumed twice."""

from cometmq.spark.traces.deliveries import (
    consumed_twice,
    deliveries,
    latencies,
    stream_deliveries,
    unconsumed,
)
from cometmq.spark.traces.records import records

__all__ = [
    "consumed_twice",
    "deliveries",
    "latencies",
    "records",
    "stream_deliveries",
    "unconsumed",
]
