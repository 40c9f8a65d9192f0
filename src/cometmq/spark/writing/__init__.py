"""Rows become messages: encoded by columns, sent in batches, acknowledged one and all."""

from cometmq.spark.writing.identity import Origin, unique_key, unique_keys
from cometmq.spark.writing.rows import COLUMNS, check_columns
from cometmq.spark.writing.topic_writer import Sent, TopicWriter

__all__ = [
    "COLUMNS",
    "Origin",
    "Sent",
    "TopicWriter",
    "check_columns",
    "unique_key",
    "unique_keys",
]
