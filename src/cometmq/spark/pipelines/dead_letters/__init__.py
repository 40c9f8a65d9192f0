"""Analyses dead letters and exports them."""

from cometmq.spark.pipelines.dead_letters.export import Selection, export
from cometmq.spark.pipelines.dead_letters.pipeline import PIPELINE, DeadLetterSettings, dead_letters

__all__ = [
    "Selection",
    "export",
    "PIPELINE",
    "DeadLetterSettings",
    "dead_letters",
]
