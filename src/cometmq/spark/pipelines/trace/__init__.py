"""The pipeline that measures messages by their traces: the records, and what they tell."""

from cometmq.spark.pipelines.trace.pipeline import PIPELINE, Traces, TraceSettings, trace

__all__ = [
    "PIPELINE",
    "Traces",
    "TraceSettings",
    "trace",
]
