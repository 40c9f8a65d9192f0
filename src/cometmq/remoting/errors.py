"""Errors of remoting: no answer came, and why."""

from __future__ import annotations

from cometmq.model.errors import RemotingError, ResponseError
from cometmq.protocol.command import Command


class ConnectError(RemotingError):
    """The peer could not be reached; the request was not sent."""


class CallTimeoutError(RemotingError):
    """No answer came in time; the peer may have acted on the request."""


class ConnectionLostError(RemotingError):
    """The connection broke before the answer; the peer may have acted on the request."""


class TooManyCallsError(RemotingError):
    """More requests wait for answers than the connection allows; this one was not sent."""


def check(answer: Command) -> Command:
    """The answer, which must be a success.

    Raises:
        ResponseError: it is not; with the peer's code and remark.
    """
    if answer.code != 0:
        raise ResponseError(answer.code, answer.remark or "")
    return answer
