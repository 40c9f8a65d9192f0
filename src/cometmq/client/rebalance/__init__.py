"""Which queues are whose: strategies that divide them, and what carries the division out."""

from cometmq.client.rebalance.consistent_hash import ConsistentHash, md5_32
from cometmq.client.rebalance.contracts import AllocationError, AllocationStrategy, QueueOwner
from cometmq.client.rebalance.machine_room import MachineRoom, MachineRoomNearby
from cometmq.client.rebalance.rebalancer import Rebalancer
from cometmq.client.rebalance.strategies import Averagely, AveragelyByCircle, ByConfiguration

__all__ = [
    "Rebalancer",
    "AllocationStrategy",
    "AllocationError",
    "QueueOwner",
    "Averagely",
    "AveragelyByCircle",
    "ConsistentHash",
    "ByConfiguration",
    "MachineRoom",
    "MachineRoomNearby",
    "md5_32",
]
