"""One struct for each JSON body, by family; named as RocketMQ names its classes.

``REQUEST_BODIES`` and ``RESPONSE_BODIES`` lead from a request code to its bodies.

A family is loaded with the first of its names that is imported: a server at rest needs few.
"""

from typing import TYPE_CHECKING

from cometmq.protocol.families import loader

FAMILIES = {
    "base": (
        "Body",
        "InvalidBodyError",
        "decode_body",
    ),
    "common": (
        "DataVersion",
        "DataVersion4",
        "KVTable",
        "TopicList",
        "GroupList",
        "Connection",
    ),
    "heartbeat": (
        "ConsumeType",
        "MessageModel",
        "ConsumeFromWhere",
        "SubscriptionData",
        "ConsumerData",
        "ProducerData",
        "HeartbeatData",
        "CheckClientRequestBody",
    ),
    "route": (
        "QueueData",
        "BrokerData",
        "TopicQueueMappingInfo",
        "LogicQueueMappingItem",
        "TopicQueueMappingDetail",
        "TopicRouteData",
        "ClusterInfo",
        "BrokerMemberGroup",
        "GetBrokerMemberGroupResponseBody",
    ),
    "topic": (
        "TopicConfigSerializeWrapper",
        "TopicConfigSerializeWrapper4",
        "TopicConfigList",
        "TopicConfigAndQueueMapping",
        "TopicOffset",
        "TopicStatsTable",
        "TimerMetric",
        "TimerMetricsSerializeWrapper",
    ),
    "register": (
        "RegisterBrokerBody",
        "decode_register_body",
        "deflate_register_body",
    ),
    "group": (
        "SubscriptionGroupWrapper",
        "SubscriptionGroupList",
        "decode_group",
        "GroupForbidden",
        "GetConsumerListByGroupResponseBody",
        "LockBatchRequestBody",
        "LockBatchResponseBody",
        "UnlockBatchRequestBody",
        "QuerySubscriptionResponseBody",
        "ConsumerOffsetSerializeWrapper",
        "DelayOffsetSerializeWrapper",
        "QueryCorrectionOffsetBody",
        "ResetOffsetBody",
        "MessageQueueForC",
        "ResetOffsetBodyForC",
        "GetConsumerStatusBody",
        "OffsetWrapper",
        "ConsumeStats",
        "ConsumeStatsList",
    ),
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
    "broker_admin": (
        "BrokerStatsItem",
        "BrokerStatsData",
        "QueueTimeSpan",
        "QueryConsumeTimeSpanBody",
        "ConsumeQueueData",
        "QueryConsumeQueueResponseBody",
        "CheckRocksdbCqWriteResult",
        "OffsetMovedEvent",
        "HAConnectionRuntimeInfo",
        "HAClientRuntimeInfo",
        "HARuntimeInfo",
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
    "table": (
        "REQUEST_BODIES",
        "RESPONSE_BODIES",
    ),
}
"""The names of each family."""

if TYPE_CHECKING:
    from cometmq.protocol.bodies.auth import *
    from cometmq.protocol.bodies.base import *
    from cometmq.protocol.bodies.broker_admin import *
    from cometmq.protocol.bodies.client import *
    from cometmq.protocol.bodies.common import *
    from cometmq.protocol.bodies.controller import *
    from cometmq.protocol.bodies.group import *
    from cometmq.protocol.bodies.heartbeat import *
    from cometmq.protocol.bodies.pop import *
    from cometmq.protocol.bodies.register import *
    from cometmq.protocol.bodies.route import *
    from cometmq.protocol.bodies.table import *
    from cometmq.protocol.bodies.topic import *
else:
    __getattr__ = loader(__name__, FAMILIES)
