"""Pipelines: whole jobs over topics, logs and archives, each with a record of what it did.

Each one is a function, a script for ``spark-submit`` (``python -m cometmq.spark.pipelines.NAME``)
and a command (``cometmq pipeline NAME``).
"""

from cometmq.spark.pipelines.progress import Progress, silent
from cometmq.spark.pipelines.registry import PIPELINES, Pipeline, PipelineSettings, Result
from cometmq.spark.pipelines.runs import Run, RunRecord, Runs, recorded

__all__ = [
    "PIPELINES",
    "Pipeline",
    "PipelineSettings",
    "Result",
    "Progress",
    "silent",
    "Run",
    "RunRecord",
    "Runs",
    "recorded",
]
