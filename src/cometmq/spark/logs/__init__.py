"""The log of a broker as files: their list, the readable end, and the records of any range."""

from cometmq.spark.logs.files import Log, LogFile, open_log
from cometmq.spark.logs.ranges import ByteRange, missing, plan
from cometmq.spark.logs.reading import Damage, Reading, read_range
from cometmq.spark.logs.watermark import Follower

__all__ = [
    "ByteRange",
    "Damage",
    "Follower",
    "Log",
    "LogFile",
    "Reading",
    "missing",
    "open_log",
    "plan",
    "read_range",
]
