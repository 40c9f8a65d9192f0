"""Controllers in this process over etcd in memory, with and without a port."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cometmq.access.account_settings import AccountSettings
from cometmq.controller.app import Controller
from cometmq.controller.config import ControllerSettings, EtcdSettings
from cometmq.controller.etcd import Etcd
from cometmq.metrics.config import MetricsSettings
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header, encode_fields
from cometmq.protocol.headers.namesrv import BrokerHeartbeatRequest
from cometmq.remoting import RemotingSettings, Request, Response, TlsClientSettings, TlsSettings
from cometmq.remoting.wire import Wire
from cometmq.system.configuration import Configuration
from support.checks.manual_clock import ManualClock
from support.controllers.etcd_model import EtcdStore, ModelEtcd


class Origin(Wire):
    """Where requests come from: a connection of which nothing but its identity is used."""

    def __init__(self) -> None:
        pass


class OneController:
    """A controller that listens nowhere; its handlers are called directly.

    Args:
        store: shared by the controllers of a group.
        clock: shared with the store.
        settings: of the controller.
    """

    def __init__(self, store: EtcdStore, clock: ManualClock, settings: ControllerSettings) -> None:
        self.etcd = ModelEtcd(store)
        self.controller = Controller(
            Configuration.of(
                settings,
                EtcdSettings(),
                AccountSettings(),
                RemotingSettings(),
                TlsSettings(),
                TlsClientSettings(),
            ),
            self.etcd,
            clock=clock,
        )
        self.routes = self.controller.routes
        self.connections: defaultdict[int, Origin] = defaultdict(Origin)
        """The connection of each broker, by its id."""
        self._tool = Origin()

    async def renew(self) -> bool:
        """Prolong the lease, or become active."""
        await self.controller.active.renew()
        return self.controller.active.is_active

    async def ask(
        self, code: RequestCode, header: Header | None = None, body: bytes = b""
    ) -> Response:
        """Return the response to a request.

        Raises:
            ResponseError: the request is refused without a header.
        """
        fields = encode_fields(header) if header is not None else None
        return await self.handle(Command(code, fields=fields, body=body), self._tool)

    async def handle(self, command: Command, connection: Origin) -> Response:
        """Return the response to a command of a connection."""
        result = self.routes[command.code](Request(command, connection))  # type: ignore[arg-type]
        response = result if isinstance(result, Response) or result is None else await result
        assert response is not None
        return response

    async def heartbeat(self, name: str, *ids: int, max_offset: int = 0, epoch: int = 0) -> None:
        """Let brokers send a heartbeat, each over a connection of its own."""
        for id_ in ids:
            header = BrokerHeartbeatRequest(
                cluster_name="C",
                broker_name=name,
                broker_addr=f"10.0.0.{id_}:10911",
                broker_id=id_,
                epoch=epoch,
                max_offset=max_offset,
                heartbeat_timeout_mills=10_000,
            )
            command = Command(RequestCode.BROKER_HEARTBEAT, fields=encode_fields(header))
            await self.handle(command, self.connections[id_])


@asynccontextmanager
async def listening_controller(
    store: EtcdStore | Etcd,
    *,
    metrics: MetricsSettings | None = None,
    accounts: AccountSettings | None = None,
    **settings: object,
) -> AsyncIterator[Controller]:
    """Run a controller that listens on a port, within ``async with``.

    Args:
        store: shared by the controllers of a group; or a client of a real etcd.
        metrics: the settings of metrics.
        accounts: the settings of access control.
        settings: fields of `ControllerSettings`.
    """
    controller = Controller(
        Configuration.of(
            ControllerSettings(**({"listen_port": 0} | settings)),  # type: ignore[arg-type]
            EtcdSettings(),
            accounts or AccountSettings(),
            RemotingSettings(),
            TlsSettings(),
            TlsClientSettings(),
            metrics or MetricsSettings(),
        ),
        ModelEtcd(store) if isinstance(store, EtcdStore) else store,
    )
    await controller.start()
    try:
        yield controller
    finally:
        await controller.stop(0.1)
