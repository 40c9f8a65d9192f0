"""The pipeline that compares a store's queues, index and archive with what its log says."""

from cometmq.spark.pipelines.verify.pipeline import PIPELINE, VerifySettings, verify

__all__ = [
    "PIPELINE",
    "VerifySettings",
    "verify",
]
