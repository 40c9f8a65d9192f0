"""Which queues are whose: strategies that divide them, and what carries the division out."""

from cometmq.client.rebalance.contracts import AllocationError, AllocationStrategy, QueueOwner

__all__ = ["AllocationStrategy", "AllocationError", "QueueOwner"]
