"""Reads and writes the files of a store that are derived from its log, in bulk."""

from cometmq.spark.pipelines.stores.dispatched import Dispatched, dispatch
from cometmq.spark.pipelines.stores.files import IndexFile, QueueUnits, StoreFiles, log_end
from cometmq.spark.pipelines.stores.hashes import index_hashes, java_hashes
from cometmq.spark.pipelines.stores.record_heads import RecordHeads
from cometmq.spark.pipelines.stores.writing import KeySlice, RunSlice, write_index_file, write_queue

__all__ = [
    "Dispatched",
    "dispatch",
    "IndexFile",
    "QueueUnits",
    "StoreFiles",
    "log_end",
    "index_hashes",
    "java_hashes",
    "RecordHeads",
    "KeySlice",
    "RunSlice",
    "write_index_file",
    "write_queue",
]
