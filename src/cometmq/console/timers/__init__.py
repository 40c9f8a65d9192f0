"""Messages that wait for their time: timer messages, delay levels, recalls."""

from cometmq.console.timers.page import PAGES
from cometmq.console.timers.recall import RECALL

CHANGES = (RECALL,)

__all__ = ["CHANGES", "PAGES"]
