"""The parts that every pipeline needs: its command, progress, run records, folders."""

from cometmq.spark.pipelines.running.command import main
from cometmq.spark.pipelines.running.folders import Folder, open_folder
from cometmq.spark.pipelines.running.progress import Progress, silent
from cometmq.spark.pipelines.running.registry import PIPELINES, Pipeline, PipelineSettings, Result
from cometmq.spark.pipelines.running.runs import Run, RunRecord, Runs, recorded
from cometmq.spark.pipelines.running.work import waves

__all__ = [
    "main",
    "Folder",
    "open_folder",
    "Progress",
    "silent",
    "PIPELINES",
    "Pipeline",
    "PipelineSettings",
    "Result",
    "Run",
    "RunRecord",
    "Runs",
    "recorded",
    "waves",
]
