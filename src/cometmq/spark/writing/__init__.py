"""Converts rows to messages and sends them; returns when all are acknowledged."""

from cometmq.spark.writing.identity import Origin, RowKeys
from cometmq.spark.writing.rows import COLUMNS, check_columns
from cometmq.spark.writing.topic_writer import Sent, TopicWriter

__all__ = [
    "COLUMNS",
    "Origin",
    "Sent",
    "TopicWriter",
    "check_columns",
    "RowKeys",
]
