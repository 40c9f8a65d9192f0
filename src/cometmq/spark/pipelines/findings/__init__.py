"""The parts that analysing pipelines share: inputs, findings, and their report."""

from cometmq.spark.pipelines.findings.analysis import Analysis, AnalysisSettings
from cometmq.spark.pipelines.findings.inputs import Source, Span, Topics
from cometmq.spark.pipelines.findings.report import Report, Section
from cometmq.spark.pipelines.findings.rows import Finding, Findings, Severity

__all__ = [
    "Analysis",
    "AnalysisSettings",
    "Source",
    "Span",
    "Topics",
    "Report",
    "Section",
    "Finding",
    "Findings",
    "Severity",
]
