"""Serves the console on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import uvicorn

from cometmq.client import AdminClient
from cometmq.console.app import Console, Options
from cometmq.console.pages import Role
from cometmq.model.address import host_and_port
from cometmq.model.errors import CometError, ConfigError
from cometmq.system.platforms import SYSTEM

__all__ = ["Options", "Server"]

CONNECTIONS_MAX = 256
STOP_S = 3


class Server:
    """A console on a socket, which is bound from the start.

    Args:
        admin: the client of the cluster, which its owner starts and closes.
        options: of the console.
        admins: the clients of roles that have an account of their own.

    Raises:
        ConfigError: an option cannot be used.
    """

    def __init__(
        self,
        admin: AdminClient,
        options: Options,
        admins: Mapping[Role, AdminClient] | None = None,
    ) -> None:
        self._console = Console(admin, options, admins=admins)
        config = uvicorn.Config(
            self._console.app,
            host=options.host,
            port=options.port,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # they would let each visitor choose its address in the audit log
            ws="none",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=STOP_S,
            ssl_certfile=options.certificate,
            ssl_keyfile=options.key,
        )
        try:
            config.load()
        except OSError as error:  # of the files, or of what is in them
            raise ConfigError(
                f"{options.certificate}, {options.key}: {error}; expected a certificate and its key"
                " without a password, PEM"
            ) from None
        self._server = _Uvicorn(config, self._console)
        self._listener = _listening(options)
        port = self._listener.getsockname()[1]
        scheme = "https" if options.certificate else "http"
        self.url = f"{scheme}://{host_and_port(options.host, port)}/"
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve, until `stop`.

        Raises:
            CometError: the server does not start; its log has the reason.
        """
        self._serving = asyncio.create_task(self._server.serve([self._listener]), name="console")
        started = asyncio.ensure_future(self._server.ready.wait())
        try:
            await asyncio.wait([started, self._serving], return_when=asyncio.FIRST_COMPLETED)
            if not self._server.ready.is_set():
                raise CometError(f"the console does not start at {self.url}: see the log before")
        finally:
            started.cancel()

    async def stop(self) -> None:
        """End the live figures and the requests in flight, and close the socket."""
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.wait([self._serving])
        self._listener.close()

    async def run(self, ready: Callable[[str], None]) -> None:
        """Serve until SIGTERM or Ctrl-C; a second signal ends requests at once.

        Args:
            ready: is called with the address when the console is served.
        """

        def end() -> None:
            self._server.force_exit = self._server.should_exit
            self._server.should_exit = True

        restore = SYSTEM.on_signals(asyncio.get_running_loop(), end)
        try:
            await self.start()
            ready(self.url)
            assert self._serving is not None
            await asyncio.wait([self._serving])
        finally:
            await self.stop()
            restore()


class _Uvicorn(uvicorn.Server):
    """Ends the live figures first: they would last until their viewers go."""

    def __init__(self, config: uvicorn.Config, console: Console) -> None:
        super().__init__(config)
        self._console = console
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the owner of the process."""
        yield

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready.set()

    async def shutdown(self, sockets: Any = None) -> None:
        self._console.streams.close()
        await super().shutdown(sockets)


def _listening(options: Options) -> socket.socket:
    """Return the socket to which visitors connect.

    Raises:
        ConfigError: the address or the port cannot be used.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family)
    except OSError as error:
        raise ConfigError(
            f"{host_and_port(options.host, options.port)}: {error.strerror}; expected an address of"
            " this machine and a free port: --host and --port choose others"
        ) from None
