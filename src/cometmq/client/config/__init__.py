"""Settings of clients: what can be set, within which limits, and where it is looked for."""

from cometmq.client.config.base import KIB, MIB, Checked
from cometmq.client.config.client import ClientSettings
from cometmq.client.config.layers import layered, read_tables, shared_out
from cometmq.client.config.pop import PopSettings
from cometmq.client.config.producer import ProducerSettings
from cometmq.client.config.pull import PullSettings
from cometmq.client.config.push import PushSettings
from cometmq.client.config.trace import TraceSettings

__all__ = [
    "Checked",
    "ClientSettings",
    "ProducerSettings",
    "PullSettings",
    "PopSettings",
    "PushSettings",
    "TraceSettings",
    "layered",
    "shared_out",
    "read_tables",
    "KIB",
    "MIB",
]
