"""The asyncio server: accepts connections, plain and TLS on one port.

The first byte distinguishes TLS from a plain frame; it is read before a transport exists, so that
nothing of the handshake is lost.

The modes are RocketMQ's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cometmq.model.address import host_and_port
from cometmq.model.errors import ConfigError
from cometmq.protocol.command import Command
from cometmq.remoting.config import RemotingSettings, TlsSettings
from cometmq.remoting.connection import Connection, wait_all_closed
from cometmq.remoting.latencies import Latencies
from cometmq.remoting.requests import Guard, RequestHandler
from cometmq.remoting.slow_requests import SlowRequests
from cometmq.remoting.tasks import Supervisor
from cometmq.remoting.tls import HANDSHAKE_BYTE, failure_text, server_context
from cometmq.remoting.wire import FastPath, WriteBatch, write_batch_of
from cometmq.system.failure_log import RateLimitedLog
from cometmq.system.files import end_of_socket_descriptors

log = logging.getLogger(__name__)

HEADER_BYTES_MAX = 512 * 1024
"""The longest header of a request. The longest that clients send list a group's topics or carry the
properties of a message, which have 32 KiB at most; large data is in bodies."""
ACCEPT_PAUSE_S = 1.0
ACCEPTS_PER_EVENT = 64
HANDSHAKE_S = 30.0
ABORT_S = 0.2


class RemotingServer:
    """One listening port.

    Args:
        handlers: request code to handler.
        settings: limits of every connection.
        tls: how to treat TLS.
        unknown: handles request codes without a handler; by default it responds with code 3.
        name: for logs and tasks.
        on_close: called with every connection that ends.
        guard: see `Guard`; None lets every request through.
        knows: returns whether the sender of a request has an account, by its header alone; without
            one it may send no large frames. None if accounts do not count.
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
        guard: Guard | None = None,
        knows: Callable[[Connection, Command], bool] | None = None,
        latencies: Latencies | None = None,
    ) -> None:
        self._handlers = handlers
        self._settings = settings or RemotingSettings()
        self._tls = tls or TlsSettings(mode="disabled")
        self._unknown = unknown
        self._name = name
        self._on_close = on_close
        self._guard = guard
        self._knows = knows
        self._latencies = latencies
        self.fast_path: FastPath | None = None
        """The fast path of connections that are opened from now on."""
        self._connections: set[Connection] = set()
        self._arriving: set[socket.socket] = set()
        self._problems = RateLimitedLog(log, f"connections refused or closed server={name}")
        self._idle_closed = RateLimitedLog(
            log, f"idle connections closed server={name}", level=logging.INFO
        )
        limit_ms = self._settings.slow_request_ms
        self._slow = SlowRequests(limit_ms, name) if limit_ms else None
        self._supervisor = Supervisor(name)
        self._requests = Supervisor(f"{name}.requests")
        self._socket: socket.socket | None = None
        self._port = 0
        self._context: ssl.SSLContext | None = None
        self._stopping = False
        self._idle: asyncio.Task[None] | None = None
        self._write_batch: WriteBatch | None = None

    @property
    def port(self) -> int:
        """The port that is bound, known once started."""
        assert self._port, "not started"
        return self._port

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

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
        try:
            self._socket = listening_socket(host, port, self._settings.backlog)
        except OSError as problem:
            met = f"{self._name}: cannot listen on {host_and_port(host, port)}: {problem.strerror}"
            in_use = problem.errno == errno.EADDRINUSE
            raise ConfigError(f"{met}; {choice}" if in_use else met) from None
        self._port = self._socket.getsockname()[1]
        self._write_batch = write_batch_of(asyncio.get_running_loop())
        self._write_batch.budget.bytes_max = self._settings.connection_buffers_max
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)
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
        for arriving in self._arriving:
            with contextlib.suppress(OSError):
                arriving.shutdown(socket.SHUT_RDWR)
        await self._supervisor.drain(ABORT_S)
        await self._supervisor.cancel()

    def stop_accepting(self) -> None:
        """Accept no new connections; open ones stay open."""
        if not self._stopping and self._socket is not None:
            self._stopping = True
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()

    # --- accepting ----------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._socket is not None
        end = end_of_socket_descriptors()
        for _ in range(ACCEPTS_PER_EVENT):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                self._pause_accepting(problem)
                return
            if end is not None and accepted.fileno() >= end:
                accepted.close()
                self._problems.add(
                    "refused a connection server=%s: %d files are open, the others are for the"
                    " store; raise the limit of open files (ulimit -n, LimitNOFILE)",
                    self._name,
                    end,
                )
                continue
            if len(self._connections) + len(self._arriving) >= self._settings.connections_max:
                accepted.close()
                self._problems.add(
                    "refused a connection server=%s: %d are open (connectionsMax)",
                    self._name,
                    self._settings.connections_max,
                )
                continue
            accepted.setblocking(False)
            self._supervisor.spawn(self._open(accepted), "open")

    def _pause_accepting(self, problem: OSError) -> None:
        """Stop accepting for a second: the process is out of file descriptors or memory."""
        log.error("cannot accept connections, retrying server=%s: %s", self._name, problem)
        assert self._socket is not None
        loop, listening = asyncio.get_running_loop(), self._socket
        loop.remove_reader(listening.fileno())
        loop.call_later(ACCEPT_PAUSE_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if not self._stopping and self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    async def _open(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._arriving.add(accepted)
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = await self._context_for(accepted)
            await loop.connect_accepted_socket(
                self._connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S if context else None,
            )
        except (OSError, TimeoutError, ConfigError, _RefusedError) as problem:
            accepted.close()
            if not isinstance(problem, ConnectionError):
                reason = failure_text(problem) or "nothing received in time"
                self._problems.add("refused a connection server=%s: %s", self._name, reason)
        except asyncio.CancelledError:
            accepted.close()
            raise
        finally:
            self._arriving.discard(accepted)

    async def _context_for(self, accepted: socket.socket) -> ssl.SSLContext | None:
        if self._tls.mode == "disabled":
            return None
        first = await _first_byte(accepted, self._settings.idle_s)
        if first != HANDSHAKE_BYTE:
            if self._tls.mode == "enforcing" and first is not None:
                raise _RefusedError("plain connection met, TLS is required")
            return None
        if self._context is None:
            self._context = server_context(self._tls)
        return self._context

    def _connection(self) -> Connection:
        connection = Connection(
            self._handlers,
            settings=self._settings,
            supervisor=self._requests,
            on_open=self._opened,
            on_close=self._closed,
            unknown=self._unknown,
            fast_path=self.fast_path,
            guard=self._guard,
            latencies=self._latencies,
        )
        connection.header_bytes_max = HEADER_BYTES_MAX
        connection.warn = self._problems.add
        if self._knows is not None:
            connection.may_be_large = partial(self._may_be_large, self._knows, connection)
        connection.slow = self._slow
        return connection

    def _may_be_large(
        self, knows: Callable[[Connection, Command], bool], connection: Connection, command: Command
    ) -> bool:
        if command.is_response:  # clients do not sign these
            return connection.inflight.awaits(command.opaque)
        return knows(connection, command)

    def _opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._stopping:
            connection.abort()

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._on_close is not None:
            self._on_close(connection)

    def _close_idle(self) -> None:
        self._problems.settle()
        self._idle_closed.settle()
        if self._slow is not None:
            self._slow.settle()
        oldest = asyncio.get_running_loop().time() - self._settings.idle_s
        idle = [
            connection
            for connection in self._connections
            if connection.last_active_s < oldest and not connection.is_paused
        ]
        for connection in idle:
            if connection.closed:  # since the last check, and the peer does not take the rest
                connection.abort()
                continue
            self._idle_closed.add("closed an idle connection peer=%s", connection.peer_text)
            connection.close()


class _RefusedError(Exception):
    """A connection that the TLS mode does not allow."""


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that accepts connections; the event loop's own way loads a DNS encoding.

    Raises:
        OSError: the port cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        listening.bind((host, port))
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening


async def _first_byte(accepted: socket.socket, timeout: float) -> int | None:
    """Return the first byte without taking it; None when the peer closed instead."""
    loop = asyncio.get_running_loop()
    try:
        found = accepted.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        readable: asyncio.Future[Any] = loop.create_future()
        loop.add_reader(accepted.fileno(), _set_once, readable)
        try:
            await asyncio.wait_for(readable, timeout)
        finally:
            loop.remove_reader(accepted.fileno())
        found = accepted.recv(1, socket.MSG_PEEK)
    return found[0] if found else None


def _set_once(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
