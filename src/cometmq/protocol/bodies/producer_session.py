"""The body of the response to OPEN_PRODUCER_SESSION, which only brokers of CometMQ send."""

from cometmq.protocol.bodies.base import Body


class ProducerSessionBounds(Body, kw_only=True):
    """Where earlier attempts have stored messages: two offsets of each queue, by queue id."""

    begins: list[int]
    """The end of each queue when the session was first opened for this batch."""
    ends: list[int]
    """The end of each queue now; no earlier attempt stores a message there or behind it."""
