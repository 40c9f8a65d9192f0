"""The access control of brokers: users and policies of RocketMQ 5, plain accounts of 4.9."""

from cometmq.console.accounts.changes import CHANGES
from cometmq.console.accounts.page import PAGES

__all__ = ["CHANGES", "PAGES"]
