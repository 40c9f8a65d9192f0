"""The HTTP endpoint of a server, one request per connection.

    /metrics    the metrics, for Prometheus
    /live       200 while the event loop responds
    /ready      200 if the server does what it is there for, else 503 with the reason

It serves trusted readers on one machine or network, without TLS and accounts. It has bounds so that
others cannot harm the server with it: connections, the size and time of a request, and the time of
a response are limited, and one page is collected at a time, in slices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from cometmq.metrics.config import MetricsSettings
from cometmq.metrics.page import CONTENT_TYPE, Collect, TextPage
from cometmq.model.address import host_and_port
from cometmq.model.errors import ConfigError
from cometmq.remoting.listener import listening_socket
from cometmq.remoting.slices import join
from cometmq.system.failure_log import FailureLog

log = logging.getLogger(__name__)

Unready = Callable[[], str]
"""Returns why a server is not ready; empty if it is."""

CONNECTIONS_MAX: Final = 16
REQUEST_BYTES_MAX: Final = 8 * 1024
REQUEST_S: Final = 5.0
"""The time that a client has to send its request."""
RESPONSE_S: Final = 30.0
"""The time to collect a page, and the time that a client has to read it."""
PATH: Final = "/metrics"
LIVE, READY = b"/live", b"/ready"
TEXT: Final = "Content-Type: text/plain; charset=utf-8\r\n"


class MetricsEndpoint:
    """Listens for Prometheus.

    Args:
        settings: where, and the limits of a page.
        labels: the labels of every metric beside those of the settings.
        collect: fills a page.
        unready: returns why the server is not ready; empty if it is.
    """

    def __init__(
        self,
        settings: MetricsSettings,
        labels: dict[str, str],
        collect: Collect,
        unready: Unready = lambda: "",
    ) -> None:
        self._settings = settings
        self._labels = labels | settings.labels
        self._collect = collect
        self._unready = unready
        self._collecting = asyncio.Lock()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._failures = FailureLog(
            log, fails="cannot collect metrics", works="metrics are collected again", name="path"
        )
        self.port = 0
        """The TCP port, known once started."""

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the address cannot be bound.
        """
        host = self._settings.host or "127.0.0.1"
        try:
            listening = listening_socket(host, self._settings.port, CONNECTIONS_MAX)
        except OSError as problem:
            raise ConfigError(
                f"metrics: cannot listen on {host_and_port(host, self._settings.port)}:"
                f" {problem.strerror};"
                " metricsPromExporterPort sets another port"
            ) from None
        self.port = listening.getsockname()[1]
        self._server = await asyncio.start_server(
            self._accept, sock=listening, limit=REQUEST_BYTES_MAX
        )
        log.info("metrics are served url=%s", f"http://{host_and_port(host, self.port)}{PATH}")

    async def stop(self) -> None:
        """Stop listening and end the connections."""
        if self._server is None:
            return
        self._server.close()
        ending = list(self._connections)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError):
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            await _respond(writer, "431 Request Header Fields Too Large")
            return
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            await _respond(writer, "400 Bad Request")
            return
        if words[0] not in (b"GET", b"HEAD"):
            await _respond(writer, "405 Method Not Allowed", None, "Allow: GET, HEAD\r\n")
            return
        path, is_head = words[1].split(b"?", 1)[0], words[0] == b"HEAD"
        if path == PATH.encode():
            await self._respond_with_page(writer, is_head=is_head)
        elif path in (LIVE, READY):
            reason = self._unready() if path == READY else ""
            status = "503 Service Unavailable" if reason else "200 OK"
            body = [f"{reason or path[1:].decode()}\n".encode()]
            await _respond(writer, status, body, TEXT, is_head=is_head)
        else:
            await _respond(writer, "404 Not Found")

    async def _respond_with_page(self, writer: asyncio.StreamWriter, *, is_head: bool) -> None:
        try:
            async with asyncio.timeout(RESPONSE_S), self._collecting:
                page = TextPage(self._labels, self._settings.series_max)
                await self._collect(page)
                body = await join(page.parts())
        except TimeoutError:
            error = TimeoutError(f"not collected within {RESPONSE_S:.0f} s")
            self._failures.failed(PATH, error)
            await _respond(writer, "503 Service Unavailable")
            return
        except Exception as problem:
            self._failures.failed(PATH, problem)
            await _respond(writer, "500 Internal Server Error")
            return
        self._failures.succeeded(PATH)
        await _respond(writer, "200 OK", body, f"Content-Type: {CONTENT_TYPE}\r\n", is_head=is_head)


async def _respond(
    writer: asyncio.StreamWriter,
    status: str,
    body: list[bytes] | None = None,
    headers: str = "",
    *,
    is_head: bool = False,
) -> None:
    if body is None:
        body = [f"{status[4:]}\n".encode()]
        headers += TEXT
    size_bytes = sum(map(len, body))
    writer.write(
        f"HTTP/1.1 {status}\r\n{headers}Content-Length: {size_bytes}\r\n"
        "Connection: close\r\n\r\n".encode()
    )
    async with asyncio.timeout(RESPONSE_S):
        for piece in [] if is_head else body:
            writer.write(piece)
            await writer.drain()
        await writer.drain()
        writer.close()
        await writer.wait_closed()
