"""Audits messages: missing, doubled or changed ones within a source, or between two."""

from cometmq.spark.pipelines.audit.pipeline import PIPELINE, AuditSettings, audit

__all__ = [
    "PIPELINE",
    "AuditSettings",
    "audit",
]
