"""Checks of messages: functions that take data frames and return a row for each fault.

A data frame without rows says that nothing is wrong. The rows are saved, counted and joined like
any others, and none is left out.
"""

from cometmq.spark.checks.archived_log import compare_log_with_archive
from cometmq.spark.checks.comparison import compare, compare_by_key
from cometmq.spark.checks.dead_letters import dead_letters
from cometmq.spark.checks.queues import duplicates, gaps, offsets
from cometmq.spark.checks.transactions import transactions

__all__ = [
    "compare",
    "compare_by_key",
    "compare_log_with_archive",
    "dead_letters",
    "duplicates",
    "gaps",
    "offsets",
    "transactions",
]
