"""One struct for each JSON body, by family; named as RocketMQ names its classes.

A family that a server at rest does not need is loaded with the first of its names.
"""

from typing import TYPE_CHECKING

from cometmq.protocol.bodies.base import *
from cometmq.protocol.bodies.broker_admin import *
from cometmq.protocol.bodies.common import *
from cometmq.protocol.bodies.group import *
from cometmq.protocol.bodies.heartbeat import *
from cometmq.protocol.bodies.register import *
from cometmq.protocol.bodies.route import *
from cometmq.protocol.bodies.topic import *
from cometmq.protocol.families import loader

FAMILIES = {
    "client": (
        "ConsumerConnection",
        "MemberSubscription",
        "ProducerConnection",
        "ProducerInfo",
        "ProducerTableInfo",
        "ProcessQueueInfo",
        "PopProcessQueueInfo",
        "ConsumeStatus",
        "ConsumerRunningInfo",
        "ConsumeResult",
        "ConsumeMessageDirectlyResult",
    ),
    "auth": (
        "AclInfo",
        "PolicyEntryInfo",
        "PolicyInfo",
        "UserInfo",
    ),
    "controller": (
        "BrokerReplicasInfo",
        "ElectMasterResponseBody",
        "EpochEntry",
        "EpochEntryCache",
        "ReplicaIdentity",
        "ReplicasInfo",
        "SyncStateSet",
    ),
    "pop": (
        "MessageRequestMode",
        "QueryAssignmentRequestBody",
        "MessageQueueAssignment",
        "QueryAssignmentResponseBody",
        "SetMessageRequestModeRequestBody",
        "MessageRequestModeSerializeWrapper",
        "BatchAck",
        "BatchAckMessageRequestBody",
    ),
}
"""The names of the families that are loaded later."""

if TYPE_CHECKING:
    from cometmq.protocol.bodies.auth import *
    from cometmq.protocol.bodies.client import *
    from cometmq.protocol.bodies.controller import *
    from cometmq.protocol.bodies.pop import *
else:
    __getattr__ = loader(__name__, FAMILIES)
