"""The name server: which broker serves which topic.

`NameServer` is one of them, `NameServerSettings` what can be set on it.
"""

from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import NameServerSettings

__all__ = ["NameServer", "NameServerSettings"]
