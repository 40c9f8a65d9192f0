"""Consumer groups: a list, and one group with its members, subscriptions and lag."""

from cometmq.console.groups.page import PAGES

__all__ = ["PAGES"]
