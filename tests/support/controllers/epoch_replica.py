"""The log of one broker under a controller, without the rest of the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from cometmq.broker.config import BrokerSettings
from cometmq.broker.durability.group_commit import GroupCommit
from cometmq.broker.failover.epochs.epoch_file import EpochFile
from cometmq.broker.failover.epochs.in_sync import BrokerIds
from cometmq.broker.failover.epochs.replication import EpochReplication
from cometmq.broker.role import MASTER_ID, SLAVE, SYNC_MASTER, Role
from cometmq.store import MessageStore
from cometmq.system.clock import Clock
from cometmq.system.files import Files
from support.stores.small_stores import small_settings

CONFIRMS = {"all_ack_in_sync_state_set": True}


class EpochReplica:
    """A store, its epochs, and both sides of its replication.

    Args:
        folder: of the store.
        number: the id that a controller gave to this broker.
        settings: of the broker, where they differ from `CONFIRMS`.
        store: where the settings of the store differ from those of small stores.
    """

    def __init__(
        self, folder: Path, number: int, settings: dict[str, Any], store: dict[str, Any]
    ) -> None:
        self.number = number
        self.settings = replace(BrokerSettings(), **(CONFIRMS | settings))
        self.store = MessageStore(
            small_settings(folder, **store), confirms=self.settings.all_ack_in_sync_state_set
        )
        self.store.open()
        self.epochs = EpochFile(folder, Files())
        self.role = Role(SLAVE, number)
        self.asked: list[BrokerIds] = []
        """The sets that the controller was asked for."""
        self.truncated: list[int] = []
        self.commit = GroupCommit(self.store)
        self.replication = EpochReplication(
            self.role,
            self.store,
            lambda: self.settings,
            self.epochs,
            send_request=self.asked.append,
            commit=self.commit,
            sync_flush=self.store.settings.sync_flush,
            clock=Clock(),
            before_truncation=self.truncated.append,
        )
        self.role.on_change(self.replication.master.role_changed)
        self.role.on_change(self.replication.copy.role_changed)

    @property
    def ha_address(self) -> str:
        """Where it listens for slaves."""
        return f"127.0.0.1:{self.replication.master.port}"

    async def start(self) -> None:
        """Listen for slaves, and be ready to follow a master."""
        self.commit.start()
        await self.replication.master.start("127.0.0.1", 0)
        self.replication.copy.start()

    async def lead(self, epoch: int, *members: int, in_sync_epoch: int = 1) -> None:
        """Become the master of an epoch; the only member, unless others are named."""
        await self.replication.lead(
            self.number, epoch, frozenset({self.number, *members}), in_sync_epoch
        )
        self.role.change(SYNC_MASTER, MASTER_ID)

    def follow(self, address: str) -> None:
        """Become the slave of a master."""
        self.role.change(SLAVE, self.number)
        self.replication.follow(self.number, address)

    async def close(self) -> None:
        """End both sides, and close the store."""
        self.replication.stop()
        await self.replication.copy.close()
        await self.replication.master.close()
        await self.commit.stop()
        self.store.close()


@asynccontextmanager
async def running(
    folder: Path, number: int = 1, *, store: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[EpochReplica]:
    """Run a replica within ``async with``."""
    replica = EpochReplica(folder, number, settings, store or {})
    await replica.start()
    try:
        yield replica
    finally:
        await replica.close()
