"""The log of a broker as files: its folder, its readable end, and the records of any range."""

from cometmq.spark.logs.places import LogFile, LogPlace, open_place
from cometmq.spark.logs.ranges import ByteRange, missing, plan
from cometmq.spark.logs.reading import Damage, Reading, read_range
from cometmq.spark.logs.watermark import Follower, log_end, watermark

__all__ = [
    "LogFile",
    "LogPlace",
    "open_place",
    "ByteRange",
    "plan",
    "missing",
    "Reading",
    "Damage",
    "read_range",
    "Follower",
    "log_end",
    "watermark",
]
