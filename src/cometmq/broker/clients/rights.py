"""The rights that heartbeats, queue locks and relayed requests need."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import NOTHING, Action, Need, Needs, group_need, needs_of, topic_need
from cometmq.access.rights import (
    READ,
    SIGNED,
    SUB_OR_GET,
    Lookups,
    Right,
    Rights,
    of_message_id,
    on_named,
    same,
    to_consume_as,
    topic_if_any,
    with_record,
)
from cometmq.protocol.bodies.group import LockBatchRequestBody, UnlockBatchRequestBody
from cometmq.protocol.bodies.heartbeat import CheckClientRequestBody, HeartbeatData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.consumer import ConsumeMessageDirectlyRequest, UnregisterClientRequest
from cometmq.remoting import Request


def _heartbeat(request: Request, _: Lookups) -> Needs:
    """A heartbeat needs its consumers only."""
    needs: list[Need] = []
    for consumer in HeartbeatData.decode(request.body).consumer_data_set:
        needs.append(group_need(consumer.group_name))
        needs += [topic_need(each.topic, Action.SUB) for each in consumer.subscription_data_set]
    return needs_of(needs)


def _unregister(request: Request, _: Lookups) -> Needs:
    """The end of a client needs that of a consumer only."""
    group = request.header(UnregisterClientRequest).consumer_group
    return needs_of(group_need(group)) if group else NOTHING


def _lock(request: Request, _: Lookups) -> Needs:
    return needs_of(group_need(LockBatchRequestBody.decode(request.body).consumer_group))


def _unlock(request: Request, _: Lookups) -> Needs:
    return needs_of(group_need(UnlockBatchRequestBody.decode(request.body).consumer_group))


def _lock_of_user(request: Request, _: Lookups) -> Needs:
    return _of_queues(LockBatchRequestBody.decode(request.body))


def _unlock_of_user(request: Request, _: Lookups) -> Needs:
    return _of_queues(UnlockBatchRequestBody.decode(request.body))


def _of_queues(body: LockBatchRequestBody | UnlockBatchRequestBody) -> Needs:
    topics = (topic_need(queue.topic, Action.SUB) for queue in body.mq_set)
    return needs_of(group_need(body.consumer_group), topics)


def _check_client(request: Request, _: Lookups) -> Needs:
    body = CheckClientRequestBody.decode(request.body)
    subscription = body.subscription_data
    topic = None if subscription is None else subscription.topic
    return needs_of(group_need(body.group), topic_if_any(topic, Action.SUB))


def _consume_directly(request: Request, lookups: Lookups) -> Needs:
    """The broker sends only a record of the topic that the header names, if it names one."""
    header = request.header(ConsumeMessageDirectlyRequest)
    group = group_need(header.consumer_group)
    if header.topic:
        return needs_of(group, topic_need(header.topic, Action.SUB))
    record = of_message_id(lookups.topic_of_record, header.msg_id or "", Action.SUB)
    return with_record(record, group)


_HEARTBEAT: Final = Right(_heartbeat, in_body=True)
_UNREGISTER: Final = Right(_unregister)
_CONSUME_DIRECTLY: Final = Right(_consume_directly)
_CONSUMERS: Final = to_consume_as("consumerGroup")

RIGHTS: Final = {
    RequestCode.HEART_BEAT: same(_HEARTBEAT),
    RequestCode.UNREGISTER_CLIENT: same(_UNREGISTER),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Rights(
        plain=_CONSUMERS, users=on_named(SUB_OR_GET, group="consumerGroup")
    ),
    RequestCode.CHECK_CLIENT_CONFIG: Rights(plain=SIGNED, users=Right(_check_client, in_body=True)),
    RequestCode.LOCK_BATCH_MQ: Rights(
        plain=Right(_lock, in_body=True), users=Right(_lock_of_user, in_body=True)
    ),
    RequestCode.UNLOCK_BATCH_MQ: Rights(
        plain=Right(_unlock, in_body=True), users=Right(_unlock_of_user, in_body=True)
    ),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Rights(
        plain=_CONSUMERS, users=on_named(Action.GET, group="consumerGroup")
    ),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: READ,
    RequestCode.GET_ALL_PRODUCER_INFO: READ,
    # The broker sends such requests to consumers, whose responses may show their threads.
    RequestCode.GET_CONSUMER_RUNNING_INFO: Rights(
        plain=_CONSUMERS, users=on_named(Action.GET, group="consumerGroup")
    ),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Rights(
        plain=to_consume_as("group"), users=on_named(Action.GET, topic="topic", group="group")
    ),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: same(_CONSUME_DIRECTLY),
}
