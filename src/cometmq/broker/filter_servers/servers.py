"""Handles REGISTER_FILTER_SERVER (301): the filter servers that run class filters for a broker.

A filter server registers every ten seconds. The broker removes it when its connection closes, or
after 30 seconds without a registration. The broker's own registrations at the name servers list
its filter servers, so that routes contain them.

Source: FilterServerManager, RocketMQ 4.2 to 4.9.5, where a change waits for the next registration
of the broker.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.consumer import (
    RegisterFilterServerRequest,
    RegisterFilterServerResponse,
)
from cometmq.remoting import Request, Response
from cometmq.remoting.wire import Wire
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

SILENT_S_MAX = 30.0
SERVERS_MAX = 256
_ADDRESS = re.compile(r"[^\s:;\x00-\x1f]{1,255}:[0-9]{1,5}|\[[0-9A-Fa-f:.%]{2,64}\]:[0-9]{1,5}")


class _Entry:
    """The registration of one filter server."""

    __slots__ = ("address", "seen_s")

    def __init__(self, address: str, seen_s: float) -> None:
        self.address = address
        self.seen_s = seen_s


class FilterServers:
    """The registered filter servers, by connection.

    Args:
        clock: measures how long a filter server has been silent.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.on_change: Callable[[], None] = lambda: None
        """Called when the addresses have changed."""
        self._entries: dict[Wire, _Entry] = {}

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the filter servers, each once, in order."""
        return tuple(sorted({entry.address for entry in self._entries.values()}))

    def register(self, connection: Wire, address: str) -> None:
        """Add a filter server, or note that it is alive.

        Raises:
            ResponseError: the address has another form than ``host:port``, or there are too many.
        """
        if not _ADDRESS.fullmatch(address):
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"filterServerAddr {address[:80]!r}: expected host:port",
            )
        if connection not in self._entries and len(self._entries) >= SERVERS_MAX:
            raise ResponseError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]the broker has {SERVERS_MAX} filter servers and takes no more",
            )
        before = self.addresses()
        self._entries[connection] = _Entry(address, self._clock.monotonic())
        if self.addresses() != before:
            log.info("filter server registered address=%s", address)
            self.on_change()

    def connection_closed(self, connection: Wire) -> None:
        """Remove the filter server of a connection, if it was one."""
        if connection in self._entries:
            self._remove([connection], "its connection closed")

    def sweep(self) -> None:
        """Remove the filter servers that have been silent for too long."""
        oldest_s = self._clock.monotonic() - SILENT_S_MAX
        silent = [each for each, entry in self._entries.items() if entry.seen_s < oldest_s]
        if silent:
            self._remove(silent, f"it was silent for {SILENT_S_MAX:g} s")

    def _remove(self, connections: list[Wire], reason: str) -> None:
        before = self.addresses()
        for connection in connections:
            entry = self._entries.pop(connection)
            log.warning("filter server removed address=%s: %s", entry.address, reason)
        if self.addresses() != before:
            self.on_change()


class FilterServerHandler:
    """Handles registrations.

    Args:
        servers: the registered filter servers.
        broker_name, broker_id: the identity of this broker.
    """

    def __init__(self, servers: FilterServers, *, broker_name: str, broker_id: int) -> None:
        self._servers = servers
        self._header = RegisterFilterServerResponse(broker_name=broker_name, broker_id=broker_id)

    def register(self, request: Request) -> Response:
        """Add a filter server; return which broker it belongs to."""
        address = request.header(RegisterFilterServerRequest).filter_server_addr
        self._servers.register(request.connection, address)
        return Response(header=self._header)
