"""Errors of remoting: why no response arrived."""

from __future__ import annotations

from cometmq.model.errors import RemotingError, ResponseError
from cometmq.protocol.command import Command


class ConnectError(RemotingError):
    """The peer cannot be reached; not sent.

    Example:
        try:
            await admin.broker_runtime_info("127.0.0.1:1")
        except ConnectError as error:
            print(error)
    """


class CallTimeoutError(RemotingError, TimeoutError):
    """No response in time; the peer may have processed the request.

    Example:
        try:
            await admin.cluster_info()
        except CallTimeoutError as error:
            print(error)
    """


class ConnectionLostError(RemotingError):
    """The connection broke before the response; the peer may have processed the request.

    Example:
        try:
            await admin.cluster_info()
        except ConnectionLostError as error:
            print(error)
    """


class TooManyCallsError(RemotingError):
    """The limit on requests in flight of a connection is reached; not sent.

    Example:
        try:
            await asyncio.gather(*(admin.cluster_info() for _ in range(10)))
        except TooManyCallsError as error:
            print(error)
    """


def check(response: Command) -> Command:
    """Return the response, which must be a success.

    Raises:
        ResponseError: it is not; with the peer's code and remark.
    """
    if response.code != 0:
        raise ResponseError(response.code, response.remark or "")
    return response
