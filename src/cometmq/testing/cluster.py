"""A name server and brokers inside this process, on free ports, with temporary stores."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from cometmq.broker.app import SETTINGS as BROKER_SETTINGS
from cometmq.broker.app import Broker
from cometmq.model.errors import ConfigError
from cometmq.namesrv.app import SETTINGS as NAMESRV_SETTINGS
from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import files_below
from cometmq.remoting.ports import LOOPBACK, free_broker_port
from cometmq.system.configuration import Configuration, load
from cometmq.system.rocketmq_keys import BROKER_KEYS, NAMESRV_KEYS

SMALL_FILES = {
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(3_000 * 20),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
}
"""Files of a size that tests fill; RocketMQ's own are made for years of messages."""


class Cluster:
    """A name server and brokers that run within ``async with``.

    Args:
        brokers: number of brokers; they are named ``broker-0`` and so on.
        settings: settings of every broker, by RocketMQ's keys; each value is text, such as
            ``"true"``.

    Raises:
        ConfigError: the number of brokers is below 1, or a setting is no text.

    The stores are in a temporary folder, which is removed at the end.

    Example:
        async with Cluster() as cluster, Producer(cluster.name_servers, group="g") as producer:
            await producer.send(Message(topic="orders", body=b"42"))
    """

    def __init__(self, *, brokers: int = 1, settings: Mapping[str, str] | None = None) -> None:
        if not isinstance(brokers, int) or brokers < 1:
            raise ConfigError(f"brokers={brokers!r}: expected a whole number of at least 1")
        self._count = brokers
        self._settings = dict(settings or {})
        for key, value in self._settings.items():
            if not isinstance(value, str):
                raise ConfigError(f"settings: {key}={value!r}: expected text, such as 'true'")
        self._stack = AsyncExitStack()
        self._name_server: NameServer | None = None
        self.brokers: list[Broker] = []

    @property
    def name_servers(self) -> str:
        """The address of the name server, for clients."""
        if self._name_server is None:
            raise RuntimeError("the cluster is not running: use it within `with` or `async with`")
        return self._name_server.address

    @property
    def broker_addresses(self) -> list[str]:
        """The addresses of the brokers."""
        return [broker.address for broker in self.brokers]

    async def start(self) -> None:
        """Start every server.

        Raises:
            ConfigError: a setting is wrong.
        """
        try:
            folder = tempfile.TemporaryDirectory(prefix="cometmq-", ignore_cleanup_errors=True)
            root = Path(self._stack.enter_context(folder))
            self._name_server = NameServer(_namesrv(root))
            await self._name_server.start()
            self._stack.push_async_callback(self._name_server.stop)
            for number in range(self._count):
                await self._start_broker(root, f"broker-{number}")
        except BaseException:
            await self.stop()
            raise

    async def _start_broker(self, root: Path, name: str) -> None:
        broker = Broker(self._configuration(root, name))
        self._stack.push_async_callback(broker.stop)
        await broker.start()
        self.brokers.append(broker)

    def _configuration(self, root: Path, name: str) -> Configuration:
        own = {
            "brokerName": name,
            "bindAddress": LOOPBACK,
            "listenPort": str(free_broker_port()),
            "namesrvAddr": self.name_servers,
            "storePathRootDir": str(root / name),
        }
        values = SMALL_FILES | own | self._settings
        return load(BROKER_SETTINGS, known_keys=BROKER_KEYS, command_line=values)

    async def stop(self) -> None:
        """Stop every server and remove the stores."""
        self.brokers.clear()
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()


def _namesrv(root: Path) -> Configuration:
    values = {"bindAddress": LOOPBACK, "listenPort": "0", **files_below(root / "namesrv")}
    return load(NAMESRV_SETTINGS, known_keys=NAMESRV_KEYS, command_line=values)
