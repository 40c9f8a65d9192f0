"""Pipelines: archives of logs and topics, with a record of each run.

Each one is a function, a script for ``spark-submit`` (``python -m cometmq.spark.pipelines.NAME``)
and a command (``cometmq pipeline NAME``). Its name is that of the module here, or of the package.
"""

from cometmq.spark.pipelines.running.progress import Progress, silent
from cometmq.spark.pipelines.running.registry import PIPELINES, Pipeline, PipelineSettings, Result
from cometmq.spark.pipelines.running.runs import Run, RunRecord, Runs, recorded

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
