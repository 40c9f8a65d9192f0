"""The name server: registrations of brokers and routes of topics."""

from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import NameServerSettings

__all__ = ["NameServer", "NameServerSettings"]
