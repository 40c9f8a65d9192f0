"""A filter server: started and stopped here.

It registers with its broker every ten seconds, and at once when the connection was lost, so that
the routes of the broker's topics name it.

Source: FiltersrvController, RocketMQ 4.2, which ends its process if the broker does not respond.
"""

from __future__ import annotations

import asyncio
import logging

from cometmq.filtersrv.config import FilterServerSettings
from cometmq.filtersrv.filters import Filters
from cometmq.filtersrv.handler import FilterHandler
from cometmq.filtersrv.worker import FilterError
from cometmq.model.address import host_and_port
from cometmq.model.errors import CometError, ConfigError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.consumer import (
    RegisterFilterServerRequest,
    RegisterFilterServerResponse,
)
from cometmq.remoting import (
    RemotingClient,
    RemotingServer,
    RemotingSettings,
    Supervisor,
    TlsClientSettings,
    TlsSettings,
    check,
    outgoing_context,
)
from cometmq.remoting.ports import reachable_host
from cometmq.remoting.tls_warnings import log_tls_warnings
from cometmq.system.configuration import Configuration
from cometmq.system.log_format import LogSettings

log = logging.getLogger(__name__)

SETTINGS = (FilterServerSettings, RemotingSettings, TlsSettings, TlsClientSettings, LogSettings)
"""The settings classes that a filter server's configuration file feeds."""

REGISTER_S = 10.0
REGISTER_S_MAX = 3.0
RETRY_S_FIRST = 0.5


class FilterServer:
    """One filter server.

    Args:
        configuration: its settings, see `SETTINGS`.

    Raises:
        ConfigError: a TLS file for connections to the broker cannot be used.
    """

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._settings = configuration.reader_of(FilterServerSettings)
        self._supervisor = Supervisor("filtersrv")
        self._client = RemotingClient(
            configuration[RemotingSettings],
            tls=outgoing_context(configuration[TlsClientSettings], configuration[TlsSettings]),
            name="filtersrv-client",
        )
        self.filters = Filters(self._settings)
        """The uploaded filters."""
        handler = FilterHandler(self.filters, self._client, self._settings)
        self._server = RemotingServer(
            {
                RequestCode.REGISTER_MESSAGE_FILTER_CLASS: handler.upload,
                RequestCode.PULL_MESSAGE: handler.pull,
            },
            settings=configuration[RemotingSettings],
            tls=configuration[TlsSettings],
            name="filtersrv",
        )
        self._host = ""
        self._failures = 0
        self._broker_name = ""

    @property
    def port(self) -> int:
        """The TCP port, known once started."""
        return self._server.port

    @property
    def address(self) -> str:
        """``host:port`` as registered, known once started."""
        return host_and_port(self._host, self.port)

    async def start(self) -> None:
        """Listen, and try to register; it registers in the background if that fails.

        Raises:
            ConfigError: the address cannot be bound, or this system cannot sandbox filters.
        """
        settings = self._settings()
        log_tls_warnings(self.configuration, log)
        if settings.client_upload_filter_class_enable:
            await self._check_sandbox()
        else:
            log.warning(
                "clientUploadFilterClassEnable=false: this filter server accepts no filters"
            )
        chosen = settings.filter_server_ip.strip("[]")
        self._host = reachable_host(chosen or settings.bind_address)
        await self._server.start(settings.bind_address, settings.listen_port)
        await self._register()
        self._supervisor.spawn(self._keep_registered(), "registration")
        log.info("filter server started address=%s", self.address)

    async def _check_sandbox(self) -> None:
        try:
            await self.filters.check_sandbox()
        except FilterError as problem:
            raise ConfigError(
                f"clientUploadFilterClassEnable=true: {problem}; filters are not run without a"
                " sandbox"
            ) from None

    async def stop(self, grace_s: float = 2.0) -> None:
        """End the registration, wait for requests in progress, and end all filters."""
        await self._supervisor.cancel()
        await self._client.close()  # pulls that the broker holds end with an error
        await self._server.stop(grace_s)
        await self.filters.close()
        log.info("filter server stopped")

    # --- registration -------------------------------------------------------------------------

    async def _keep_registered(self) -> None:
        while True:
            await self._pause()
            await self._register()

    async def _pause(self) -> None:
        """Return when it is time for the next registration."""
        if self._failures:
            await asyncio.sleep(min(RETRY_S_FIRST * 2.0 ** min(self._failures - 1, 10), REGISTER_S))
            return
        try:
            connection = await self._client.connection(self._settings().connect_which_broker)
            async with asyncio.timeout(REGISTER_S):
                await connection.wait_closed()
        except TimeoutError:
            return
        except CometError:
            pass
        await asyncio.sleep(RETRY_S_FIRST)  # limits reconnects

    async def _register(self) -> None:
        broker = self._settings().connect_which_broker
        header = RegisterFilterServerRequest(filter_server_addr=self.address)
        try:
            response = await self._client.call(
                broker, RequestCode.REGISTER_FILTER_SERVER, header, timeout=REGISTER_S_MAX
            )
            found = check(response).header(RegisterFilterServerResponse)
        except (CometError, OSError) as problem:
            if not self._failures:
                log.warning("cannot register, retrying broker=%s: %s", broker, problem)
            self._failures += 1
            return
        if self._failures or found.broker_name != self._broker_name:
            log.info("registered broker=%s address=%s", found.broker_name, broker)
        self._broker_name, self._failures = found.broker_name, 0
