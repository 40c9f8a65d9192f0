"""The settings of brokers, name servers and controllers, and changes of live settings."""

from cometmq.console.settings.changes import CHANGES
from cometmq.console.settings.page import PAGES

__all__ = ["CHANGES", "PAGES"]
