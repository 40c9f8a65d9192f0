"""The servers of a cluster: name servers, brokers with their slaves, controllers."""

from cometmq.console.cluster import controllers, page
from cometmq.console.cluster.changes import CHANGES

PAGES = (*page.PAGES, *controllers.PAGES)

__all__ = ["CHANGES", "PAGES"]
