"""The one table of what a name server answers: request code → processor.

Source: ours; the codes are RocketMQ's.
"""

from __future__ import annotations

from collections.abc import Mapping

from cometmq.namesrv.processors import (
    BrokerRequests,
    ConfigRequests,
    KvRequests,
    RouteRequests,
    TopicRequests,
)
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Processor


def commands(
    brokers: BrokerRequests,
    routes: RouteRequests,
    topics: TopicRequests,
    kv: KvRequests,
    config: ConfigRequests,
) -> Mapping[int, Processor]:
    """Return the processor of every request that a name server knows."""
    return {
        RequestCode.PUT_KV_CONFIG: kv.put,
        RequestCode.GET_KV_CONFIG: kv.get,
        RequestCode.DELETE_KV_CONFIG: kv.delete,
        RequestCode.GET_KVLIST_BY_NAMESPACE: kv.namespace,
        RequestCode.REGISTER_BROKER: brokers.register,
        RequestCode.UNREGISTER_BROKER: brokers.unregister,
        RequestCode.QUERY_DATA_VERSION: brokers.query_data_version,
        RequestCode.BROKER_HEARTBEAT: brokers.heartbeat,
        RequestCode.GET_BROKER_MEMBER_GROUP: brokers.members,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: brokers.wipe_write_perm,
        RequestCode.ADD_WRITE_PERM_OF_BROKER: brokers.add_write_perm,
        RequestCode.GET_ROUTEINFO_BY_TOPIC: routes.route,
        RequestCode.GET_BROKER_CLUSTER_INFO: routes.clusters,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topics.all,
        RequestCode.GET_TOPICS_BY_CLUSTER: topics.of_cluster,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: topics.system,
        RequestCode.GET_UNIT_TOPIC_LIST: topics.unit,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: topics.unit_sub,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: topics.unit_sub_ununit,
        RequestCode.DELETE_TOPIC_IN_NAMESRV: topics.delete,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV: topics.register,
        RequestCode.UPDATE_NAMESRV_CONFIG: config.update,
        RequestCode.GET_NAMESRV_CONFIG: config.show,
    }
