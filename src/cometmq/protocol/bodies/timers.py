"""The body of the response to LIST_TIMER_MESSAGES, which only brokers of CometMQ send."""

from msgspec import field

from cometmq.protocol.bodies.base import Body, Part


class TimerMessage(Part, kw_only=True):
    """A timer message that waits."""

    topic: str
    queue_id: int
    message_id: str
    keys: str = ""
    due_ms: int
    """When it is delivered, as exactly as the broker knows it."""
    is_recalled: bool = False
    sender: str | None = None
    """The account that has sent it; None without access control."""
    store_ms: int
    body_bytes: int
    handle: str = ""
    """The handle that recalls it."""


class TimerMessages(Body, kw_only=True):
    """Timer messages that wait."""

    messages: list[TimerMessage] = field(default_factory=list)
