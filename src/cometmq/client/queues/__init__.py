"""The queues a consumer owns: what was fetched of each and is not consumed yet."""

from cometmq.client.queues.contracts import ConsumeService, MessageFilter

__all__ = ["ConsumeService", "MessageFilter"]
