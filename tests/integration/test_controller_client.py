"""The client of controllers in a broker: the active controller, and requests without a response."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from cometmq.broker.failover.controller_client import (
    ControllerClient,
    ControllerUnavailableError,
)
from cometmq.controller.app import Controller
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.controller import (
    ControllerApplyBrokerIdRequest,
    ControllerGetNextBrokerIdRequest,
    ControllerGetReplicaInfoRequest,
    ControllerGetReplicaInfoResponse,
    ControllerRegisterBrokerRequest,
)
from cometmq.protocol.headers.namesrv import BrokerHeartbeatRequest
from cometmq.remoting import RemotingClient
from cometmq.remoting.client import ConnectionPolicy
from cometmq.remoting.ports import free_port
from support.checks.waiting import until
from support.controllers.etcd_model import EtcdStore, Link, ModelEtcd
from support.controllers.memory_controllers import listening_controller
from support.network.fault_proxy import FaultProxy

NEXT_ID = ControllerGetNextBrokerIdRequest(cluster_name="C", broker_name="b")
HEARTBEAT = BrokerHeartbeatRequest(
    cluster_name="C", broker_addr="a:1", broker_name="b", broker_id=1, max_offset=7
)


class Group:
    """Two controllers, and an address at which nothing listens; the first one is active."""

    def __init__(self, first: Controller, second: Controller, client: RemotingClient) -> None:
        self.first, self.second = first, second
        self.addresses = [f"127.0.0.1:{free_port()}", second.address, first.address]
        self.client = ControllerClient(client, lambda: self.addresses)

    @property
    def store(self) -> ModelEtcd:
        """The client of etcd of the first controller."""
        store = self.first._etcd
        assert isinstance(store, ModelEtcd)
        return store


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    store = EtcdStore(time.monotonic)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            listening_controller(store, controller_id="n0", lease_s=2)
        )
        await until(lambda: first.active.is_active)
        second = await stack.enter_async_context(
            listening_controller(store, controller_id="n1", lease_s=2)
        )
        client = RemotingClient(name="test", policy=ConnectionPolicy(close_silent=True))
        stack.push_async_callback(client.close)
        made = Group(first, second, client)
        yield made
        await made.client.close()


async def test_the_active_controller_is_found_among_others(group: Group) -> None:
    response = await group.client.call(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NEXT_ID)
    assert response.code == ResponseCode.SUCCESS


async def test_an_active_controller_that_is_not_in_the_settings_is_found_by_name(
    group: Group,
) -> None:
    await until(lambda: group.second.active.active is not None)
    group.addresses = [group.second.address]
    response = await group.client.call(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NEXT_ID)
    assert response.code == ResponseCode.SUCCESS


async def test_a_request_goes_to_the_controller_that_has_become_active(group: Group) -> None:
    await group.client.call(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NEXT_ID)
    await group.first.stop(0.1)
    await until(lambda: group.second.active.is_active)
    response = await group.client.call(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NEXT_ID)
    assert response.code == ResponseCode.SUCCESS


async def test_without_a_controller_nothing_was_sent(group: Group) -> None:
    group.addresses = group.addresses[:1]
    with pytest.raises(ControllerUnavailableError, match=r"no active controller among ") as caught:
        await group.client.call(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NEXT_ID)
    assert not caught.value.was_sent


async def test_a_change_whose_outcome_etcd_does_not_tell_may_be_made(group: Group) -> None:
    header = ControllerApplyBrokerIdRequest(
        cluster_name="C", broker_name="b", applied_broker_id=1, register_check_code="a:1;1"
    )
    await group.client.call(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NEXT_ID)
    group.store.link = Link.NO_RESPONSE
    with pytest.raises(ControllerUnavailableError, match="the outcome") as caught:
        await group.client.call(RequestCode.CONTROLLER_APPLY_BROKER_ID, header)
    assert caught.value.was_sent


async def test_heartbeats_reach_every_controller(group: Group) -> None:
    group.client.heartbeat_all(HEARTBEAT)
    for controller in (group.first, group.second):
        await until(lambda live=controller._live: live.is_alive("b", 1))


async def test_heartbeats_leave_a_connection_on_which_a_controller_is_silent(group: Group) -> None:
    """TCP sends again what was lost only after about as long as the network was away."""
    async with FaultProxy(group.second.address) as link:
        group.addresses = [group.first.address, link.address]
        group.client.heartbeat_all(HEARTBEAT)
        await until(lambda: link.requests[RequestCode.BROKER_HEARTBEAT] == 1)
        link.freeze()

        def is_replaced() -> bool:
            group.client.heartbeat_all(HEARTBEAT)
            return link.accepted == 2

        await until(is_replaced)


async def test_a_loss_is_seen_at_once(group: Group) -> None:
    client = group.client
    await client.call(
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        ControllerApplyBrokerIdRequest(
            cluster_name="C", broker_name="b", applied_broker_id=1, register_check_code="a:1;1"
        ),
    )
    await client.call(
        RequestCode.CONTROLLER_REGISTER_BROKER,
        ControllerRegisterBrokerRequest(
            cluster_name="C", broker_name="b", broker_id=1, broker_address="a:1"
        ),
    )
    await client.heartbeat(HEARTBEAT)
    assert group.first._live.is_alive("b", 1)
    await client.report_loss(HEARTBEAT)
    await until(lambda: not group.first._live.is_alive("b", 1))
    response = await client.call(
        RequestCode.CONTROLLER_GET_REPLICA_INFO, ControllerGetReplicaInfoRequest(broker_name="b")
    )
    assert response.header(ControllerGetReplicaInfoResponse).master_broker_id is None
