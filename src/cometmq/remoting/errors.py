"""Errors of remoting: why no response arrived."""

from __future__ import annotations

from cometmq.model.errors import RemotingError, ResponseError
from cometmq.protocol.command import Command


class ConnectError(RemotingError):
    """The peer cannot be reached; not sent."""


class CallTimeoutError(RemotingError):
    """No response in time; the peer may have processed the request."""


class ConnectionLostError(RemotingError):
    """The connection broke before the response; the peer may have processed the request."""


class TooManyCallsError(RemotingError):
    """The limit on requests in flight of a connection is reached; not sent."""


def check(answer: Command) -> Command:
    """Return the response, which must be a success.

    Raises:
        ResponseError: it is not; with the peer's code and remark.
    """
    if answer.code != 0:
        raise ResponseError(answer.code, answer.remark or "")
    return answer
