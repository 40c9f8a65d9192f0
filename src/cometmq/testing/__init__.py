"""A cluster for tests: a name server and brokers in this process, or as separate processes."""

from cometmq.testing.cluster import Cluster
from cometmq.testing.process import ServerProcess, ServerStartError
from cometmq.testing.threaded import ThreadedCluster

__all__ = ["Cluster", "ThreadedCluster", "ServerProcess", "ServerStartError"]
