"""A cluster for tests: a name server and brokers in this process, or as separate processes.

Each name loads its module when it is first used. pytest imports this package in every run of every
project of the environment, through the plugin, so importing it must cost next to nothing.
"""

from typing import TYPE_CHECKING

from cometmq.protocol.families import loader

FAMILIES = {
    "cluster": ("Cluster",),
    "threaded": ("ThreadedCluster",),
    "process": ("ServerProcess", "ServerStartError"),
}
"""The names of each module."""

if TYPE_CHECKING:
    from cometmq.testing.cluster import Cluster
    from cometmq.testing.process import ServerProcess, ServerStartError
    from cometmq.testing.threaded import ThreadedCluster
else:
    __getattr__ = loader(__name__, FAMILIES)

__all__ = ["Cluster", "ThreadedCluster", "ServerProcess", "ServerStartError"]
