"""Compares a store's queues, index and archive with its log."""

from cometmq.spark.pipelines.verify.pipeline import PIPELINE, VerifySettings, verify

__all__ = [
    "PIPELINE",
    "VerifySettings",
    "verify",
]
