"""Measures the delivery of messages by their trace records."""

from cometmq.spark.pipelines.trace.pipeline import PIPELINE, Traces, TraceSettings, trace

__all__ = [
    "PIPELINE",
    "Traces",
    "TraceSettings",
    "trace",
]
