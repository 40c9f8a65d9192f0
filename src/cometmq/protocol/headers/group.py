"""Headers of the administration of consumer groups.

Source: DeleteSubscriptionGroupRequestHeader, GetConsumeStatsRequestHeader and relatives,
RocketMQ 4.9 and 5.3.
"""

from cometmq.protocol.headers.base import Header, RpcHeader, TopicHeader


class GetSubscriptionGroupConfigRequest(RpcHeader, kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


class DeleteSubscriptionGroupRequest(RpcHeader, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    clean_offset: bool | None = None
    """Whether to delete the group's offsets too, in the spelling of 5.x."""
    remove_offset: bool | None = None
    """The field `clean_offset`, as 4.9 spells it."""


class UpdateAndGetGroupForbiddenRequest(TopicHeader, kw_only=True):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353); without ``readable`` it is a query."""

    group: str
    topic: str
    readable: bool | None = None


class GetConsumerConnectionListRequest(RpcHeader, kw_only=True):
    """GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


class GetProducerConnectionListRequest(RpcHeader, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class GetConsumeStatsRequest(TopicHeader, kw_only=True):
    """GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None
    """Names of topics, each followed by a semicolon; goes before ``topic``."""


class GetBrokerConsumeStatsRequest(Header, kw_only=True):
    """GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool = False


class QueryTopicsByConsumerRequest(RpcHeader, kw_only=True):
    """QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class QuerySubscriptionByConsumerRequest(TopicHeader, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: str
    topic: str | None = None
