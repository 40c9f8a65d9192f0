"""The queues a consumer owns: what was fetched of each and is not consumed yet."""

from cometmq.client.queues.contracts import ConsumeService, MessageFilter, PullStats
from cometmq.client.queues.limits import Limits
from cometmq.client.queues.process_queue import ProcessQueue
from cometmq.client.queues.pull_loop import PullLoop
from cometmq.client.queues.replicas import ReplicaChoice

__all__ = [
    "ProcessQueue",
    "PullLoop",
    "Limits",
    "ReplicaChoice",
    "ConsumeService",
    "MessageFilter",
    "PullStats",
]
