"""The pipeline that asks why messages died: the letters, what they show, their export."""

from cometmq.spark.pipelines.dead_letters.export import Selection, export
from cometmq.spark.pipelines.dead_letters.pipeline import PIPELINE, DeadLetterSettings, dead_letters

__all__ = [
    "Selection",
    "export",
    "PIPELINE",
    "DeadLetterSettings",
    "dead_letters",
]
