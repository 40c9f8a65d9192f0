"""The name server: which broker serves which topic."""

from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import NameServerSettings

__all__ = ["NameServer", "NameServerSettings"]
