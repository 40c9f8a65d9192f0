"""The servers of a cluster: name servers, brokers with their slaves, and one broker."""

from cometmq.console.cluster.page import PAGES

__all__ = ["PAGES"]
