"""The filter server: runs uploaded filters in sandboxed processes, between consumers and a broker.

Source: the filter server of RocketMQ 4.2, whose filters are Java classes inside the server.
"""

from cometmq.filtersrv.app import FilterServer
from cometmq.filtersrv.config import FilterServerSettings

__all__ = ["FilterServer", "FilterServerSettings"]
