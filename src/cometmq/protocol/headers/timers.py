"""Headers of requests about timer messages that only brokers of CometMQ serve."""

from cometmq.protocol.headers.base import Header, Int32, Int64


class ListTimerMessagesRequest(Header, kw_only=True):
    """LIST_TIMER_MESSAGES (420002): show messages that wait, in the order of their slots."""

    topic: str | None = None
    """Only messages of this topic."""
    key: str | None = None
    """Only messages with this unique id, or this key."""
    begin_ms: Int64 = 0
    """Only messages that are due after that."""
    max_num: Int32 = 100


class ListTimerMessagesResponse(Header, kw_only=True):
    """The response to LIST_TIMER_MESSAGES."""

    next_ms: Int64 | None = None
    """Where the next request begins; None if no more messages wait."""
    left_out: Int32 = 0
    """Messages and recalls of one slot that are too many for one response."""
