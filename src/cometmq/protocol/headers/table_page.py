"""Headers of requests for a page of a broker's table: topics, groups, committed offsets.

Without these fields a response has the whole table. Those of topics and groups are RocketMQ's: its
brokers that do not know them, such as 5.3, ignore them. Those of offsets are not in RocketMQ.

Source: GetAllTopicConfigRequestHeader and GetAllSubscriptionGroupRequestHeader, RocketMQ 5.4.
"""

from cometmq.protocol.headers.base import Header, Int32


class GetAllTopicConfigRequest(Header, kw_only=True):
    """GET_ALL_TOPIC_CONFIG (21)."""

    topic_seq: Int32 | None = None
    """How many topics the requester has."""
    max_topic_num: Int32 | None = None
    data_version: str | None = None
    """The version that they have, as JSON: the page is the first one if there is another by now."""
    mapping_data_version: str | None = None
    """The version of the mappings that the requester has: a page leaves them out if there is no
    other. Only CometMQ's slaves send it, and only CometMQ's masters read it."""


class GetAllTopicConfigResponse(Header, kw_only=True):
    """The response to GET_ALL_TOPIC_CONFIG."""

    total_topic_num: Int32 | None = None


class GetAllSubscriptionGroupRequest(Header, kw_only=True):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), as `GetAllTopicConfigRequest`."""

    group_seq: Int32 | None = None
    max_group_num: Int32 | None = None
    data_version: str | None = None


class GetAllSubscriptionGroupResponse(Header, kw_only=True):
    """The response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    total_group_num: Int32 | None = None


class GetAllConsumerOffsetRequest(Header, kw_only=True):
    """GET_ALL_CONSUMER_OFFSET (43)."""

    offset_seq: Int32 | None = None
    """How many topics with groups the requester has."""
    max_offset_num: Int32 | None = None


class GetAllConsumerOffsetResponse(Header, kw_only=True):
    """The response to GET_ALL_CONSUMER_OFFSET."""

    total_offset_num: Int32 | None = None
