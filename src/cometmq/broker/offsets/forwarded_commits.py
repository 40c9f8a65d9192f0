"""Commits offsets at the elected master while this broker is a slave.

The offsets of a slave are copies of its master's. A commit that only the slave has is lost with the
next election or when the group gets its route: messages are redelivered. If the master gives no
response, the slave takes the commit, since it may be elected next.

A commit that the master has not answered for a while may be older than one that this broker has
taken since. It is dropped then.
"""

from __future__ import annotations

from collections.abc import Awaitable

from cometmq.broker.forwarding import Forwarding
from cometmq.protocol.headers.offset import UpdateConsumerOffsetRequest
from cometmq.remoting import Request, RequestHandler, Response

_Key = tuple[str, str, int]
"""A group, a topic and the id of a queue."""


class ForwardedCommits:
    """Forwards commits to the master of a slave.

    Args:
        commit: commits an offset here.
        forwarding: forwards requests.
    """

    def __init__(self, commit: RequestHandler, forwarding: Forwarding) -> None:
        self._commit = commit
        self._forward = forwarding.wrap(commit, unreached=self._commit_newest)
        self._newest: dict[_Key, Request] = {}
        """The newest commits among those that wait for the master."""

    def handle(self, request: Request) -> Response | Awaitable[Response | None] | None:
        """Commit an offset at the master, or here if this broker is the master or has none."""
        response = self._forward(request)
        if isinstance(response, Awaitable):
            return self._until_answered(request, response)
        if self._newest:
            self._newest.pop(_key(request), None)
        return response

    async def _until_answered(
        self, request: Request, response: Awaitable[Response | None]
    ) -> Response | None:
        key = _key(request)
        self._newest[key] = request
        try:
            return await response
        finally:
            if self._newest.get(key) is request:
                del self._newest[key]

    def _commit_newest(self, request: Request) -> Response | Awaitable[Response | None] | None:
        """Commit an offset here unless this broker has got a newer one since."""
        if self._newest.get(_key(request)) is not request:
            return Response(remark="a newer offset has been committed")
        return self._commit(request)


def _key(request: Request) -> _Key:
    header = request.header(UpdateConsumerOffsetRequest)
    return header.consumer_group, header.topic, header.queue_id
