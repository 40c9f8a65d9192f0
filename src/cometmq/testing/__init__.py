"""A cluster for tests: a name server and brokers in this process, or as separate processes.

Each name loads its module when it is first used. pytest imports this package in every run of every
project of the environment, through the plugin, so importing it must cost next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.testing.cluster import Cluster
    from cometmq.testing.process import ServerProcess, ServerStartError
    from cometmq.testing.threaded import ThreadedCluster
else:
    _MODULES = {
        "Cluster": "cluster",
        "ThreadedCluster": "threaded",
        "ServerProcess": "process",
        "ServerStartError": "process",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


__all__ = ["Cluster", "ThreadedCluster", "ServerProcess", "ServerStartError"]
