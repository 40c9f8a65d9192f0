"""The client for code without an event loop: scripts, notebooks, threads.

The names are those of `cometmq.client`, and so are the parameters and what they mean; ``with``
stands for ``async with``, and a plain call for ``await``. All objects run in one loop, in a thread
of their own.
"""

from cometmq.client.blocking.admin import AdminClient
from cometmq.client.blocking.consumers import PopConsumer, PullConsumer, PushConsumer
from cometmq.client.blocking.instance import ClientInstance
from cometmq.client.blocking.portal import Portal
from cometmq.client.blocking.producer import Producer, TransactionProducer

__all__ = [
    "Producer",
    "TransactionProducer",
    "PushConsumer",
    "PopConsumer",
    "PullConsumer",
    "AdminClient",
    "ClientInstance",
    "Portal",
]
