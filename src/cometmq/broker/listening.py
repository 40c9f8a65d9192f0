"""The ports of a broker for clients and other servers: the main port and the fast port."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.fast_paths import FastPaths
from cometmq.broker.life import all_of
from cometmq.remoting import (
    Connection,
    RemotingServer,
    RemotingSettings,
    RequestHandler,
    TlsSettings,
)
from cometmq.remoting.features import Feature, handlers_of
from cometmq.remoting.ports import fast_port
from cometmq.remoting.tls_warnings import log_tls_warnings
from cometmq.remoting.wire import FastPath

if TYPE_CHECKING:
    from cometmq.access.rights import Rights
    from cometmq.broker.access.control import AccessControl

log = logging.getLogger(__name__)

DRAIN_S = 1.0
"""How long a stop waits for requests in progress."""


class Listening:
    """Listens on the ports of a broker.

    Args:
        core: of the broker.
        access: checks every request; None to check none.
        on_close: called when a connection has closed.
    """

    def __init__(
        self, core: Core, access: AccessControl | None, on_close: Callable[[Connection], None]
    ) -> None:
        self._core = core
        self._access = access
        self._on_close = on_close
        self.servers: list[RemotingServer] = []
        """The server of each port; the main port's is the first."""

    @property
    def endpoint(self) -> Endpoint:
        """The address and the main port at which the broker listens."""
        return self._core.address.endpoint(self.servers[0].port)

    async def start(
        self,
        serve: Callable[[Endpoint], Sequence[Feature]],
        rights: Callable[[], Mapping[int, Rights]],
    ) -> None:
        """Open the ports.

        Args:
            serve: returns the features, whose handlers know the address.
            rights: returns what requests need.

        Raises:
            ConfigError: a port cannot be bound.
        """
        configuration, settings = self._core.configuration, self._core.settings()
        log_tls_warnings(configuration, log)
        handlers: dict[int, RequestHandler] = {}
        main = self._server("broker", handlers)
        await main.start(settings.bind_address, settings.listen_port)
        self.servers = [main]
        features = serve(self.endpoint)
        served = handlers_of(features)
        if self._access is not None:
            self._access.take_rights(served, rights())
        handlers.update(served)
        main.fast_path = _fast_path_of(features)
        number = fast_port(main.port) if settings.fast_port_enable else None
        if number is not None:
            fast = [feature for feature in features if feature.on_fast_port]
            server = self._server("broker-fast", handlers_of(fast))
            server.fast_path = _fast_path_of(fast)
            choice = "it is two below listenPort; fastPortEnable=false does without it"
            await server.start(settings.bind_address, number, choice=choice)
            self.servers.append(server)

    def _server(self, name: str, table: Mapping[int, RequestHandler]) -> RemotingServer:
        return RemotingServer(
            table,
            settings=self._core.configuration[RemotingSettings],
            tls=self._core.configuration[TlsSettings],
            name=name,
            on_close=self._on_close,
            access=self._access,
            latencies=self._core.measures.latencies,
        )

    def stop_accepting(self) -> None:
        """Accept no more connections."""
        for server in self.servers:
            server.stop_accepting()

    async def stop(self) -> None:
        """Close all connections, once their requests are handled or a second is over."""
        await all_of([server.stop(DRAIN_S) for server in self.servers])


def _fast_path_of(features: Iterable[Feature]) -> FastPath | None:
    paths = [feature.fast_path for feature in features if feature.fast_path is not None]
    return reduce(FastPaths, paths) if paths else None
