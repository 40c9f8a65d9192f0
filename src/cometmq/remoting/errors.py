"""Errors of remoting: why no response arrived."""

from __future__ import annotations

from cometmq.model.errors import RemotingError, ResponseError
from cometmq.protocol.command import Command


class ConnectError(RemotingError):
    """The peer cannot be reached; not sent."""


class CallTimeoutError(RemotingError, TimeoutError):
    """No response in time; the peer may have processed the request."""


class ConnectionLostError(RemotingError):
    """The connection broke before the response; the peer may have processed the request."""


class TooManyCallsError(RemotingError):
    """The limit on requests in flight of a connection is reached; not sent."""


def check(response: Command) -> Command:
    """Return the response, which must be a success.

    Raises:
        ResponseError: it is not; with the peer's code and remark.
    """
    if response.code != 0:
        raise ResponseError(response.code, response.remark or "")
    return response
