"""A name server, a master and slaves of ours inside this process, for tests of replication."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cometmq.access.account_settings import AccountSettings
from cometmq.broker.app import SETTINGS, Broker
from cometmq.client import PullConsumer, StartFrom
from cometmq.client.settings import ClientSettings
from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import NameServerSettings
from cometmq.remoting import RemotingSettings, TlsClientSettings, TlsSettings
from cometmq.remoting.ports import free_broker_port
from cometmq.system.configuration import Configuration, load
from cometmq.system.files import Files
from cometmq.system.rocketmq_keys import BROKER_KEYS, NAMESRV_KEYS
from cometmq.testing.cluster import SMALL_FILES

LIMIT_S = 60.0
"""It ends what hangs."""
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}


class Pairs:
    """Brokers of one name that start and stop during a test.

    Args:
        folder: where their stores are.
        name_server: where they register.
    """

    def __init__(self, folder: Path, name_server: NameServer) -> None:
        self._folder = folder
        self._ports: dict[str, int] = {}
        self.name_server = name_server
        self.running: list[Broker] = []
        """The brokers that run, in the order in which they were started."""
        self.disks: dict[str, Files] = {}
        """Those of brokers whose disk is not the real one, by their names here."""

    async def start(self, name: str, **settings: str) -> Broker:
        """Start a broker; one of the same name before has its store and port."""
        port = self._ports.setdefault(name, free_broker_port())
        own = {
            "brokerName": "pair",
            "listenPort": str(port),
            "namesrvAddr": self.name_server.address,
            "storePathRootDir": str(self._folder / name),
        }
        values = SMALL_FILES | own | settings
        broker = Broker(
            load(SETTINGS, known_keys=BROKER_KEYS, command_line=values), files=self.disks.get(name)
        )
        self.running.append(broker)
        await broker.start()
        return broker

    async def stop(self, broker: Broker) -> None:
        """Stop a broker."""
        self.running.remove(broker)
        await broker.stop()

    async def consume(
        self, group: str, topic: str, count: int, client: ClientSettings | None = None
    ) -> list[bytes]:
        """Return the first messages of a topic, in a group that reads on behind them."""
        bodies: list[bytes] = []
        async with (
            asyncio.timeout(LIMIT_S),
            PullConsumer(
                self.name_server.address,
                group=group,
                subscriptions={topic: "*"},
                start_from=StartFrom.FIRST,
                client=client,
            ) as consumer,
        ):
            async for message in consumer:
                bodies.append(message.body)
                if len(bodies) == count:
                    await consumer.commit()
                    break
        return bodies

    async def close(self) -> None:
        """Stop all brokers."""
        for broker in reversed(self.running):
            await broker.stop()
        self.running.clear()


@asynccontextmanager
async def running_pairs(
    folder: Path,
    *,
    accounts: AccountSettings | None = None,
    tls: TlsSettings | None = None,
    **settings_of_namesrv: Any,
) -> AsyncIterator[Pairs]:
    """Run a name server, and what a test starts, within ``async with``."""
    settings = NameServerSettings(
        listen_port=0, kv_config_path=folder / "kvConfig.json", **settings_of_namesrv
    )
    name_server = NameServer(
        Configuration.of(
            settings,
            accounts or AccountSettings(),
            RemotingSettings(),
            tls or TlsSettings(),
            TlsClientSettings(),
            known_keys=NAMESRV_KEYS,
        )
    )
    await name_server.start()
    pairs = Pairs(folder, name_server)
    try:
        yield pairs
    finally:
        await pairs.close()
        await name_server.stop(0.1)
