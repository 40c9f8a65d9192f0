"""The state of all brokers, with charts of the last half hour that follow the cluster."""

from cometmq.console.overview.page import live, pages, prepare
from cometmq.console.overview.samples import Samples

__all__ = ["Samples", "live", "pages", "prepare"]
