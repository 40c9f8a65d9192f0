"""Headers of producer sessions, which only brokers of CometMQ have."""

from cometmq.protocol.headers.base import Header, Int64


class OpenProducerSessionRequest(Header, kw_only=True):
    """OPEN_PRODUCER_SESSION (420001): make one attempt the only one that can send."""

    topic: str
    session: str
    """The name that all attempts of a task share."""
    owner: str
    """The name of the attempt alone."""
    batch: Int64
    """The number of the batch; a session never goes back to an older one."""
    epoch: Int64 = 0
    """The epoch that the attempt chooses or has from another broker; 0 for the next one here."""
    expiry_ms: Int64 = 0
    """After how long without use the broker forgets the session; 0 for its own limit."""
    brokers: str = ""
    """The names of all brokers at which the attempt opens the session, joined by semicolons."""


class OpenProducerSessionResponse(Header, kw_only=True):
    """The response to OPEN_PRODUCER_SESSION, also with PRODUCER_FENCED: then without a body."""

    epoch: Int64
    """The newest epoch of the session."""
    brokers: str = ""
    """The names of all brokers at which the session was opened for this batch."""
    is_complete: bool = True
    """False if messages are deleted that were stored after the first opening for this batch."""
