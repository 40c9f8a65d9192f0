"""Checks of messages: functions that take data frames and return a row for each fault.

A data frame without rows says that nothing is wrong. The rows are saved, counted and joined like
any others, and none is left out.
"""

from cometmq.spark.checks.comparison import compare
from cometmq.spark.checks.queues import duplicates, gaps

__all__ = ["compare", "duplicates", "gaps"]
