"""Compares the archive of a log with the log."""

from cometmq.spark.pipelines.verify.pipeline import PIPELINE, VerifySettings, verify

__all__ = [
    "PIPELINE",
    "VerifySettings",
    "verify",
]
