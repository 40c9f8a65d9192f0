"""Elections on an etcd of three members, of which some are lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cometmq.broker.app import Broker
from cometmq.controller.app import Controller
from cometmq.controller.etcd import EtcdUnavailableError
from cometmq.controller.etcd_gateway import EtcdGateway
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.controller import ControllerElectMasterRequest
from cometmq.protocol.headers.send import SendMessageRequest
from cometmq.remoting import RemotingClient
from support.brokers.pairs import LIMIT_S, Pairs, running_pairs
from support.checks.waiting import until
from support.controllers.memory_controllers import listening_controller
from support.processes.etcd_server import EtcdCluster, Member, etcd_cluster
from support.wire.request_headers import send_header

pytestmark = [pytest.mark.needs("etcd"), pytest.mark.promise]

NAME = "pair"
TOPIC = "TBW102"
LEASE_S = 2
QUIET_S = 3.0
"""For so long a test looks whether something happens that must not happen."""


class Elected:
    """Two brokers of one name, two controllers, and an etcd of three members."""

    def __init__(self, pairs: Pairs, etcd: EtcdCluster, controllers: list[Controller]) -> None:
        self.pairs, self.etcd, self.controllers = pairs, etcd, controllers
        self.client = RemotingClient(name="test")
        self.sent: list[bytes] = []
        """The bodies of the acknowledged messages."""
        self.stored = 0
        """Messages that are in the log, acknowledged or not."""

    async def start(self, name: str) -> Broker:
        """Start a broker that acknowledges what all members of the in-sync set have."""
        return await self.pairs.start(
            name,
            enableControllerMode="true",
            controllerAddr=";".join(one.address for one in self.controllers),
            allAckInSyncStateSet="true",
            slaveTimeout="500",
            brokerHeartbeatInterval="100",
            syncBrokerMetadataPeriod="500",
        )

    async def both(self) -> tuple[Broker, Broker]:
        """Start a master, and a slave that is in the in-sync set."""
        master = await self.start("a")
        slave = await self.start("b")
        await until(lambda: members(master) == {1, 2})
        return master, slave

    async def send(self, broker: Broker) -> int:
        """Send a message, and return the code of the response."""
        body = f"{len(self.sent)}".encode()
        header = send_header(SendMessageRequest, topic=TOPIC)
        response = await self.client.call(
            broker.address, RequestCode.SEND_MESSAGE, header, body, timeout=LIMIT_S
        )
        if response.code == ResponseCode.SUCCESS:
            self.sent.append(body)
        self.stored += response.code in (ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT)
        return response.code

    async def until_sent(self, broker: Broker) -> None:
        """Send until it is acknowledged."""
        async with asyncio.timeout(LIMIT_S):
            while await self.send(broker) != ResponseCode.SUCCESS:
                await asyncio.sleep(0.05)

    async def leader(self) -> Member:
        """Return the member that leads the others."""
        for member in self.etcd.members:
            gateway = EtcdGateway([member.address])
            try:
                status = await gateway._call("/v3/maintenance/status", {})
            except EtcdUnavailableError:
                continue
            finally:
                await gateway.close()
            if status["leader"] == status["header"]["member_id"]:
                return member
        raise AssertionError("no member leads")

    async def check_nothing_is_lost(self) -> None:
        bodies = await self.pairs.consume("g", TOPIC, self.stored)
        assert set(bodies) >= set(self.sent)


@pytest.fixture
async def elected(tmp_path: Path) -> AsyncIterator[Elected]:
    with etcd_cluster(tmp_path, 3) as etcd:
        async with AsyncExitStack() as stack:
            pairs = await stack.enter_async_context(running_pairs(tmp_path))
            controllers = [
                await stack.enter_async_context(
                    listening_controller(
                        EtcdGateway(etcd.addresses), controller_id=f"n{number}", lease_s=LEASE_S
                    )
                )
                for number in range(2)
            ]
            await until(lambda: any(one.active.is_active for one in controllers))
            made = Elected(pairs, etcd, controllers)
            stack.push_async_callback(made.client.close)
            yield made
            await pairs.close()  # ahead of the controllers


def members(broker: Broker) -> set[int]:
    """The in-sync set as the master knows it."""
    assert broker.features.failover.elected is not None
    in_sync = broker.features.failover.elected.replication.in_sync
    return set() if in_sync is None else set(in_sync.members)


def is_master(broker: Broker) -> bool:
    return not broker.core.role.is_slave


@pytest.mark.parametrize("which", ["leader", pytest.param("other", marks=pytest.mark.long)])
async def test_elections_go_on_when_one_of_three_members_is_lost(
    elected: Elected, which: str
) -> None:
    first, second = await elected.both()
    leader = await elected.leader()
    others = [member for member in elected.etcd.members if member is not leader]
    assert await elected.send(first) == ResponseCode.SUCCESS

    (leader if which == "leader" else others[0]).kill()

    assert await elected.send(first) == ResponseCode.SUCCESS
    began_s = time.monotonic()
    await elected.pairs.stop(first)
    await until(lambda: is_master(second))
    print(f"master {time.monotonic() - began_s:.1f} s after the loss of a member and of a broker")
    await elected.until_sent(second)

    elected.etcd.start()
    first = await elected.start("a")
    await until(lambda: members(second) == {1, 2})
    assert await elected.send(second) == ResponseCode.SUCCESS
    await elected.check_nothing_is_lost()


@pytest.mark.long
async def test_without_a_majority_a_master_goes_on_and_nothing_is_elected(
    elected: Elected,
) -> None:
    first, second = await elected.both()
    assert await elected.send(first) == ResponseCode.SUCCESS

    for member in elected.etcd.members[:2]:
        member.kill()
    await until(lambda: not any(one.active.is_active for one in elected.controllers))

    assert await elected.send(first) == ResponseCode.SUCCESS
    for controller in elected.controllers:
        response = await elected.client.call(
            controller.address,
            RequestCode.CONTROLLER_ELECT_MASTER,
            ControllerElectMasterRequest(
                cluster_name="DefaultCluster", broker_name=NAME, broker_id=2, designate_elect=True
            ),
            timeout=LIMIT_S,
        )
        assert response.code == ResponseCode.CONTROLLER_NOT_LEADER
    await elected.pairs.stop(first)
    await asyncio.sleep(QUIET_S)
    assert not is_master(second)
    assert await elected.send(second) == ResponseCode.SERVICE_NOT_AVAILABLE

    elected.etcd.start()
    await until(lambda: is_master(second))
    await elected.until_sent(second)
    first = await elected.start("a")
    await until(lambda: members(second) == {1, 2})
    await elected.check_nothing_is_lost()


async def test_without_a_majority_a_lost_slave_stays_in_the_in_sync_set(elected: Elected) -> None:
    first, second = await elected.both()
    for member in elected.etcd.members[1:]:
        member.kill()
    await elected.pairs.stop(second)

    assert await elected.send(first) == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert members(first) == {1, 2}

    elected.etcd.start()
    await until(lambda: members(first) == {1})
    await elected.until_sent(first)
    assert is_master(first)
    await elected.check_nothing_is_lost()
