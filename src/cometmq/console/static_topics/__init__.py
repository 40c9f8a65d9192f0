"""Static topics: the mapping of their logical queues, and moves of queues between brokers."""

from cometmq.console.static_topics.changes import CHANGES
from cometmq.console.static_topics.page import PAGES

__all__ = ["CHANGES", "PAGES"]
