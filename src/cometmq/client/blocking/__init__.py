"""The client for programs without an event loop: scripts, notebooks, threads.

Names, parameters and behaviour are those of `cometmq.client`. Use ``with`` instead of ``async
with``, and a plain call instead of ``await``. All objects run in one event loop in its own thread.
"""

from cometmq.client.blocking.base import ClientInstance
from cometmq.client.blocking.clients import (
    AdminClient,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
)
from cometmq.client.blocking.portal import Portal

__all__ = [
    "Producer",
    "TransactionProducer",
    "PushConsumer",
    "PopConsumer",
    "PullConsumer",
    "SimpleConsumer",
    "AdminClient",
    "ClientInstance",
    "Portal",
]
