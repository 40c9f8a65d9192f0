"""Forwards what clients send to a slave to its master, if a controller elects the master.

Clients of RocketMQ look for a new route every 30 seconds, and send to the address of the old master
until then. A broker that is a slave when it returns after a crash, or because another broker was
elected, forwards requests, and responds as its master does:

    sends, decisions of transactions    the master alone stores them; a slave refuses them
    queue locks                         the master alone grants them; a slave grants some only
                                        while it knows no master
    commits and queries of offsets      if the master gives no response, the slave takes commits,
                                        and responds with the offsets that it has
    pops, acknowledgements of pops      the master alone knows what is in flight; it may hold a pop

A forwarded request has a remark, and is not forwarded again: two slaves may take each other for the
master for a moment.

If the response of the master to a send or a decision is lost, it may have been processed. Every
refusal would say that nothing is stored, so the connection of the client is closed instead, as it
would be if the client had sent to the master.

A broker that has just started does not know its master for a moment. What a slave can do without
its master waits for that: a commit that only this broker has would be missing at the master.

With access control only signed requests are forwarded: the master knows the sender of another one
by the certificate or the address of its connection, and would take the slave for the sender.

RocketMQ's slaves forward nothing, and ours do not without a controller. They take commits, and
grant locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.broker.checks import sent_to_slave
from cometmq.broker.role import Role
from cometmq.protocol.codes import FORWARDED, ResponseCode
from cometmq.protocol.command import Command
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
DECIDED_S: Final = 2.0
"""How long requests wait for the first decision of the controllers, mostly about a second."""
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
        decided: set once the controllers have decided the role for the first time.
    """

    def __init__(
        self,
        role: Role,
        client: RemotingClient,
        needs_signature: Callable[[int], bool] | None = None,
        decided: asyncio.Event | None = None,
    ) -> None:
        self._role = role
        self._client = client
        self._needs_signature = needs_signature
        self._decided = decided
        self._in_flight_bytes = 0

    def wrap(
        self,
        handler: RequestHandler,
        unreached: RequestHandler | None = None,
        held_s: Callable[[Request], float] = lambda _: 0.0,
    ) -> RequestHandler:
        """Return a handler that forwards requests if it can, and else calls this one.

        Args:
            handler: handles the requests of a master, and those that cannot be forwarded.
            unreached: handles a request to which the master gives no response; None if only a
                master can.
            held_s: returns for how long the master may hold a request.
        """

        def handle(request: Request) -> Response | Awaitable[Response | None] | None:
            if not self._role.is_slave:
                return handler(request)
            if request.command.remark == FORWARDED:
                if unreached is not None:
                    raise sent_to_slave()  # the slave that has forwarded it knows what to do
                return handler(request)
            if (
                self._lacks_signature(request)
                or self._in_flight_bytes + _size_of(request) > BYTES_MAX
            ):
                return handler(request)
            if unreached is not None and self._decided is not None and not self._decided.is_set():
                return self._forward_once_decided(
                    request, handler, unreached, self._decided, held_s(request)
                )
            if master := self._role.master_address:
                return self._forward(request, master, unreached, held_s(request))
            return handler(request)

        return handle

    async def _forward_once_decided(
        self,
        request: Request,
        handler: RequestHandler,
        unreached: RequestHandler,
        decided: asyncio.Event,
        held_s: float,
    ) -> Response | None:
        """Wait for the first decision of the controllers, then go on."""
        size = _size_of(request)
        self._in_flight_bytes += size
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DECIDED_S):
                    await decided.wait()
        finally:
            self._in_flight_bytes -= size
        if self._role.is_slave and (master := self._role.master_address):
            return await self._forward(request, master, unreached, held_s)
        return await _finish(handler, request)

    def _lacks_signature(self, request: Request) -> bool:
        needs_signature = self._needs_signature
        return (
            needs_signature is not None
            and not request.command.access_key
            and needs_signature(request.code)
        )

    async def _forward(
        self, request: Request, master: str, unreached: RequestHandler | None, held_s: float
    ) -> Response | None:
        size = _size_of(request)
        self._in_flight_bytes += size
        try:
            connection = await self._client.connection(master, timeout=TIMEOUT_S)
            response = await connection.call(
                request.code,
                body=request.body,
                timeout=TIMEOUT_S + held_s,
                fields=request.command.fields,
                remark=FORWARDED,
            )
        except (ConnectError, TooManyCallsError) as problem:
            log.debug("cannot forward a request: %s", problem)
            if unreached is None:
                raise sent_to_slave() from problem
        except (CallTimeoutError, ConnectionLostError) as problem:
            log.debug("no response to a forwarded request: %s", problem)
            if unreached is None:
                if not request.oneway:
                    request.connection.abort()
                return None
        else:
            if not _is_refused(response, unreached):
                fields = response.fields if response.has_fields else None
                return Response(response.code, response.remark, fields=fields, body=response.body)
            if unreached is None:
                raise sent_to_slave()
        finally:
            self._in_flight_bytes -= size
        return await _finish(unreached, request)


def _is_refused(response: Command, unreached: RequestHandler | None) -> bool:
    """Return whether the master stops, or a broker is not the master any more."""
    if response.code == ResponseCode.GO_AWAY:  # a master of RocketMQ that stops
        return True
    return unreached is not None and response.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def _finish(handler: RequestHandler, request: Request) -> Response | None:
    """Handle a request that was not forwarded; the frames behind it do not wait."""
    try:
        result = handler(request)
    finally:
        request.is_exclusive = False
    if isinstance(result, Awaitable):
        return await result
    return result


def _size_of(request: Request) -> int:
    return len(request.body) + REQUEST_BYTES
