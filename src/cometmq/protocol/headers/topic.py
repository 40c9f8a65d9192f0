"""Headers of the administration of topics.

Source: CreateTopicRequestHeader, DeleteTopicRequestHeader and relatives, RocketMQ 4.9 and 5.3.
"""

from cometmq.protocol.headers.base import Header, Int32, Int64, TopicHeader


class UpdateAndCreateTopicRequest(TopicHeader, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC (17) and UPDATE_AND_CREATE_STATIC_TOPIC (513)."""

    topic: str
    default_topic: str = ""
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    """Changes to the topic's attributes: ``+key=value,-key``."""
    force: bool | None = None


class UpdateAndCreateStaticTopicResponse(Header, kw_only=True):
    """The response of a broker of CometMQ to UPDATE_AND_CREATE_STATIC_TOPIC."""

    ended: str | None = None
    """The physical ends of queues that it has lost: ``queue:end``, joined by commas. No message
    will be stored behind them."""


class _OneTopic(TopicHeader, kw_only=True):
    """The field of requests about one topic."""

    topic: str


class DeleteTopicInBrokerRequest(_OneTopic):
    """DELETE_TOPIC_IN_BROKER (215)."""


class GetTopicConfigRequest(_OneTopic):
    """GET_TOPIC_CONFIG (351)."""


class GetTopicStatsInfoRequest(_OneTopic):
    """GET_TOPIC_STATS_INFO (202)."""


class QueryTopicConsumeByWhoRequest(_OneTopic):
    """QUERY_TOPIC_CONSUME_BY_WHO (300)."""


class QueryConsumeTimeSpanRequest(_OneTopic, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    group: str = ""


class QueryConsumeQueueRequest(TopicHeader, kw_only=True):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None
