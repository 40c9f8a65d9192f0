"""The pipeline that sends archived messages again: which rows, written how, at what pace."""

from cometmq.spark.pipelines.replay.pipeline import PIPELINE, ReplaySettings, replay

__all__ = [
    "PIPELINE",
    "ReplaySettings",
    "replay",
]
