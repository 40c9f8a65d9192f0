"""Sends archived messages again: which rows, in which form, at which rate."""

from cometmq.spark.pipelines.replay.pipeline import PIPELINE, ReplaySettings, replay

__all__ = [
    "PIPELINE",
    "ReplaySettings",
    "replay",
]
