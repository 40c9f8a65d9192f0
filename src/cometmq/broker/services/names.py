"""Names from the wire, checked before anything is looked up or made under them.

Unknown and illegal names are refused with the codes and texts of RocketMQ. Source: the checks of
PullMessageProcessor, AbstractSendMessageProcessor and TopicValidator, RocketMQ 5.3; the rule for
client ids is ours.
"""

from __future__ import annotations

from cometmq.broker.services.groups import GroupTable
from cometmq.broker.services.topics import TopicTable
from cometmq.model.errors import InvalidNameError, ResponseError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import (
    RETRY_PREFIX,
    TopicConfig,
    check_group_name,
    check_topic_name,
)
from cometmq.protocol.codes import ResponseCode

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
CLIENT_ID_CHARS_MAX = 1024


def check_group(name: str) -> None:
    """Refuse a group's name that breaks the rules.

    Raises:
        ResponseError: 29.
    """
    try:
        check_group_name(name)
    except InvalidNameError as problem:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, str(problem)) from problem


def check_subscribed_topic(name: str) -> None:
    """Refuse a subscribed topic's name that breaks the rules; a retry topic's follows its group's.

    Raises:
        ResponseError: 29.
    """
    try:
        if name.startswith(RETRY_PREFIX):
            check_group_name(name[len(RETRY_PREFIX) :])
        else:
            check_topic_name(name)
    except InvalidNameError as problem:
        raise ResponseError(ResponseCode.INVALID_PARAMETER, str(problem)) from problem


def check_client_id(client_id: str) -> None:
    """Refuse a client id that is empty, endless or not printable.

    Raises:
        ResponseError: 29.
    """
    if not 0 < len(client_id) <= CLIENT_ID_CHARS_MAX or not client_id.isprintable():
        raise ResponseError(
            ResponseCode.INVALID_PARAMETER,
            f"client id {client_id[:40]!r} of {len(client_id)} characters is illegal, expected "
            f"1 to {CLIENT_ID_CHARS_MAX} printable ones",
        )


def known_group(
    groups: GroupTable, name: str, remark: str = "subscription group not exist, {} "
) -> SubscriptionGroupConfig:
    """The settings of a group, made when groups may be made by their first use.

    Args:
        groups: all groups.
        name: as it came.
        remark: what to say when there is none; ``{}`` stands for the name.

    Raises:
        ResponseError: 26, there is no such group; 29, its name is illegal.
    """
    group = groups.get(name)
    if group is None:
        check_group(name)
        group = groups.get_or_create(name)
    if group is None:
        raise ResponseError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark.replace("{}", name) + FAQ
        )
    return group


def known_topic(topics: TopicTable, name: str) -> TopicConfig:
    """The settings of a topic.

    Raises:
        ResponseError: 17, there is no such topic.
    """
    topic = topics.get(name)
    if topic is None:
        raise ResponseError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{name[:300]}] not exist, apply first please! {FAQ}",
        )
    return topic


def check_queue(topic: TopicConfig, queue_id: int) -> None:
    """Refuse a queue that the topic neither reads nor writes.

    Raises:
        ResponseError: 29.
    """
    queues = max(topic.read_queue_nums, topic.write_queue_nums)
    if not 0 <= queue_id < queues:
        raise ResponseError(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] has {queues} queues",
        )
