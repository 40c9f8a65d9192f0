"""Access control that knows no account and refuses no request."""

from __future__ import annotations

from collections.abc import Awaitable

from cometmq.protocol.command import Command
from cometmq.remoting import Connection, Request, RequestHandler, Response


class OpenAccess:
    """Serves all requests; their senders have no account."""

    def knows(self, connection: Connection, command: Command) -> bool:
        return False

    def guard(
        self, request: Request, handler: RequestHandler
    ) -> Response | Awaitable[Response | None] | None:
        return handler(request)
