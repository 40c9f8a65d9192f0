"""The asyncio client: connections by address, opened when first needed."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from cometmq.protocol.codes import LanguageCode, ResponseCode
from cometmq.protocol.command import OUR_LANGUAGE, Command
from cometmq.protocol.headers.base import Header
from cometmq.remoting.config import RemotingSettings
from cometmq.remoting.connection import Connection, wait_all_closed
from cometmq.remoting.errors import CallTimeoutError, ConnectError
from cometmq.remoting.hooks import OutgoingCall, RpcHook
from cometmq.remoting.inflight import Call
from cometmq.remoting.peer import Peer
from cometmq.remoting.requests import RequestHandler
from cometmq.remoting.tasks import Supervisor
from cometmq.remoting.tls import failure_text

if TYPE_CHECKING:
    from cometmq.remoting.socks import SocksProxies, SocksProxy

log = logging.getLogger(__name__)

CONNECT_S = 3.0
CLOSE_S = 1.0
REFUSED_S = 0.05
"""Time after a refused connection in which calls of its address fail without another attempt."""
REFUSED_MAX = 256
"""The addresses for which that is known; more are simply tried."""
SILENT_S = 1.0
"""A call that waited less does not show that its peer is silent."""
PORT_DIGITS_MAX = 5
CHECKS_PER_IDLE_TIME = 4
CHECK_S_MIN = 0.25
"""How often idle connections are closed, and the shortest time between two checks."""


class ConnectionPolicy(NamedTuple):
    """How connections to peers are opened, and when they are given up."""

    close_silent: bool = False
    """Close a connection when a call over it times out after a second or more in which nothing at
    all came from the peer."""
    retry_leaving: bool = False
    """When a peer responds that it is leaving, repeat the request once over a new connection; the
    old one stays until the peer closes it."""
    proxies: SocksProxies | None = None
    """Which addresses are reached through SOCKS proxies."""


class RemotingClient:
    """Calls peers by ``host:port``; one connection for each address.

    A connection over which nothing moved for ``settings.idle_s`` seconds is closed, unless a call
    waits for its response; the next call opens a new one.

    Args:
        settings: limits of every connection.
        handlers: the handlers of requests from peers.
        tls: the context of TLS connections, None for plain ones.
        name: for logs and tasks.
        hooks: called for every request in this order, for every response in the opposite one.
        on_connect: called with the address of each new connection, before anything is sent.
        language: the language that each request names.
        policy: how connections are opened, and when they are given up.
    """

    def __init__(
        self,
        settings: RemotingSettings | None = None,
        *,
        handlers: Mapping[int, RequestHandler] | None = None,
        tls: ssl.SSLContext | None = None,
        name: str = "client",
        hooks: Sequence[RpcHook] = (),
        on_connect: Callable[[str, Connection], None] | None = None,
        language: LanguageCode = OUR_LANGUAGE,
        policy: ConnectionPolicy = ConnectionPolicy(),  # noqa: B008 (a tuple)
    ) -> None:
        self._settings = settings or RemotingSettings()
        self._handlers = {} if handlers is None else handlers
        self._tls = tls
        self.hooks = tuple(hooks)
        """Hooks, in the order in which they see a request."""
        self.on_connect = on_connect
        """Called with the address of each new connection, before anything is sent over it."""
        self.on_disconnect: Callable[[str], None] | None = None
        """Called with the address of each connection that is lost or closed."""
        self._language = language
        self._policy = policy
        self._leaving: dict[Connection, None] = {}
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._refused: dict[str, tuple[float, str]] = {}
        self._supervisor = Supervisor(name)
        self._closed = False
        self._abandoned: list[Connection] = []
        self._idle: asyncio.Task[None] | None = None

    @property
    def uses_tls(self) -> bool:
        """Whether its connections use TLS."""
        return self._tls is not None

    async def call(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout: float,
        fields: Mapping[str, str] | None = None,
        connection: Connection | None = None,
    ) -> Command:
        """Send a request and wait for its response of any code.

        Args:
            address: the peer.
            code: the request code.
            header: its typed header.
            body: its body.
            timeout: seconds for connecting and for the response.
            fields: further header fields.
            connection: what `connection` returned for this address, to use that one.

        Raises:
            ConnectError: the address does not accept connections; nothing was sent.
            CallTimeoutError: no response arrived in time.
            ConnectionLostError: the connection broke before the response.

        Cancelling stops the waiting; a request already sent stays sent.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if connection is None:
            connection = await self.connection(address, timeout=min(timeout, CONNECT_S))
        left = max(deadline - loop.time(), 0.001)
        response = await self._request(address, connection, code, header, body, left, fields)
        if not self.retire_leaving(address, connection, response):
            return response
        left = deadline - loop.time()
        if left <= 0:
            return response
        connection = await self.connection(address, timeout=min(left, CONNECT_S))
        left = max(deadline - loop.time(), 0.001)
        return await self._request(address, connection, code, header, body, left, fields)

    async def _request(
        self,
        address: str,
        connection: Connection,
        code: int,
        header: Header | None,
        body: bytes,
        timeout: float,
        fields: Mapping[str, str] | None,
    ) -> Command:
        """Call over an open connection, with the hooks around the call."""
        call = self._after_hooks(address, code, header, body, fields) if self.hooks else None
        if call is not None:
            code, header, body, fields = call.code, None, call.body, call.fields or None
        began_s = monotonic()
        try:
            response = await connection.call(code, header, body, timeout=timeout, fields=fields)
        except CallTimeoutError:
            self._close_if_silent(connection, began_s)
            raise
        if call is not None:
            for hook in reversed(self.hooks):
                hook.after_response(address, call, response)
        return response

    def _close_if_silent(self, connection: Connection, began_s: float) -> None:
        """Close a connection if its peer sent nothing while a call waited: it may be cut off."""
        if connection.closed:
            return  # another call has closed it
        waited_s = monotonic() - began_s
        if not self._policy.close_silent or waited_s < SILENT_S or connection.received_s > began_s:
            return
        log.warning(
            "closed a connection: no data before the deadline peer=%s seconds=%.1f",
            connection.peer_text,
            waited_s,
        )
        connection.abort()

    def retire_leaving(self, address: str, connection: Connection, response: Command) -> bool:
        """Return whether a request is to be repeated over a new connection: the peer is leaving.

        No new requests are sent over this one; calls in flight still wait for responses.
        """
        if response.code != ResponseCode.GO_AWAY or not self._policy.retry_leaving:
            return False
        log.info("repeating a request: the peer is shutting down address=%s", address)
        self._retire(address, connection)
        return True

    def _retire(self, address: str, connection: Connection) -> None:
        connection.is_leaving = True
        if self._connections.get(address) is connection:
            del self._connections[address]
            if not connection.closed:
                self._leaving[connection] = None

    def ready(self, address: str) -> Connection | None:
        """Return the connection to an address if a request can be written to it now.

        None if there are hooks, or if a call would have to wait first.
        """
        found = self._connections.get(address)
        return found if found is not None and found.ready and not self.hooks else None

    def address_of(self, connection: Peer) -> str | None:
        """Return the address that a connection was opened for; None if it takes no new requests."""
        for address, known in self._connections.items():
            if known is connection:
                return address
        return None

    def calls(self) -> list[Call]:
        """Return the requests in flight over all connections."""
        connections = [*self._connections.values(), *self._leaving]
        return [call for connection in connections for call in connection.inflight.calls()]

    def note_silence(self, connection: Connection, began_s: float) -> None:
        """Note that a request sent at ``began_s`` over a ready connection got no response.

        ``began_s`` is a time of `time.monotonic` or of a running loop: the loops of asyncio and
        uvloop read the same clock, uvloop once for each round.
        """
        self._close_if_silent(connection, began_s)

    async def oneway(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        fields: Mapping[str, str] | None = None,
        remark: str | None = None,
    ) -> None:
        """Send a one-way request; ``remark`` is a text for people.

        Raises:
            ConnectError: the address does not accept connections.
            CallTimeoutError: the peer takes no requests; not sent.
            ConnectionLostError: the connection broke; not sent.
        """
        connection = await self.connection(address)
        await connection.until_writable(CONNECT_S)
        if not self.hooks:
            connection.oneway(code, header, body, fields=fields, remark=remark)
            return
        call = self._after_hooks(address, code, header, body, fields)
        connection.oneway(call.code, body=call.body, fields=call.fields or None, remark=remark)

    def _after_hooks(
        self,
        address: str,
        code: int,
        header: Header | None,
        body: bytes,
        fields: Mapping[str, str] | None,
    ) -> OutgoingCall:
        """Return the request as the hooks have changed it."""
        call = OutgoingCall.of(code, header, body, fields)
        for hook in self.hooks:
            hook.before_request(address, call)
        return call

    async def connection(self, address: str, *, timeout: float = CONNECT_S) -> Connection:
        """Return the open connection to ``address``; open it if there is none.

        Raises:
            ConnectError: it cannot be made within ``timeout`` seconds.
        """
        found = self._connections.get(address)
        if found is not None and not found.closed:
            return found
        if self._closed:
            raise ConnectError(f"cannot connect to {address}: this client is closed")
        refused_s, reason = self._refused.get(address, (0.0, ""))
        if reason and asyncio.get_running_loop().time() - refused_s < REFUSED_S:
            raise ConnectError(reason)
        opening = self._opening.get(address)
        if opening is None:
            opening = self._supervisor.spawn(
                self._open(address), f"connect-{address}", awaited=True
            )
            self._opening[address] = opening
            opening.add_done_callback(lambda task: self._opened(address, task))
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wait([opening])
        except TimeoutError:
            raise ConnectError(f"cannot connect to {address} within {timeout:g} s") from None
        if opening.cancelled():
            raise ConnectError(f"cannot connect to {address}: this client is closed")
        opened = opening.result()
        if opened.closed:
            raise ConnectError(f"cannot connect to {address}: the peer closed the connection")
        return opened

    def _opened(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()

    async def _open(self, address: str) -> Connection:
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        connection = self._connection()
        options: dict[str, Any] = {"ssl": self._tls} if self._tls else {}
        proxies = self._policy.proxies
        proxy = None if proxies is None else proxies.to(host)
        try:
            async with asyncio.timeout(CONNECT_S):
                if proxy is None:
                    await loop.create_connection(lambda: connection, host, port, **options)
                else:
                    await self._open_through(proxy, connection, host, port)
        except (OSError, ValueError) as problem:  # ValueError: what no host name has
            connection.abort()
            reason = failure_text(problem) or self._reason_without_text(problem)
            text = f"cannot connect to {address}: {reason}"
            if isinstance(problem, ConnectionRefusedError):
                if len(self._refused) >= REFUSED_MAX:
                    self._refused.clear()
                self._refused[address] = loop.time(), text
            raise ConnectError(text) from None
        except asyncio.CancelledError:
            connection.abort()
            raise
        if self._closed:
            connection.abort()
            raise ConnectError(f"cannot connect to {address}: this client is closed")
        self._connections[address] = connection
        self._refused.pop(address, None)
        self._start_idle_checks()
        if self.on_connect is not None:
            self.on_connect(address, connection)
        return connection

    def _reason_without_text(self, problem: Exception) -> str:
        """Return why a connection cannot be made if the exception has no text."""
        if self.uses_tls and isinstance(problem, ConnectionError):
            return "closed during the TLS handshake; the server may accept only plain connections"
        return "no response"

    async def _open_through(
        self, proxy: SocksProxy, connection: Connection, host: str, port: int
    ) -> None:
        loop = asyncio.get_running_loop()
        opened = await proxy.connect(host, port)
        options: dict[str, Any] = {"ssl": self._tls, "server_hostname": host} if self._tls else {}
        try:
            await loop.create_connection(lambda: connection, sock=opened, **options)
        except BaseException:
            opened.close()
            raise

    def _connection(self) -> Connection:
        connection = Connection(
            self._handlers,
            settings=self._settings,
            supervisor=self._supervisor,
            on_close=self._forget,
            language=self._language,
        )
        connection.is_client = True
        return connection

    def _forget(self, connection: Connection) -> None:
        self._leaving.pop(connection, None)
        for address, known in list(self._connections.items()):
            if known is connection:
                del self._connections[address]
                if self.on_disconnect is not None:
                    self.on_disconnect(address)

    def _start_idle_checks(self) -> None:
        """Close idle connections at intervals, once the first connection is open."""
        if self._idle is None:
            check_s = max(self._settings.idle_s / CHECKS_PER_IDLE_TIME, CHECK_S_MIN)
            self._idle = self._supervisor.every(check_s, self._close_idle, "idle")

    def _close_idle(self) -> None:
        oldest = asyncio.get_running_loop().time() - self._settings.idle_s
        for connection in [*self._connections.values(), *self._leaving]:
            if connection.last_active_s >= oldest or connection.busy:
                continue
            if connection.closed:  # since the last check, and the peer does not take the rest
                connection.abort()
                continue
            log.info("closed an idle connection peer=%s", connection.peer_text)
            connection.close()

    def disconnect(self, address: str) -> None:
        """Close the connection to ``address``, if there is one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        """Drop the connections without closing them: they belong to another process."""
        self._closed = True
        self._abandoned = [*self._connections.values(), *self._leaving]
        for connection in self._abandoned:
            connection.is_leaving = True
        self._connections.clear()
        self._opening.clear()

    async def close(self) -> None:
        """Close all connections; waiting calls end with ConnectionLostError."""
        self._closed = True
        connections = [*self._connections.values(), *self._leaving]
        for connection in connections:
            connection.close()
        await wait_all_closed(connections, CLOSE_S)
        for connection in connections:
            connection.abort()
        await self._supervisor.cancel()

    def reopen(self) -> None:
        """Accept calls again after `close`."""
        self._closed, self._idle = False, None


def split_address(address: str) -> tuple[str, int]:
    """Take ``host:port`` apart.

    Raises:
        ConnectError: it is not of this form.
    """
    host, colon, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX
    is_host = host.isprintable()  # C libraries end a name at a null character
    if not colon or not is_host or not is_number or not 0 < int(port) < 65536:
        raise ConnectError(f"address {address!r:.300}: expected host:port")
    return host.strip("[]"), int(port)
