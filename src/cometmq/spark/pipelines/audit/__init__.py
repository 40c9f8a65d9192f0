"""The pipeline that asks whether messages are all there: within one source, or between two."""

from cometmq.spark.pipelines.audit.pipeline import PIPELINE, AuditSettings, audit

__all__ = [
    "PIPELINE",
    "AuditSettings",
    "audit",
]
