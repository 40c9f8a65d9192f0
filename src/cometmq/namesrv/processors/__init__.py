"""The requests of a name server: brokers come and go, clients ask, tools manage."""

from cometmq.namesrv.processors.brokers import BrokerRequests
from cometmq.namesrv.processors.management import ConfigRequests, KvRequests
from cometmq.namesrv.processors.routes import RouteRequests
from cometmq.namesrv.processors.topics import TopicRequests

__all__ = ["BrokerRequests", "ConfigRequests", "KvRequests", "RouteRequests", "TopicRequests"]
