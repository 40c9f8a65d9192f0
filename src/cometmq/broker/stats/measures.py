"""Measurements of a broker beside its counters."""

from __future__ import annotations

import msgspec

from cometmq.broker.stats.throughput import Throughput
from cometmq.broker.timings import Timings
from cometmq.remoting.latencies import Latencies


class Measures(msgspec.Struct, frozen=True):
    """The measurements of one broker."""

    throughput: Throughput
    timings: Timings
    latencies: Latencies | None
    """Counts how long responses take; None without metrics."""
