"""What each request to a broker needs under plain access control.

RocketMQ checks a dozen requests and leaves the others open to every account. Beside what it checks,
this broker requires an administrator for all that changes the broker or what belongs to others,
and permissions for further requests that send, read or consume messages.

Source: PlainAccessResource.parse and Permission, RocketMQ 4.9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cometmq.access.needs import (
    ADMINISTRATOR,
    NOTHING,
    Action,
    Needs,
    group_need,
    needs_of,
    topic_need,
)
from cometmq.access.request_needs import (
    TopicOfRecord,
    field,
    of_direct_consumption,
    of_heartbeat,
    of_pull,
    of_recall,
    of_record,
    of_reply,
    of_send,
    of_unregister,
    with_record,
)
from cometmq.model.topic import reply_topic
from cometmq.protocol.bodies import LockBatchRequestBody, UnlockBatchRequestBody
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import (
    ConsumerSendMsgBackRequest,
    EndTransactionRequest,
    ExchangeBrokerHaInfoRequest,
    QueryConsumeQueueRequest,
    QueryMessageRequest,
    UpdateAndGetGroupForbiddenRequest,
    UpdateConsumerOffsetRequest,
    ViewMessageByIdRequest,
)
from cometmq.remoting.requests import Request

ADMINISTRATION: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.TRIGGER_DELETE_FILES,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.REGISTER_FILTER_SERVER,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.ADD_BROKER,
        RequestCode.REMOVE_BROKER,
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.SET_COMMITLOG_READ_MODE,
        RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_GET_USER,
        RequestCode.AUTH_LIST_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
        RequestCode.AUTH_GET_ACL,
        RequestCode.AUTH_LIST_ACL,
    }
)
"""Requests that change the broker or what belongs to others, or read what belongs to all groups, or
say where the files of accounts are and what is in them.

Those about users are refused anyway: a broker with plain accounts has no users.
"""

SIGNED: Final = frozenset(
    {
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        # What slaves and controllers read.
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        RequestCode.GET_TIMER_CHECK_POINT,
        RequestCode.GET_TIMER_METRICS,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.GET_BROKER_EPOCH_CACHE,
    }
)
"""Requests that every account may make: they read names, settings, bounds and numbers."""

_COUNTERS_WITHOUT_GROUP: Final = ("TOPIC_", "QUEUE_PUT_", "BROKER_")
"""How the names of counters begin whose keys have no group; other keys end with one."""

_IN_BODY: Final = frozenset(
    {RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ}
)
"""Requests whose bodies say what they need."""

_GROUP_AND_TOPIC: Final = frozenset(
    {
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }
)
"""Requests whose header names a group and a topic to consume."""


class PlainNeeds:
    """Reads what requests need, with the headers and bodies that their handlers read.

    Args:
        cluster: the name of the cluster, whose reply topic is open to all accounts.
        topic_of_record: finds the topic of a message that a request names by its offset.
    """

    in_body = _IN_BODY
    stated_in = __name__
    """The module that states the needs of requests."""

    def __init__(self, cluster: str, topic_of_record: TopicOfRecord) -> None:
        self._reply_topic = reply_topic(cluster)
        self._topic_of_record = topic_of_record
        self._readers: Mapping[int, Callable[[Request], Needs]] = {
            RequestCode.SEND_MESSAGE: of_send,
            RequestCode.SEND_MESSAGE_V2: of_send,
            RequestCode.SEND_BATCH_MESSAGE: of_send,
            RequestCode.SEND_REPLY_MESSAGE: self._of_reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._of_reply,
            RequestCode.PULL_MESSAGE: of_pull,
            RequestCode.LITE_PULL_MESSAGE: of_pull,
            RequestCode.QUERY_MESSAGE: _of_query,
            RequestCode.QUERY_CONSUME_QUEUE: _of_queue_query,
            RequestCode.QUERY_CONSUMER_OFFSET: _of_consumer_group,
            RequestCode.UPDATE_CONSUMER_OFFSET: _of_commit,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: _of_consumer_group,
            RequestCode.GET_CONSUME_STATS: _of_consumer_group,
            RequestCode.QUERY_CONSUME_TIME_SPAN: _of_group,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: _of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _of_group,
            RequestCode.VIEW_BROKER_STATS_DATA: _of_counter,
            RequestCode.HEART_BEAT: of_heartbeat,
            RequestCode.UNREGISTER_CLIENT: of_unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: _of_consumer_group,
            # The broker sends such requests to consumers, whose responses may show their threads.
            RequestCode.GET_CONSUMER_RUNNING_INFO: _of_consumer_group,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _of_group,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._of_direct_consumption,
            RequestCode.LOCK_BATCH_MQ: _of_lock,
            RequestCode.UNLOCK_BATCH_MQ: _of_unlock,
            RequestCode.RECALL_MESSAGE: of_recall,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _of_group_forbidden,
            RequestCode.EXCHANGE_BROKER_HA_INFO: _of_ha_info,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._of_send_back,
            RequestCode.END_TRANSACTION: self._of_transaction,
            RequestCode.VIEW_MESSAGE_BY_ID: self._of_view,
        }

    def of(self, request: Request) -> Needs:
        """Return what a request needs beside a signature.

        Raises:
            CometError: its header or its body cannot be read, or the disk refuses a record.
        """
        code = request.code
        reader = self._readers.get(code)
        if reader is not None:
            return reader(request)
        if code in _GROUP_AND_TOPIC:
            return _of_group_and_topic(request)
        return NOTHING if code in SIGNED else ADMINISTRATOR

    @property
    def codes(self) -> frozenset[int]:
        """The codes of requests whose needs are stated; all others need an administrator."""
        return frozenset((*self._readers, *_GROUP_AND_TOPIC, *SIGNED, *ADMINISTRATION))

    def _of_reply(self, request: Request) -> Needs:
        return of_reply(request, self._reply_topic)

    def _of_send_back(self, request: Request) -> Needs:
        header = request.header(ConsumerSendMsgBackRequest)
        return with_record(self._of_record(header.offset, Action.SUB), group_need(header.group))

    def _of_direct_consumption(self, request: Request) -> Needs:
        return of_direct_consumption(request, self._topic_of_record)

    def _of_transaction(self, request: Request) -> Needs:
        return self._of_record(request.header(EndTransactionRequest).commit_log_offset, Action.PUB)

    def _of_view(self, request: Request) -> Needs:
        return self._of_record(request.header(ViewMessageByIdRequest).offset, Action.SUB)

    def _of_record(self, offset: int, action: Action) -> Needs:
        return of_record(self._topic_of_record, offset, action)


def _of_query(request: Request) -> Needs:
    return needs_of(topic_need(request.header(QueryMessageRequest).topic, Action.SUB))


def _of_queue_query(request: Request) -> Needs:
    """The group is only one whose filter the response shows."""
    topic = request.header(QueryConsumeQueueRequest).topic
    return needs_of(topic_need(topic, Action.SUB)) if topic else NOTHING


def _of_commit(request: Request) -> Needs:
    header = request.header(UpdateConsumerOffsetRequest)
    return needs_of(group_need(header.consumer_group), topic_need(header.topic, Action.SUB))


def _of_consumer_group(request: Request) -> Needs:
    return needs_of(group_need(field(request, "consumerGroup")))


def _of_group(request: Request) -> Needs:
    return needs_of(group_need(field(request, "group")))


def _of_counter(request: Request) -> Needs:
    """Return what a counter needs: the group, if it is one of a group."""
    name, key = field(request, "statsName"), field(request, "statsKey")
    if name.startswith(_COUNTERS_WITHOUT_GROUP):
        return NOTHING
    return needs_of(group_need(key.rpartition("@")[2]))


def _of_lock(request: Request) -> Needs:
    return needs_of(group_need(LockBatchRequestBody.decode(request.body).consumer_group))


def _of_unlock(request: Request) -> Needs:
    return needs_of(group_need(UnlockBatchRequestBody.decode(request.body).consumer_group))


def _of_group_and_topic(request: Request) -> Needs:
    group, topic = field(request, "consumerGroup"), field(request, "topic")
    return needs_of(group_need(group), topic_need(topic, Action.SUB))


def _of_group_forbidden(request: Request) -> Needs:
    """Without ``readable`` it is a query."""
    header = request.header(UpdateAndGetGroupForbiddenRequest)
    return NOTHING if header.readable is None else ADMINISTRATOR


def _of_ha_info(request: Request) -> Needs:
    """Without any field it is a query."""
    header = request.header(ExchangeBrokerHaInfoRequest)
    given = (header.master_ha_address, header.master_address, header.log_slave)
    return NOTHING if given == (None, None, None) else ADMINISTRATOR
