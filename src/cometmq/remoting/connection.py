# cython: annotation_typing=False
"""One TCP connection: requests to their handlers, calls and their responses, in both directions.

The flags and the opaque numbers are those of RemotingCommand.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from cometmq.model.address import host_and_port
from cometmq.model.errors import CometError, ResponseError
from cometmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from cometmq.protocol.command import OUR_LANGUAGE, Command, encode_head, request
from cometmq.protocol.headers.base import Header
from cometmq.remoting.config import RemotingSettings
from cometmq.remoting.errors import CallTimeoutError, ConnectionLostError
from cometmq.remoting.inflight import Inflight, ResponseReader, ResponseReceiver
from cometmq.remoting.paced_queue import PacedQueue
from cometmq.remoting.peer import Peer
from cometmq.remoting.requests import Guard, Request, RequestHandler, Response
from cometmq.remoting.slow_requests import begin_request
from cometmq.remoting.tasks import Supervisor
from cometmq.remoting.tls import CLOSED_AFTER_HANDSHAKE, failure_text
from cometmq.remoting.wire import FastPath

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if TYPE_CHECKING:
    from cometmq.remoting.latencies import Latencies

log = logging.getLogger(__name__)

WORKING_MAX = 1024
"""Requests of one connection that may be worked on in the background at a time."""

V4_IN_V6 = "::ffff:"
"""How a socket for both kinds of addresses shows an IPv4 peer."""


def certificate_names(certificate: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the names in a verified certificate: kind (``CN``, ``DNS``, ``URI``, …) and name.

    Args:
        certificate: as the module `ssl` shows it; without content if it is not verified.
    """
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    common = [("CN", value) for name, value in subject if name == "commonName"]
    return (*common, *certificate.get("subjectAltName", ()))


class Connection(Peer, asyncio.BufferedProtocol):
    """Requests and responses between this process and one peer."""

    def __init__(
        self,
        handlers: Mapping[int, RequestHandler],
        *,
        settings: RemotingSettings,
        supervisor: Supervisor,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        fast_path: FastPath | None = None,
        guard: Guard | None = None,
        language: LanguageCode = OUR_LANGUAGE,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.inflight = Inflight(loop, settings.calls_in_flight_max)
        """The requests to the peer."""
        if fast_path is None and cython.compiled:
            fast_path = ResponseReader(self.inflight, settings.frame_bytes_max)
        super().__init__(loop, settings.frame_bytes_max, settings.write_buffer_bytes_max, fast_path)
        self._handlers = handlers
        self._guard = guard
        self.unknown: RequestHandler = refuse_unknown
        """Handles request codes without a handler."""
        self.latencies: Latencies | None = None
        """Counts how long responses take."""
        self._settings = settings
        self._supervisor = supervisor
        self._on_open = on_open
        self._on_close = on_close
        self._our_language = language
        self._working = 0
        self._secured_s = 0.0
        self._full_since_s = 0.0
        self._writable: asyncio.Future[None] | None = None
        self._closed = loop.create_future()
        self.transport_bytes_max = settings.write_buffer_bytes_max
        """How much the transport takes at first before the peer has to read."""
        self.has_read: Callable[[Connection], None] | None = None
        """Called once, when the peer has read what the transport had no room for."""
        self.ended: PacedQueue[Callable[[], object]] | None = None
        """Ends connections whose peers send no more, a few in each iteration of the event loop;
        None: each at once."""
        self.peer: tuple[str, int] = ("", 0)
        self.language: str | None = None
        self.version = 0
        self.attributes: dict[str, Any] = {}

    # --- lifecycle ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport and the address of the peer: the socket is open."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        self._set_peer(transport.get_extra_info("peername"))
        if transport.get_extra_info("sslcontext") is not None:
            self._secured_s = monotonic()
        if certificate := transport.get_extra_info("peercert"):
            self.certificate_names = certificate_names(certificate)
        self.take_before_reading(self.transport_bytes_max)
        if self._on_open is not None:
            self._on_open(self)

    def take_before_reading(self, size_bytes: int) -> None:
        """Set how much the transport takes before the peer has to read."""
        assert self._transport is not None
        high = min(self._settings.write_buffer_bytes_max, size_bytes)
        self._transport.set_write_buffer_limits(high=high)

    def _set_peer(self, name: tuple[str, int] | None) -> None:
        if not name:
            return
        host, port = name[0], name[1]
        if host.startswith(V4_IN_V6) and "." in host:
            host = host[len(V4_IN_V6) :]
        self.peer = (host, port)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.peer_text = host_and_port(host, port)
        self.peer_bytes = socket.inet_pton(family, host.split("%")[0]) + port.to_bytes(4, "big")

    @property
    def socket(self) -> Any:
        """The socket of the transport; None if there is none any more."""
        return None if self._transport is None else self._transport.get_extra_info("socket")

    @property
    def busy(self) -> bool:
        """Whether a call waits for its response, or a request is being handled."""
        return len(self.inflight) > 0 or self._working > 0

    async def wait_closed(self) -> None:
        """Return once the connection is closed."""
        await asyncio.shield(self._closed)

    def eof_received(self) -> bool:
        """Close this side too: the peer sends no more."""
        if self.ended is None or self._secured_s:  # TLS closes in any case
            self.end()
            return bool(self._unsent)  # true: the transport stays open to write it
        self.ended.add([self.end])
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the calls in flight: the connection is gone."""
        self._lose()
        reason = f": {failure_text(exc)}" if exc is not None else ""
        if not reason and self._secured_s > self.received_s:
            reason = CLOSED_AFTER_HANDSHAKE
        self.inflight.fail_all(ConnectionLostError(f"{self.peer_text} closed{reason}"))
        self._wake_writers()
        if not self._closed.done():
            self._closed.set_result(None)
        if self._on_close is not None:
            self._on_close(self)

    # --- requests -----------------------------------------------------------------------------

    def receive(self, command: Command) -> None:
        """Handle one command that has arrived."""
        if command.is_response:
            if not self.inflight.complete(command):
                log.debug("dropped a late response peer=%s %r", self.peer_text, command)
            return
        self.language, self.version = command.language, command.version
        incoming = Request(command, self)
        incoming.latencies, slow = self.latencies, self.slow
        if slow is not None or self.latencies is not None:
            incoming.began_s = perf_counter()
        handler = self._handlers.get(incoming.code, self.unknown)
        try:
            guard = self._guard
            result = handler(incoming) if guard is None else guard(incoming, handler)
            if isinstance(result, Response):
                incoming.reply(result)
                result = None
        except Exception as problem:
            respond_with_failure(incoming, problem)
            result = None
        if result is not None:
            self._work(incoming, result)
        elif slow is not None:
            took_s = perf_counter() - incoming.began_s
            if took_s >= slow.limit_s:
                slow.handled(command, self.peer_text, took_s, {})

    def _work(self, incoming: Request, result: Awaitable[Response | None]) -> None:
        """Wait for the response in the background, up to a limit of such requests."""
        if self._working < WORKING_MAX or incoming.is_exclusive:  # of those there is one at most
            self._working += 1
            if incoming.is_exclusive:
                self.pause_frames()
            self._supervisor.spawn(self._finish(incoming, result), f"request-{incoming.code}")
            return
        if isinstance(result, Coroutine):
            result.close()
        remark = f"[OVERLOAD]{self._working} requests of this connection are worked on already"
        incoming.reply(Response(ResponseCode.SYSTEM_BUSY, remark))

    async def _finish(self, incoming: Request, result: Awaitable[Response | None]) -> None:
        spent = begin_request()
        try:
            response = await result
            if response is not None:
                incoming.reply(response)
        except Exception as problem:
            respond_with_failure(incoming, problem)
        finally:
            self._working -= 1
            if self.slow is not None:
                took_s = perf_counter() - incoming.began_s
                self.slow.handled(incoming.command, self.peer_text, took_s, spent)
            if incoming.is_exclusive:
                self.resume_frames()

    # --- back-pressure ------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Write nothing until `resume_writing`, and measure how long that takes."""
        self._full_since_s = perf_counter()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Write the rest, then read on: the peer has read its responses."""
        if self.slow is not None:
            self.slow.not_read(self.peer_text, perf_counter() - self._full_since_s)
        if self.has_read is not None:
            first, self.has_read = self.has_read, None
            first(self)
        super().resume_writing()

    def end_back_pressure(self) -> None:
        """Notify the calls that wait for the peer to read what was written, and read on."""
        self._back_pressure = False
        self._wake_writers()
        self._read_on()

    async def until_writable(self, timeout: float) -> None:
        """Return once the peer takes what is written to it; mostly it returns at once.

        Raises:
            CallTimeoutError: it did not in this many seconds.
            ConnectionLostError: the connection was or became closed.
        """
        if self._back_pressure and not self.closed:
            try:
                async with asyncio.timeout(timeout):
                    while self._back_pressure and not self.closed:
                        if self._writable is None:
                            self._writable = self._loop.create_future()
                        await asyncio.shield(self._writable)
            except TimeoutError:
                raise CallTimeoutError(
                    f"not sent: {self.peer_text} accepted no data within {timeout:g} s"
                ) from None
        if self.closed:
            raise ConnectionLostError(f"{self.peer_text} is closed")

    def _wake_writers(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    # --- calling ------------------------------------------------------------------------------

    async def call(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout: float,
        fields: Mapping[str, str] | None = None,
        remark: str | None = None,
    ) -> Command:
        """Send a request and wait for its response of any code.

        Args:
            code: the request code.
            header: its typed header.
            body: its body.
            timeout: seconds to wait.
            fields: further header fields.
            remark: a text beside them.

        Raises:
            CallTimeoutError: no response arrived in time, or the peer read no requests.
            ConnectionLostError: the connection was or became closed.
            TooManyCallsError: the table of waiting calls is full; nothing was sent.

        Cancelling stops the waiting; the request stays sent.
        """
        if self._back_pressure or self.closed:
            began_s = self._loop.time()
            await self.until_writable(timeout)
            timeout -= self._loop.time() - began_s
        opaque, future = self.inflight.open(timeout)
        try:
            command = request(code, header, body, opaque=opaque, fields=fields)
            command.remark = remark
            self._send(command)
            return await future
        finally:
            self.inflight.forget(opaque)

    @property
    def ready(self) -> bool:
        """Whether a request can be written now: the peer takes what is sent to it."""
        return not (self._back_pressure or self.closed)

    def begin(self, receiver: ResponseReceiver, timeout: float) -> int:
        """Announce a request that the caller writes at once with this opaque number.

        Args:
            receiver: gets the response or the error.
            timeout: seconds to wait.

        Raises:
            TooManyCallsError: the table of waiting calls is full; write nothing.
        """
        return self.inflight.add(receiver, timeout)

    def oneway(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        fields: Mapping[str, str] | None = None,
        remark: str | None = None,
    ) -> None:
        """Send a one-way request; it is lost silently if the connection is closed."""
        opaque = self.inflight.next_opaque()
        command = request(code, header, body, opaque=opaque, oneway=True, fields=fields)
        command.remark = remark
        self._send(command)

    def _send(self, command: Command) -> None:
        head = encode_head(
            command.code,
            opaque=command.opaque,
            flag=command.flag,
            fields=command.fields if command.has_fields else None,
            remark=command.remark,
            language=self._our_language,
            body_bytes=len(command.body),
        )
        self.write(head, (command.body,) if command.body else ())


async def wait_all_closed(connections: Iterable[Connection], timeout: float) -> None:
    """Wait until all of these are closed, for ``timeout`` seconds at most."""
    waits = [asyncio.ensure_future(connection.wait_closed()) for connection in connections]
    if waits:
        _, late = await asyncio.wait(waits, timeout=timeout)
        for wait in late:
            wait.cancel()


def refuse_unknown(incoming: Request) -> Response:
    """Return the response to a request code without a handler; the remark shows if it exists."""
    remark = f" request type {incoming.code} not supported"
    if incoming.code in RequestCode._value2member_map_:
        remark += f": {RequestCode(incoming.code).name} is not served in this release"
    return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


def respond_with_failure(incoming: Request, problem: Exception) -> None:
    """Respond with what a handler raised; what it raised after its response is only logged."""
    if incoming.responded:
        log.error("handler failed after its response code=%s", incoming.code, exc_info=problem)
    else:
        incoming.reply(failure(incoming, problem))


def failure(incoming: Request, problem: Exception) -> Response:
    """Return the response for what a handler raised."""
    if isinstance(problem, ResponseError):
        return Response(problem.code, _writable(problem.remark))
    if not isinstance(problem, CometError):
        log.error("handler failed code=%s", incoming.code, exc_info=problem)
    remark = _writable(f"{type(problem).__name__}: {problem}")
    return Response(ResponseCode.SYSTEM_ERROR, remark)


def _writable(remark: str) -> str:
    """Replace characters that UTF-8 cannot encode, such as surrogates in the name of a file."""
    return remark.encode("utf-8", "replace").decode()
