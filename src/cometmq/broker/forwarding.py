"""Forwards what clients send to a slave to its master, if a controller elects the master.

Clients of RocketMQ look for a new route every 30 seconds, and send to the address of the old master
until then. A broker that is a slave when it returns after a crash, or because another broker was
elected, forwards messages and decisions of transactions, and responds as its master does, which
alone stores them. Such a request has a remark, and is not forwarded again: two slaves may take each
other for the master for a moment.

If the response of the master is lost, the request may have been processed. Every refusal would say
that nothing is stored, so the connection of the client is closed instead, as it would be if the
client had sent to the master.

With access control only signed requests are forwarded: the master knows the sender of another one
by the certificate or the address of its connection, and would take the slave for the sender.

RocketMQ's slaves refuse these requests, as ours do without a controller.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.broker.checks import sent_to_slave
from cometmq.broker.role import Role
from cometmq.protocol.codes import FORWARDED, ResponseCode
from cometmq.remoting import (
    CallTimeoutError,
    ConnectError,
    ConnectionLostError,
    RemotingClient,
    Request,
    RequestHandler,
    Response,
    TooManyCallsError,
)

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 3.0
"""Timeout of one forwarded request: as long as the timeout of clients."""
BYTES_MAX: Final = 64 * 1024 * 1024
"""The limit of all forwarded requests in flight; further ones are refused."""
REQUEST_BYTES: Final = 16 * 1024
"""Bytes that a request counts beside its body, so that 4,096 may be in flight."""


class Forwarding:
    """Forwards requests while this broker is a slave.

    Args:
        role: whether it is one, and of which master.
        client: sends requests to the master.
        needs_signature: returns whether requests with a code need a signature or something that
            proves the sender as well; None if no request does.
    """

    def __init__(
        self,
        role: Role,
        client: RemotingClient,
        needs_signature: Callable[[int], bool] | None = None,
    ) -> None:
        self._role = role
        self._client = client
        self._needs_signature = needs_signature
        self._in_flight_bytes = 0

    def wrap(self, handler: RequestHandler) -> RequestHandler:
        """Return a handler that forwards requests if it can, and else calls this one."""

        def handle(request: Request) -> Response | Awaitable[Response | None] | None:
            master = self._role.master_address if self._role.is_slave else ""
            if (
                not master
                or request.command.remark == FORWARDED
                or self._lacks_signature(request)
                or self._in_flight_bytes + _size_of(request) > BYTES_MAX
            ):
                return handler(request)
            return self._forward(request, master)

        return handle

    def _lacks_signature(self, request: Request) -> bool:
        needs_signature = self._needs_signature
        return (
            needs_signature is not None
            and not request.command.access_key
            and needs_signature(request.code)
        )

    async def _forward(self, request: Request, master: str) -> Response | None:
        size = _size_of(request)
        self._in_flight_bytes += size
        try:
            connection = await self._client.connection(master, timeout=TIMEOUT_S)
            response = await connection.call(
                request.code,
                body=request.body,
                timeout=TIMEOUT_S,
                fields=request.command.fields,
                remark=FORWARDED,
            )
        except (ConnectError, TooManyCallsError) as problem:
            log.debug("cannot forward a request: %s", problem)
            raise sent_to_slave() from problem
        except (CallTimeoutError, ConnectionLostError) as problem:
            log.debug("no response to a forwarded request: %s", problem)
            if not request.oneway:
                request.connection.abort()
            return None
        finally:
            self._in_flight_bytes -= size
        if response.code == ResponseCode.GO_AWAY:  # a master of RocketMQ that stops
            raise sent_to_slave()
        fields = response.fields if response.has_fields else None
        return Response(response.code, response.remark, fields=fields, body=response.body)


def _size_of(request: Request) -> int:
    return len(request.body) + REQUEST_BYTES
