"""The queues a consumer owns: what was fetched of each and is not consumed yet."""

from cometmq.client.queues.contracts import ConsumeService, MessageFilter
from cometmq.client.queues.process_queue import ProcessQueue

__all__ = ["ProcessQueue", "ConsumeService", "MessageFilter"]
