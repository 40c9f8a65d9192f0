"""The findings of the verification."""

from cometmq.spark.pipelines.findings.rows import Finding, Findings, Severity

__all__ = [
    "Finding",
    "Findings",
    "Severity",
]
