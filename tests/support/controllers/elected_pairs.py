"""Brokers of one name and their controllers in this process, over etcd in memory."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from cometmq.broker.app import Broker
from cometmq.controller.app import Controller
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.controller import ControllerElectMasterRequest
from cometmq.protocol.headers.send import SendMessageRequest
from cometmq.remoting import RemotingClient
from support.brokers.pairs import LIMIT_S, Pairs, running_pairs
from support.controllers.etcd_model import EtcdStore
from support.controllers.memory_controllers import listening_controller
from support.wire.request_headers import send_header

NAME = "pair"


class ElectedPairs:
    """Brokers of one name, and the controllers that elect their master."""

    def __init__(self, pairs: Pairs, stack: AsyncExitStack) -> None:
        self.pairs = pairs
        self.store = EtcdStore(time.monotonic)
        self.controllers: list[Controller] = []
        self.client = RemotingClient(name="test")
        self._stack = stack

    async def controller(self, **settings: object) -> Controller:
        """Start one more controller."""
        started = await self._stack.enter_async_context(
            listening_controller(self.store, **settings)
        )
        self.controllers.append(started)
        return started

    async def start(self, name: str, **settings: str) -> Broker:
        """Start a broker."""
        own = {
            "enableControllerMode": "true",
            "controllerAddr": ";".join(one.address for one in self.controllers),
            "brokerHeartbeatInterval": "100",
            "syncBrokerMetadataPeriod": "500",
        }
        return await self.pairs.start(name, **(own | settings))

    async def call(
        self, address: str, code: int, header: Header | None = None, body: bytes = b""
    ) -> Command:
        return await self.client.call(address, code, header, body, timeout=LIMIT_S)

    async def elect(self, broker_id: int) -> Command:
        """Let the active controller elect one broker, as an operator does."""
        header = ControllerElectMasterRequest(
            cluster_name="DefaultCluster",
            broker_name=NAME,
            broker_id=broker_id,
            designate_elect=True,
        )
        active = next(one for one in self.controllers if one.active.is_active)
        return await self.call(active.address, RequestCode.CONTROLLER_ELECT_MASTER, header)

    async def send(
        self, broker: Broker, body: bytes, topic: str = "TBW102", queue_id: int = 0, **fields: Any
    ) -> Command:
        """Send one message to a broker, whatever its role."""
        header = send_header(SendMessageRequest, topic=topic, queue_id=queue_id, **fields)
        return await self.call(broker.address, RequestCode.SEND_MESSAGE, header, body)


@asynccontextmanager
async def running_elected_pairs(folder: Path) -> AsyncIterator[ElectedPairs]:
    """Let a test start controllers and brokers within ``async with``."""
    async with AsyncExitStack() as stack:
        pairs = await stack.enter_async_context(running_pairs(folder))
        made = ElectedPairs(pairs, stack)
        stack.push_async_callback(made.client.close)
        yield made
        await pairs.close()  # ahead of the controllers


def is_master(broker: Broker) -> bool:
    return not broker.core.role.is_slave


def members(broker: Broker) -> set[int]:
    """The in-sync set as the master knows it."""
    elected = broker.features.failover.elected
    assert elected is not None
    in_sync = elected.replication.in_sync
    return set() if in_sync is None else set(in_sync.members)


def log_of(broker: Broker) -> bytes:
    """All bytes of the log."""
    store = broker.core.store
    parts, at = [], store.min_log_offset
    while (data := store.log_bytes(at, 1 << 20)) is not None:
        parts.append(bytes(data))
        at += len(data)
    return b"".join(parts)
