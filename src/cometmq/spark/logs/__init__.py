"""A broker's log as files: where it is, how far it may be read, and its records in any range."""

from cometmq.spark.logs.places import LogFile, LogPlace, open_place
from cometmq.spark.logs.ranges import ByteRange, missing, plan
from cometmq.spark.logs.reading import Damage, Reading, read_range
from cometmq.spark.logs.watermark import Follower, watermark

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
    "watermark",
]
