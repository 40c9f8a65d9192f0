"""The asyncio server: accepts connections, plain and TLS on one port.

The first byte distinguishes TLS from a plain frame; it is read before a transport exists, so that
nothing of the handshake is lost. A connection is opened when its first frame is there (`Arrivals`).

The modes are RocketMQ's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from time import monotonic
from typing import Any, Protocol

from cometmq.model.address import host_and_port
from cometmq.model.errors import ConfigError
from cometmq.protocol.command import Command
from cometmq.protocol.frame import PREFIX_BYTES
from cometmq.remoting.arrivals import Arrival, Arrivals
from cometmq.remoting.config import RemotingSettings, TlsSettings
from cometmq.remoting.connection import Connection, wait_all_closed
from cometmq.remoting.latencies import Latencies
from cometmq.remoting.listener import Listener
from cometmq.remoting.paced_queue import PacedQueue
from cometmq.remoting.requests import Request, RequestHandler, Response
from cometmq.remoting.slow_requests import SlowRequests
from cometmq.remoting.tasks import Supervisor
from cometmq.remoting.tls import failure_text, server_context
from cometmq.remoting.wire import STRANGER_BYTES_MAX, FastPath, WriteBatch, write_batch_of
from cometmq.system.failure_log import RateLimitedLog
from cometmq.system.files import end_of_socket_descriptors
from cometmq.system.platforms import SYSTEM

log = logging.getLogger(__name__)

HEADER_BYTES_MAX = 512 * 1024
"""The longest header of a request. The longest that clients send list a group's topics or carry the
properties of a message, which have 32 KiB at most; large data is in bodies."""
UNREAD_BYTES_MIN = 64 * 1024
"""A peer that leaves so much unread counts for the limit of all connections, and is not read until
it has read most of it. Source: the default of Netty's WriteBufferWaterMark."""
KERNEL_UNSENT_BYTES_MAX = 128 * 1024
"""The kernel takes no more for a connection while so much of it cannot be sent yet. Without a limit
it copies megabytes for a peer that does not read, until the memory of all sockets is used up."""
FIRST_UNREAD_BYTES_MIN = 16 * 1024
"""`UNREAD_BYTES_MIN` until a peer has read a large response."""
FIRST_KERNEL_UNSENT_BYTES_MAX = 32 * 1024
"""`KERNEL_UNSENT_BYTES_MAX` until a peer has read a large response: thousands of peers may request
one and never read it, and the copy of the kernel is most of the work for such a peer."""
OPENINGS_PER_ITERATION = 1
"""Connections that one iteration of the event loop opens: others are served in between. Many that
were accepted earlier may send their first bytes together."""
CLOSES_PER_ITERATION = 32
"""Connections that one iteration of the event loop closes because they are idle, or because their
peers have ended them."""
HANDSHAKE_S = 30.0
ABORT_S = 0.2


class Access(Protocol):
    """Decides which requests are served."""

    def knows(self, connection: Connection, command: Command, /) -> bool:
        """Return whether the sender of a request has an account, by its header alone.

        Without one it may send no large frames.
        """

    def guard(
        self, request: Request, handler: RequestHandler, /
    ) -> Response | Awaitable[Response | None] | None:
        """Handle a request, or refuse it: see `Guard` of `cometmq.remoting.requests`."""


class RemotingServer:
    """One listening port.

    Args:
        handlers: request code to handler.
        settings: limits of every connection.
        tls: how to treat TLS.
        unknown: handles request codes without a handler; by default it responds with code 3.
        name: for logs and tasks.
        on_close: called with every connection that ends.
        access: decides which requests are served; None for all.
        latencies: counts how long responses take, for metrics.
    """

    def __init__(
        self,
        handlers: Mapping[int, RequestHandler],
        *,
        settings: RemotingSettings | None = None,
        tls: TlsSettings | None = None,
        unknown: RequestHandler | None = None,
        name: str = "server",
        on_close: Callable[[Connection], None] | None = None,
        access: Access | None = None,
        latencies: Latencies | None = None,
    ) -> None:
        self._handlers = handlers
        self._settings = settings or RemotingSettings()
        self._tls = tls or TlsSettings(mode="disabled")
        self._unknown = unknown
        self._name = name
        self._on_close = on_close
        self._access = access
        self._guard = None if access is None else access.guard
        self._latencies = latencies
        self.fast_path: FastPath | None = None
        """The fast path of connections that are opened from now on."""
        self._connections: dict[Connection, None] = {}
        self._arrivals: Arrivals | None = None
        """Accepted connections without a first frame."""
        self._opening: dict[socket.socket, None] = {}
        """Connections with a first frame that are not open yet."""
        self._to_open = PacedQueue(self._begin_opening, OPENINGS_PER_ITERATION)
        """The sockets of `_opening` whose opening has not begun, and whether each speaks TLS."""
        self._idle_ones = PacedQueue(self._close_if_idle, CLOSES_PER_ITERATION)
        self._ended = PacedQueue[Callable[[], object]](lambda end: end(), CLOSES_PER_ITERATION)
        """Each ends a connection whose peer sends no more."""
        self._problems = RateLimitedLog(log, f"connections refused or closed server={name}")
        self._idle_closed = RateLimitedLog(
            log, f"idle connections closed server={name}", level=logging.INFO
        )
        limit_ms = self._settings.slow_request_ms
        self._slow = SlowRequests(limit_ms, name) if limit_ms else None
        self._supervisor = Supervisor(name)
        self._requests = Supervisor(f"{name}.requests")
        self._listener = Listener(name, self._accepted)
        self._context: ssl.SSLContext | None = None
        self._stopping = False
        self._idle: asyncio.Task[None] | None = None
        self._write_batch: WriteBatch | None = None

    @property
    def port(self) -> int:
        """The port that is bound, known once started."""
        assert self._listener.port, "not started"
        return self._listener.port

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    @property
    def arriving(self) -> int:
        """The number of accepted connections that have not sent a first frame."""
        return 0 if self._arrivals is None else len(self._arrivals)

    async def start(
        self,
        host: str,
        port: int,
        *,
        choice: str = "listenPort or the port option sets another one",
    ) -> None:
        """Bind and accept.

        Args:
            host: the address.
            port: the port; 0 for a free one.
            choice: what chooses another port, for the error if this one is in use.

        Raises:
            ConfigError: the address cannot be bound, or the TLS files cannot be used.
        """
        if self._tls.mode != "disabled" and (self._tls.certificate or self._tls.trusted):
            self._context = server_context(self._tls)
        loop = asyncio.get_running_loop()
        self._write_batch = write_batch_of(loop)
        budget = self._write_batch.budget
        budget.bytes_max = self._settings.connection_buffers_max
        try:
            self._listener.start(host, port, self._settings.backlog)
        except OSError as problem:
            met = f"{self._name}: cannot listen on {host_and_port(host, port)}: {problem.strerror}"
            in_use = problem.errno == errno.EADDRINUSE
            raise ConfigError(f"{met}; {choice}" if in_use else met) from None
        self._arrivals = Arrivals(
            loop,
            budget,
            # Where TLS is required, the first byte shows a connection that is refused.
            wanted=None if self._tls.mode == "enforcing" else self._wanted_bytes,
            opens=self._arrived,
            warn=self._problems.add,
        )
        check_s = max(self._settings.idle_s / 4, 0.25)
        self._idle = self._supervisor.every(check_s, self._close_idle, "idle")

    async def stop(self, grace_s: float = 3.0) -> None:
        """Accept no connections, wait for requests in progress, then close every connection.

        Half of ``grace_s`` seconds is for the responses, the rest for peers to read them.
        """
        self.stop_accepting()
        await self._end_opening()
        await self._requests.drain(grace_s / 2)
        for connection in list(self._connections):
            connection.close()
        await wait_all_closed(self._connections, grace_s / 2)
        for connection in list(self._connections):
            connection.abort()
        await wait_all_closed(self._connections, ABORT_S)
        await self._requests.cancel()
        self._problems.settle(now=True)
        if self._slow is not None:
            self._slow.settle(now=True)

    async def _end_opening(self) -> None:
        """End the connections that are being opened.

        It shuts their sockets down; cancelling a handshake at the wrong moment would leave a
        connection that is never closed.
        """
        if self._idle is not None:
            self._idle.cancel()
        if self._arrivals is not None:
            self._arrivals.close()
            self._arrivals = None
        while self._to_open.waiting:
            accepted, _ = self._to_open.waiting.popleft()
            del self._opening[accepted]
            accepted.close()
        while self._ended.waiting:
            self._ended.waiting.popleft()()
        sockets = [connection.socket for connection in self._connections]
        connected = {own.fileno() for own in sockets if own is not None}
        for opening in self._opening:
            # A connection that is open, although its task has not ended, is closed with the others.
            if opening.fileno() not in connected:
                with contextlib.suppress(OSError):
                    opening.shutdown(socket.SHUT_RDWR)
        await self._supervisor.drain(ABORT_S)
        await self._supervisor.cancel()

    def stop_accepting(self) -> None:
        """Accept no new connections; open ones stay open."""
        self._stopping = True
        self._listener.stop()

    # --- accepting ----------------------------------------------------------------------------

    def _accepted(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        end = end_of_socket_descriptors()
        if end is not None and accepted.fileno() >= end:
            self._refuse(
                accepted,
                f"{end} files are open, the others are for the store; raise the limit of open"
                " files (ulimit -n, LimitNOFILE)",
            )
            return
        count = len(self._connections) + len(self._opening) + self.arriving
        if count >= self._settings.connections_max:
            limit = self._settings.connections_max
            self._refuse(accepted, f"{limit} are open (connectionsMax)")
            return
        assert self._arrivals is not None
        self._arrivals.add(accepted, address)

    def _wanted_bytes(self, length: int, word: int) -> int:
        """Return how much of a first frame has to arrive before its connection is opened.

        A frame that is refused by its first bytes is not waited for.
        """
        frame_bytes, header_bytes = 4 + length, word & 0xFFFFFF
        if frame_bytes > self._settings.frame_bytes_max or header_bytes > HEADER_BYTES_MAX:
            return 0
        if self._access is not None and length > STRANGER_BYTES_MAX:
            return PREFIX_BYTES + header_bytes
        return frame_bytes

    def _refuse(self, accepted: socket.socket, reason: str) -> None:
        accepted.close()
        self._problems.add("refused a connection server=%s: %s", self._name, reason)

    def _arrived(self, accepted: socket.socket, is_tls: bool) -> None:
        if not is_tls and self._tls.mode == "enforcing":
            self._refuse(accepted, "plain connection met, TLS is required")
            return
        self._opening[accepted] = None
        self._to_open.add([(accepted, is_tls and self._tls.mode != "disabled")])

    def _begin_opening(self, opening: tuple[socket.socket, bool]) -> None:
        self._supervisor.spawn(self._open(*opening), "open")

    async def _open(self, accepted: socket.socket, is_tls: bool) -> None:
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if (option := SYSTEM.TCP_UNSENT_MAX) is not None:
                with contextlib.suppress(OSError):  # sandboxes and old kernels lack it
                    accepted.setsockopt(socket.IPPROTO_TCP, option, FIRST_KERNEL_UNSENT_BYTES_MAX)
            if is_tls and self._context is None:
                self._context = server_context(self._tls)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection,
                accepted,
                ssl=self._context if is_tls else None,
                ssl_handshake_timeout=HANDSHAKE_S if is_tls else None,
            )
        except (OSError, TimeoutError, ConfigError) as problem:
            if isinstance(problem, ConnectionError):
                accepted.close()
            else:
                self._refuse(accepted, failure_text(problem) or "nothing received in time")
            # It leads to the frames of the handshake, which lead to it: garbage with large buffers.
            problem.__traceback__ = None
        except asyncio.CancelledError:
            accepted.close()
            raise
        finally:
            self._opening.pop(accepted, None)

    def _connection(self) -> Connection:
        connection = Connection(
            self._handlers,
            settings=self._settings,
            supervisor=self._requests,
            on_open=self._opened,
            on_close=self._closed,
            fast_path=self.fast_path,
            guard=self._guard,
        )
        if self._unknown is not None:
            connection.unknown = self._unknown
        connection.latencies = self._latencies
        connection.header_bytes_max = HEADER_BYTES_MAX
        connection.transport_bytes_max = FIRST_UNREAD_BYTES_MIN
        connection.has_read = _take_more
        connection.ended = self._ended
        connection.warn = self._problems.add
        if self._access is not None:
            connection.may_be_large = self._may_be_large
        connection.slow = self._slow
        return connection

    def _may_be_large(self, connection: Connection, command: Command) -> bool:
        if command.is_response:  # clients do not sign these
            return connection.inflight.awaits(command.opaque)
        return self._access is None or self._access.knows(connection, command)

    def _opened(self, connection: Connection) -> None:
        self._connections[connection] = None
        if self._stopping:
            connection.abort()

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if self._on_close is not None:
            self._on_close(connection)

    def _close_idle(self) -> None:
        self._problems.settle()
        self._idle_closed.settle()
        if self._slow is not None:
            self._slow.settle()
        if not self._idle_ones.waiting:  # from the last check
            self._idle_ones.add(self._idle_since(self._idle_before_s()))

    def _idle_before_s(self) -> float:
        return asyncio.get_running_loop().time() - self._settings.idle_s

    def _idle_since(self, oldest: float) -> Iterator[Arrival | Connection]:
        if self._arrivals is not None:
            yield from self._arrivals.before(monotonic() - self._settings.idle_s)
        yield from (one for one in self._connections if one.last_active_s < oldest)

    def _close_if_idle(self, one: Arrival | Connection) -> None:
        if isinstance(one, Arrival):
            if self._arrivals is not None and self._arrivals.drop(one):
                self._problems.add(
                    "refused a connection server=%s: nothing received in time", self._name
                )
        elif one.last_active_s < self._idle_before_s() and not one.is_paused:
            if one.closed:  # since the last check, and the peer does not take the rest
                one.abort()
                return
            self._idle_closed.add("closed an idle connection peer=%s", one.peer_text)
            one.close()


def _take_more(connection: Connection) -> None:
    """Have the kernel take more at a time for a peer that has read a large response."""
    connection.take_before_reading(UNREAD_BYTES_MIN)
    option, own = SYSTEM.TCP_UNSENT_MAX, connection.socket
    if option is not None and own is not None:
        with contextlib.suppress(OSError):  # as at its opening
            own.setsockopt(socket.IPPROTO_TCP, option, KERNEL_UNSENT_BYTES_MAX)
