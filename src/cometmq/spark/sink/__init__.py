"""Converts rows to messages and sends them; returns when all are acknowledged.

Only `spark_writers` imports PySpark.
"""

from cometmq.spark.sink.counts import Sent, SinkCounts, sink_counts
from cometmq.spark.sink.rows import COLUMNS, check_columns
from cometmq.spark.sink.topic_writer import TopicWriter
from cometmq.spark.sink.unique_ids import Origin, RowIds

__all__ = [
    "COLUMNS",
    "Origin",
    "RowIds",
    "Sent",
    "SinkCounts",
    "TopicWriter",
    "check_columns",
    "sink_counts",
]
