"""What each request to a broker needs under users and policies.

RocketMQ reads what some requests need, and leaves the others open to every user with a signature.
It checks the topic that a request names, which may be another one than that of its message. Here
each request that a broker serves needs something, and a request about a message needs the topic of
that message, too.

Source: DefaultAuthorizationContextBuilder and the annotations RocketMQAction and RocketMQResource
of the headers, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from cometmq.access.needs import (
    ADMINISTRATOR,
    Action,
    Need,
    Needs,
    ResourceType,
    group_need,
    needs_of,
    topic_need,
)
from cometmq.access.request_needs import (
    TopicOfRecord,
    field,
    of_direct_consumption,
    of_heartbeat,
    of_message_id,
    of_pull,
    of_recall,
    of_record,
    of_reply,
    of_send,
    of_unregister,
    with_record,
)
from cometmq.model.topic import TOPICS_OF_WAITING, reply_topic
from cometmq.protocol.bodies import (
    BatchAckMessageRequestBody,
    CheckClientRequestBody,
    LockBatchRequestBody,
    SubscriptionGroupList,
    TopicConfigList,
    UnlockBatchRequestBody,
    decode_group,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import (
    ConsumerSendMsgBackRequest,
    EndTransactionRequest,
    ViewMessageByIdRequest,
)
from cometmq.remoting.requests import Request

_SUB, _GET, _UPDATE = Action.SUB, Action.GET, Action.UPDATE
_SUB_OR_GET, _SUB_OR_UPDATE = Action.SUB | Action.GET, Action.SUB | Action.UPDATE
_CREATE_OR_UPDATE = Action.CREATE | Action.UPDATE

CLUSTER: Final[Mapping[int, Action]] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: _GET,
    RequestCode.GET_BROKER_CONFIG: _GET,
    RequestCode.GET_BROKER_RUNTIME_INFO: _GET,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _GET,
    RequestCode.GET_ALL_DELAY_OFFSET: _GET,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: _GET,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: _GET,
    RequestCode.GET_TIMER_CHECK_POINT: _GET,
    RequestCode.GET_TIMER_METRICS: _GET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _GET,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _GET,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _GET,
    RequestCode.VIEW_BROKER_STATS_DATA: _GET,
    RequestCode.GET_BROKER_CONSUME_STATS: _GET,
    RequestCode.GET_ALL_PRODUCER_INFO: _GET,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: _GET,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: _GET,
    RequestCode.GET_BROKER_HA_STATUS: _GET,
    RequestCode.GET_BROKER_EPOCH_CACHE: _GET,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: _GET,
    RequestCode.AUTH_GET_USER: _GET,
    RequestCode.AUTH_LIST_USER: _GET,
    RequestCode.AUTH_GET_ACL: _GET,
    RequestCode.AUTH_LIST_ACL: _GET,
    RequestCode.UPDATE_BROKER_CONFIG: _UPDATE,
    RequestCode.TRIGGER_DELETE_FILES: _UPDATE,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _UPDATE,
    RequestCode.DELETE_ACL_CONFIG: _UPDATE,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _UPDATE,
    RequestCode.REGISTER_FILTER_SERVER: _UPDATE,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _UPDATE,
    RequestCode.CLEAN_UNUSED_TOPIC: _UPDATE,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _UPDATE,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _UPDATE,
    RequestCode.ADD_BROKER: _UPDATE,
    RequestCode.REMOVE_BROKER: _UPDATE,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _UPDATE,
    RequestCode.EXCHANGE_BROKER_HA_INFO: _UPDATE,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: _UPDATE,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _UPDATE,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _UPDATE,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _UPDATE,
    RequestCode.SET_COMMITLOG_READ_MODE: _UPDATE,
    RequestCode.AUTH_CREATE_USER: _UPDATE,
    RequestCode.AUTH_UPDATE_USER: _UPDATE,
    RequestCode.AUTH_DELETE_USER: _UPDATE,
    RequestCode.AUTH_CREATE_ACL: _UPDATE,
    RequestCode.AUTH_UPDATE_ACL: _UPDATE,
    RequestCode.AUTH_DELETE_ACL: _UPDATE,
}
"""What requests about the broker as a whole do with its cluster."""


class _Named(NamedTuple):
    """What a request does with the topics and groups that fields of its header name."""

    action: Action
    topic: str = ""
    group: str = ""


_TOPIC: Final = "topic"
_GROUP: Final = "consumerGroup"
NAMED: Final[Mapping[int, _Named]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _Named(Action.PUB | _SUB_OR_GET, _TOPIC),
    RequestCode.QUERY_MESSAGE: _Named(_SUB_OR_GET, _TOPIC),
    RequestCode.QUERY_CONSUMER_OFFSET: _Named(_SUB_OR_GET, _TOPIC, _GROUP),
    RequestCode.UPDATE_CONSUMER_OFFSET: _Named(_SUB_OR_UPDATE, _TOPIC, _GROUP),
    RequestCode.UPDATE_AND_CREATE_TOPIC: _Named(Action.CREATE, _TOPIC),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: _Named(Action.CREATE, _TOPIC),
    RequestCode.DELETE_TOPIC_IN_BROKER: _Named(Action.DELETE, _TOPIC),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _Named(Action.DELETE, group="groupName"),
    RequestCode.GET_TOPIC_CONFIG: _Named(_GET, _TOPIC),
    RequestCode.GET_TOPIC_STATS_INFO: _Named(_GET, _TOPIC),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _Named(_GET, _TOPIC),
    RequestCode.GET_MAX_OFFSET: _Named(_GET, _TOPIC),
    RequestCode.GET_MIN_OFFSET: _Named(_GET, _TOPIC),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _Named(_GET, _TOPIC),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _Named(_GET, _TOPIC),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _Named(_GET, group="group"),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _Named(_GET, group=_GROUP),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _Named(_SUB_OR_GET, group=_GROUP),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _Named(_GET, group=_GROUP),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _Named(_GET, group="group"),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _Named(_GET, _TOPIC, "group"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _Named(_GET, _TOPIC, "group"),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _Named(_GET, _TOPIC, "group"),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _Named(_UPDATE, _TOPIC, "group"),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _Named(_UPDATE, _TOPIC, "group"),
    RequestCode.POP_MESSAGE: _Named(_SUB, _TOPIC, _GROUP),
    RequestCode.PEEK_MESSAGE: _Named(_SUB, _TOPIC, _GROUP),
    RequestCode.ACK_MESSAGE: _Named(_SUB, _TOPIC, _GROUP),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _Named(_SUB, _TOPIC, _GROUP),
    RequestCode.NOTIFICATION: _Named(_SUB, _TOPIC, _GROUP),
    RequestCode.POLLING_INFO: _Named(_GET, _TOPIC, _GROUP),
}
"""What requests do with the topic and the group that their headers name, if any."""

_IN_BODY: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.HEART_BEAT,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.BATCH_ACK_MESSAGE,
    }
)


class UserNeeds:
    """Reads what requests need, with the headers and bodies that their handlers read.

    Args:
        cluster: the name of the cluster, whose reply topic is open to all users.
        topic_of_record: finds the topic of a message that a request names by its offset.
        topic_of_half: the same, but for half messages only.
        group_exists: returns whether there is a group.
    """

    in_body = _IN_BODY
    stated_in = __name__
    """The module that states the needs of requests."""

    def __init__(
        self,
        cluster: str,
        topic_of_record: TopicOfRecord,
        topic_of_half: TopicOfRecord,
        group_exists: Callable[[str], bool],
    ) -> None:
        self._cluster = cluster
        self._reply_topic = reply_topic(cluster)
        self._topic_of_record = topic_of_record
        self._topic_of_half = topic_of_half
        self._group_exists = group_exists
        self._readers: Mapping[int, Callable[[Request], Needs]] = {
            RequestCode.SEND_MESSAGE: of_send,
            RequestCode.SEND_MESSAGE_V2: of_send,
            RequestCode.SEND_BATCH_MESSAGE: of_send,
            RequestCode.SEND_REPLY_MESSAGE: self._of_reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._of_reply,
            RequestCode.RECALL_MESSAGE: of_recall,
            RequestCode.PULL_MESSAGE: of_pull,
            RequestCode.LITE_PULL_MESSAGE: of_pull,
            RequestCode.HEART_BEAT: of_heartbeat,
            RequestCode.UNREGISTER_CLIENT: of_unregister,
            RequestCode.QUERY_CONSUME_QUEUE: _of_queue_query,
            RequestCode.LOCK_BATCH_MQ: _of_lock,
            RequestCode.UNLOCK_BATCH_MQ: _of_unlock,
            RequestCode.CHECK_CLIENT_CONFIG: _of_client_check,
            RequestCode.BATCH_ACK_MESSAGE: _of_batch_ack,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _of_topic_list,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _of_new_group,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _of_group_list,
            RequestCode.GET_CONSUME_STATS: _of_consume_stats,
            RequestCode.QUERY_CORRECTION_OFFSET: _of_correction,
            RequestCode.CLONE_GROUP_OFFSET: self._of_clone,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._of_send_back,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._of_direct_consumption,
            RequestCode.END_TRANSACTION: self._of_transaction,
            RequestCode.VIEW_MESSAGE_BY_ID: self._of_view,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self._of_resume,
            RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: self._of_queue_check,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._of_members,
        }

    def of(self, request: Request) -> Needs:
        """Return what a request needs beside a signature.

        Raises:
            CometError: its header or its body cannot be read, or the disk refuses a record.
        """
        code = request.code
        named = NAMED.get(code)
        if named is not None:
            return needs_of(_of_fields(request, named))
        reader = self._readers.get(code)
        if reader is not None:
            return reader(request)
        action = CLUSTER.get(code)
        return ADMINISTRATOR if action is None else self._of_cluster(action)

    @property
    def codes(self) -> frozenset[int]:
        """The codes of requests whose needs are stated; all others need a super user."""
        return frozenset((*NAMED, *self._readers, *CLUSTER))

    def _of_cluster(self, action: Action, name: str = "") -> Needs:
        return needs_of(Need(ResourceType.CLUSTER, name or self._cluster, action))

    def _of_reply(self, request: Request) -> Needs:
        return of_reply(request, self._reply_topic)

    def _of_send_back(self, request: Request) -> Needs:
        header = request.header(ConsumerSendMsgBackRequest)
        record = of_record(self._topic_of_record, header.offset, _SUB)
        return with_record(record, group_need(header.group))

    def _of_direct_consumption(self, request: Request) -> Needs:
        return of_direct_consumption(request, self._topic_of_record)

    def _of_transaction(self, request: Request) -> Needs:
        """Return the right on the topic of the message alone.

        The topic of the header is that of the request which the producer responds to: in a check
        the half topic. Without the message, a right on it tells who may learn that there is none.
        """
        header = request.header(EndTransactionRequest)
        record = of_record(self._topic_of_half, header.commit_log_offset, Action.PUB)
        return with_record(record, _topic(header.topic, Action.PUB)) if record.unknown else record

    def _of_view(self, request: Request) -> Needs:
        header = request.header(ViewMessageByIdRequest)
        record = of_record(self._topic_of_record, header.offset, _GET)
        return with_record(record, _topic(header.topic, _GET))

    def _of_resume(self, request: Request) -> Needs:
        topic = field(request, "topic")
        if not topic:
            return self._of_cluster(_UPDATE)
        record = of_message_id(self._topic_of_record, field(request, "msgId"), _UPDATE)
        return with_record(record, _topic(topic, _UPDATE))

    def _of_clone(self, request: Request) -> Needs:
        """Without a topic it is about all topics of the first group, for which the groups decide.

        A group that does not exist has no offsets to read.
        """
        target = _of_fields(request, _Named(_UPDATE, _TOPIC, "destGroup"))
        source = field(request, "srcGroup")
        exists = source and self._group_exists(source)
        return needs_of(target, group_need(source, _GET) if exists else ())

    def _of_queue_check(self, request: Request) -> Needs:
        topic = field(request, "topic")
        return needs_of(_topic(topic, _GET)) if topic else self._of_cluster(_GET)

    def _of_members(self, request: Request) -> Needs:
        return self._of_cluster(_GET, field(request, "clusterName"))


def _topic(name: str | None, action: Action) -> Iterator[Need]:
    if name:
        yield topic_need(name, action)


def _of_fields(request: Request, named: _Named) -> Iterator[Need]:
    yield from _topic(field(request, named.topic), named.action)
    group = field(request, named.group)
    if group:
        yield group_need(group, named.action)


def _of_queue_query(request: Request) -> Needs:
    """Return what the entries of a queue need, which name messages."""
    needs = needs_of(_of_fields(request, _Named(_GET, _TOPIC, _GROUP)))
    return needs._replace(administrator=field(request, _TOPIC) in TOPICS_OF_WAITING)


def _of_lock(request: Request) -> Needs:
    body = LockBatchRequestBody.decode(request.body)
    topics = (topic_need(queue.topic, _SUB) for queue in body.mq_set)
    return needs_of(group_need(body.consumer_group), topics)


def _of_unlock(request: Request) -> Needs:
    body = UnlockBatchRequestBody.decode(request.body)
    topics = (topic_need(queue.topic, _SUB) for queue in body.mq_set)
    return needs_of(group_need(body.consumer_group), topics)


def _of_client_check(request: Request) -> Needs:
    body = CheckClientRequestBody.decode(request.body)
    subscription = body.subscription_data
    topic = None if subscription is None else subscription.topic
    return needs_of(group_need(body.group), _topic(topic, _SUB))


def _of_batch_ack(request: Request) -> Needs:
    needs: list[Need] = []
    for each in BatchAckMessageRequestBody.decode(request.body).acks:
        needs += (group_need(each.consumer_group), topic_need(each.topic, _SUB))
    return needs_of(needs)


def _of_topic_list(request: Request) -> Needs:
    configs = TopicConfigList.decode(request.body).topic_config_list
    return needs_of(topic_need(config.topic_name, Action.CREATE) for config in configs)


def _of_new_group(request: Request) -> Needs:
    config = decode_group(request.body)
    return needs_of(group_need(config.group_name, _CREATE_OR_UPDATE))


def _of_group_list(request: Request) -> Needs:
    configs = SubscriptionGroupList.decode(request.body).group_config_list
    return needs_of(group_need(config.group_name, _CREATE_OR_UPDATE) for config in configs)


def _of_consume_stats(request: Request) -> Needs:
    topics = [field(request, "topic"), *field(request, "topicList").split(";")]
    return needs_of(
        _of_fields(request, _Named(_GET, group=_GROUP)),
        (topic_need(topic, _GET) for topic in topics if topic),
    )


def _of_correction(request: Request) -> Needs:
    left_out = field(request, "filterGroups").split(",")
    return needs_of(
        _of_fields(request, _Named(_GET, _TOPIC, "compareGroup")),
        (group_need(group, _GET) for group in left_out if group),
    )
