"""Which JSON body belongs to which request code; commands without one are left out.

From the processors of RocketMQ 5.3.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from cometmq.model.group import SubscriptionGroupConfig
from cometmq.protocol.bodies import (
    auth,
    broker_admin,
    client,
    common,
    controller,
    group,
    heartbeat,
    pop,
    register,
)
from cometmq.protocol.bodies import route as routes
from cometmq.protocol.bodies import topic as topics
from cometmq.protocol.codes import RequestCode

REQUEST_BODIES: Mapping[int, type[msgspec.Struct]] = MappingProxyType(
    {
        RequestCode.HEART_BEAT: heartbeat.HeartbeatData,
        RequestCode.CHECK_CLIENT_CONFIG: heartbeat.CheckClientRequestBody,
        RequestCode.LOCK_BATCH_MQ: group.LockBatchRequestBody,
        RequestCode.UNLOCK_BATCH_MQ: group.UnlockBatchRequestBody,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.TopicConfigList,
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: routes.TopicQueueMappingDetail,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: group.SubscriptionGroupList,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: group.ResetOffsetBody,
        RequestCode.REGISTER_BROKER: register.RegisterBrokerBody,
        RequestCode.QUERY_DATA_VERSION: common.DataVersion,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV: routes.TopicRouteData,
        RequestCode.QUERY_ASSIGNMENT: pop.QueryAssignmentRequestBody,
        RequestCode.SET_MESSAGE_REQUEST_MODE: pop.SetMessageRequestModeRequestBody,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: controller.SyncStateSet,
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED: controller.SyncStateSet,
        RequestCode.BATCH_ACK_MESSAGE: pop.BatchAckMessageRequestBody,
        RequestCode.AUTH_CREATE_USER: auth.UserInfo,
        RequestCode.AUTH_UPDATE_USER: auth.UserInfo,
        RequestCode.AUTH_CREATE_ACL: auth.AclInfo,
        RequestCode.AUTH_UPDATE_ACL: auth.AclInfo,
    }
)
"""The body of each request."""

RESPONSE_BODIES: Mapping[int, type[msgspec.Struct]] = MappingProxyType(
    {
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: group.GetConsumerListByGroupResponseBody,
        RequestCode.LOCK_BATCH_MQ: group.LockBatchResponseBody,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: group.ResetOffsetBody,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: group.GetConsumerStatusBody,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: group.GetConsumerStatusBody,
        RequestCode.GET_CONSUMER_RUNNING_INFO: client.ConsumerRunningInfo,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: client.ConsumeMessageDirectlyResult,
        RequestCode.GET_ALL_TOPIC_CONFIG: topics.TopicConfigSerializeWrapper,
        RequestCode.GET_TOPIC_CONFIG: topics.TopicConfigAndQueueMapping,
        RequestCode.GET_BROKER_RUNTIME_INFO: common.KVTable,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: group.SubscriptionGroupWrapper,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupConfig,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: group.GroupForbidden,
        RequestCode.GET_TOPIC_STATS_INFO: topics.TopicStatsTable,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: client.ConsumerConnection,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: client.ProducerConnection,
        RequestCode.GET_ALL_PRODUCER_INFO: client.ProducerTableInfo,
        RequestCode.GET_CONSUME_STATS: group.ConsumeStats,
        RequestCode.GET_BROKER_CONSUME_STATS: group.ConsumeStatsList,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: common.GroupList,
        RequestCode.QUERY_TOPICS_BY_CONSUMER: common.TopicList,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: group.QuerySubscriptionResponseBody,
        RequestCode.QUERY_CONSUME_TIME_SPAN: broker_admin.QueryConsumeTimeSpanBody,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: common.TopicList,
        RequestCode.QUERY_CORRECTION_OFFSET: group.QueryCorrectionOffsetBody,
        RequestCode.VIEW_BROKER_STATS_DATA: broker_admin.BrokerStatsData,
        RequestCode.QUERY_CONSUME_QUEUE: broker_admin.QueryConsumeQueueResponseBody,
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: broker_admin.CheckRocksdbCqWriteResult,
        RequestCode.GET_ALL_CONSUMER_OFFSET: group.ConsumerOffsetSerializeWrapper,
        RequestCode.GET_ALL_DELAY_OFFSET: group.DelayOffsetSerializeWrapper,
        RequestCode.GET_TIMER_METRICS: topics.TimerMetricsSerializeWrapper,
        RequestCode.GET_BROKER_HA_STATUS: broker_admin.HARuntimeInfo,
        RequestCode.GET_KVLIST_BY_NAMESPACE: common.KVTable,
        RequestCode.REGISTER_BROKER: common.KVTable,
        RequestCode.QUERY_DATA_VERSION: common.DataVersion,
        RequestCode.GET_ROUTEINFO_BY_TOPIC: routes.TopicRouteData,
        RequestCode.GET_BROKER_CLUSTER_INFO: routes.ClusterInfo,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: common.TopicList,
        RequestCode.GET_TOPICS_BY_CLUSTER: common.TopicList,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: common.TopicList,
        RequestCode.GET_UNIT_TOPIC_LIST: common.TopicList,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: common.TopicList,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: common.TopicList,
        RequestCode.GET_BROKER_MEMBER_GROUP: routes.GetBrokerMemberGroupResponseBody,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: controller.SyncStateSet,
        RequestCode.CONTROLLER_ELECT_MASTER: controller.ElectMasterResponseBody,
        RequestCode.CONTROLLER_REGISTER_BROKER: controller.SyncStateSet,
        RequestCode.CONTROLLER_GET_REPLICA_INFO: controller.SyncStateSet,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: controller.BrokerReplicasInfo,
        RequestCode.GET_BROKER_EPOCH_CACHE: controller.EpochEntryCache,
        RequestCode.QUERY_ASSIGNMENT: pop.QueryAssignmentResponseBody,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: pop.MessageRequestModeSerializeWrapper,
        RequestCode.AUTH_GET_USER: auth.UserInfo,
        RequestCode.AUTH_GET_ACL: auth.AclInfo,
    }
)
"""The body of the response to each request."""
