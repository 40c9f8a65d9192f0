"""Headers of queries for messages by id and by key.

Source: QueryMessageRequestHeader and ViewMessageRequestHeader, RocketMQ 4.9 and 5.3.
"""

from msgspec import field

from cometmq.protocol.headers.base import Header, Int32, Int64, TopicHeader


class QueryMessageRequest(TopicHeader, kw_only=True):
    """QUERY_MESSAGE (12): messages of a topic with a key."""

    topic: str = ""
    key: str = ""
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: bool | None = field(name="_UNIQUE_KEY_QUERY", default=None)
    """Whether the key is a unique id rather than one of the application's keys."""


class QueryMessageResponse(Header, kw_only=True):
    """The response to QUERY_MESSAGE; its body holds the records."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageByIdRequest(Header, kw_only=True):
    """VIEW_MESSAGE_BY_ID (33): the record at an offset of the commit log."""

    offset: Int64
    topic: str | None = None
