"""Topics: a list, and one topic with its queues, routes, settings and groups."""

from cometmq.console.topics.page import PAGES

__all__ = ["PAGES"]
