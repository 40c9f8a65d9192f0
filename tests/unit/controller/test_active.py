"""Several controllers on one etcd: who is active, lost races, and etcd out of reach."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from cometmq.controller.broker_set import BrokerSet, Replica
from cometmq.controller.broker_set_table import ATTEMPTS, BrokerSetTable
from cometmq.controller.config import ControllerSettings
from cometmq.controller.etcd import Compare, Delete, KeyValue, Put
from cometmq.controller.live_brokers import LiveBroker
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.controller import SyncStateSet
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.controller import (
    ControllerAlterSyncStateSetRequest,
    ControllerApplyBrokerIdRequest,
    ControllerElectMasterRequest,
    ControllerGetReplicaInfoRequest,
    ControllerRegisterBrokerRequest,
)
from cometmq.protocol.headers.namesrv import BrokerHeartbeatRequest
from support.checks.manual_clock import ManualClock
from support.controllers.etcd_model import EtcdStore, Link, ModelEtcd
from support.controllers.memory_controllers import OneController

SET = "broker-a"
LEASE_MS = 3_000


class Group:
    """Two controllers, and brokers 1 to 3 whose heartbeats reach both."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = EtcdStore(self.clock.monotonic)
        self.first, self.second = (
            OneController(
                self.store,
                self.clock,
                ControllerSettings(controller_id=f"n{number}", notifies_role_changes=False),
            )
            for number in range(2)
        )
        self.table = BrokerSetTable(ModelEtcd(self.store), "/cometmq/controllers/cometmq/")

    async def begin(self) -> None:
        """Make the first controller active and broker 1 master, with brokers 1 and 2 in sync."""
        assert await self.first.renew()
        assert not await self.second.renew()
        for id_ in (1, 2, 3):
            await self.first.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, applies(id_))
        await self.live(1, 2, 3)
        await self.first.ask(RequestCode.CONTROLLER_ELECT_MASTER, elects(1))
        header, body = alters([1, 2], set_epoch=1)
        response = await self.first.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)
        assert response.code == ResponseCode.SUCCESS

    async def live(self, *ids: int) -> None:
        for one in (self.first, self.second):
            await one.heartbeat(SET, *ids)

    async def living(self, name: str) -> list[LiveBroker]:
        """Return the living brokers of a set."""
        known = await self.table.get(name)
        assert known is not None
        return list(self.first.controller._live.living(known).values())

    async def known(self) -> BrokerSet:
        known = await self.table.get(SET)
        assert known is not None
        return known


def applies(id_: int, name: str = SET) -> ControllerApplyBrokerIdRequest:
    return ControllerApplyBrokerIdRequest(
        cluster_name="C",
        broker_name=name,
        applied_broker_id=id_,
        register_check_code=f"10.0.0.{id_}:10911;1",
    )


def elects(id_: int, name: str = SET) -> ControllerElectMasterRequest:
    return ControllerElectMasterRequest(cluster_name="C", broker_name=name, broker_id=id_)


def alters(
    members: list[int], *, set_epoch: int
) -> tuple[ControllerAlterSyncStateSetRequest, bytes]:
    header = ControllerAlterSyncStateSetRequest(broker_name=SET, master_broker_id=1, master_epoch=1)
    body = SyncStateSet(sync_state_set=members, sync_state_set_epoch=set_epoch)
    return header, body.encode()


@pytest.fixture
async def group() -> Group:
    group = Group()
    await group.begin()
    return group


async def test_a_controller_that_is_not_active_names_the_active_one(group: Group) -> None:
    refused = await group.second.ask(RequestCode.CONTROLLER_ELECT_MASTER, elects(1))
    await group.second.renew()
    metadata = (await group.second.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)).all_fields()

    assert refused.code == ResponseCode.CONTROLLER_NOT_LEADER
    assert metadata is not None
    assert (metadata["controllerLeaderId"], metadata["isLeader"]) == ("n0", "false")
    assert metadata["peers"].count(";") == 2


async def test_another_controller_takes_over_when_the_lease_has_ended(group: Group) -> None:
    group.first.etcd.link = Link.NO_REQUEST
    group.clock.advance(LEASE_MS - 1)
    assert not await group.second.renew()
    assert group.first.controller.active.is_active

    group.clock.advance(1)

    assert not group.first.controller.active.is_active
    assert await group.second.renew()


async def test_another_controller_takes_over_at_once_after_a_resignation(group: Group) -> None:
    await group.first.controller.active.resign()

    assert await group.second.renew()


async def test_a_controller_whose_lease_was_lost_gets_a_new_one(group: Group) -> None:
    group.clock.advance(LEASE_MS)

    assert await group.first.renew()
    assert not await group.second.renew()


async def test_a_lost_master_is_replaced_by_a_member_of_the_in_sync_set(group: Group) -> None:
    group.first.controller._connection_closed(group.first.connections[1])
    while group.first.controller._supervisor:
        await asyncio.sleep(0)

    known = await group.known()
    assert (known.master_id, known.master_epoch, known.in_sync) == (2, 2, (2,))


async def test_a_silent_master_is_replaced_after_its_time_out(group: Group) -> None:
    group.clock.advance(10_000)
    await group.live(2)
    await group.first.renew()
    await group.first.controller._expire()
    assert (await group.known()).master_id == 1, "10 s are not longer than the time-out"

    group.clock.advance(1)
    await group.first.controller._expire()

    assert (await group.known()).master_id == 2


async def test_a_scan_elects_if_the_death_was_seen_by_no_active_controller(group: Group) -> None:
    group.first.etcd.link = Link.NO_REQUEST
    group.clock.advance(LEASE_MS)
    group.second.controller._connection_closed(group.second.connections[1])
    while group.second.controller._supervisor:
        await asyncio.sleep(0)
    assert (await group.known()).master_id == 1
    group.clock.advance(2_000)

    await group.second.controller._renew()

    assert (await group.known()).master_id == 2


async def test_elections_that_etcd_does_not_answer_are_one_warning_and_are_made_later(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    controller = group.first.controller
    group.clock.advance(10_001)
    await group.live(2)
    await group.first.renew()
    group.first.etcd.link = Link.NO_REQUEST

    await controller._expire()
    for _ in range(3):
        await controller.scan()

    warnings = [one for one in caplog.records if "no election" in one.message]
    assert [one.levelname for one in warnings] == ["WARNING"]
    assert warnings[0].exc_info is None
    assert (await group.known()).master_id == 1

    group.first.etcd.link = Link.UP
    await controller.scan()
    assert (await group.known()).master_id == 2


def strange(**ids: object) -> bytes:
    """A broker set that names a broker 9 which it does not have."""
    replicas = {1: Replica("10.0.0.1:10911", "c")}
    known = BrokerSet(cluster="C", name="aaa", replicas=replicas, master_epoch=1)
    return msgspec.json.encode(msgspec.structs.replace(known, **ids))


UNREADABLE = pytest.mark.parametrize(
    "value",
    [b"{", strange(master_id=9), strange(in_sync=(1, 9)), strange(in_sync_before=(9,))],
    ids=["no JSON", "master", "in sync", "in sync before"],
)


@UNREADABLE
async def test_a_set_that_cannot_be_read_keeps_no_other_without_a_master(
    group: Group, caplog: pytest.LogCaptureFixture, value: bytes
) -> None:
    """Another release has written it, or a person."""
    group.store.transact([], [Put("/cometmq/controllers/cometmq/brokerSets/aaa", value)])
    await group.second.heartbeat("aaa", 1)
    group.first.etcd.link = Link.NO_REQUEST
    group.clock.advance(LEASE_MS)
    group.second.controller._connection_closed(group.second.connections[1])
    while group.second.controller._supervisor:
        await asyncio.sleep(0)
    group.clock.advance(2_000)

    await group.second.controller._renew()

    assert (await group.known()).master_id == 2
    assert "brokerSets/aaa" in caplog.text


@UNREADABLE
async def test_a_lost_broker_of_a_set_that_cannot_be_read_keeps_no_other_master(
    group: Group, caplog: pytest.LogCaptureFixture, value: bytes
) -> None:
    group.store.transact([], [Put("/cometmq/controllers/cometmq/brokerSets/aaa", value)])
    await group.first.heartbeat("aaa", 1)
    group.clock.advance(10_001)
    await group.live(2)
    await group.first.renew()
    controller = group.first.controller
    lost = sorted(controller._live.expire(), key=lambda broker: (broker.name, broker.id))
    assert [broker.name for broker in lost[:2]] == ["aaa", SET]

    await controller._elections.replace(lost)

    assert (await group.known()).master_id == 2
    assert "brokerSets/aaa" in caplog.text


async def test_a_controller_that_has_just_started_deposes_no_master(group: Group) -> None:
    await group.first.controller.active.resign()
    third = OneController(group.store, group.clock, ControllerSettings(controller_id="n2"))
    await third.heartbeat(SET, 2)

    await third.controller._renew()

    assert third.controller.active.is_active
    assert (await group.known()).master_id == 1


async def test_of_two_controllers_that_elect_at_once_one_wins(group: Group) -> None:
    """Both believe to be active; each has seen the master die."""
    for one in (group.first, group.second):
        one.controller._live.connection_closed(one.connections[1])
    elections = [one.controller._elections.elect(SET) for one in (group.first, group.second)]

    codes = sorted([election.code for election in await asyncio.gather(*elections)])

    assert codes == [ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST]
    assert ((await group.known()).master_epoch, (await group.known()).master_id) == (2, 2)


async def leave(group: Group) -> dict[str, bytes]:
    """Let broker 2 leave the in-sync set; return the broker sets as they were before."""
    before = group.store.backup(group.table._prefix)
    header, body = alters([1], set_epoch=2)
    response = await group.first.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)
    assert response.code == ResponseCode.SUCCESS
    return before


async def designate(controller: OneController, id_: int) -> int:
    """Return the code of the response to an operator who names the next master."""
    header = elects(id_)
    header.designate_elect = True
    return (await controller.ask(RequestCode.CONTROLLER_ELECT_MASTER, header)).code


async def test_an_older_backup_of_etcd_makes_no_master_of_a_member_that_has_left(
    group: Group,
) -> None:
    """No heartbeat has come since it left: the controller knows what it wrote."""
    group.store.restore(await leave(group))

    code = await designate(group.first, 2)

    assert code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert (await group.known()).master_id == 1


async def test_a_controller_that_becomes_active_knows_the_epochs_that_it_reads(
    group: Group,
) -> None:
    before = await leave(group)
    await group.first.controller.active.resign()
    group.clock.advance(5_000)  # a controller that has just started does not look
    await group.second.controller._renew()
    group.store.restore(before)

    code = await designate(group.second, 2)

    assert code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert (await group.known()).master_id == 1


async def test_an_older_backup_of_etcd_brings_back_no_master_before_an_election(
    group: Group,
) -> None:
    """Broker 2 may have acknowledged since: the logs of all brokers are compared."""
    before = group.store.backup(group.table._prefix)
    assert await designate(group.first, 2) == ResponseCode.SUCCESS
    await group.live(1, 3)
    await group.first.heartbeat(SET, 2, max_offset=7)
    group.store.restore(before)

    await group.first.controller._elections.scan()

    known = await group.known()
    assert (known.master_id, known.epochs) == (2, (3, 4))


async def test_a_master_that_only_an_older_backup_of_etcd_names_alters_nothing(
    group: Group,
) -> None:
    """Alone in the in-sync set it would acknowledge, until a scan elects the master of now."""
    before = group.store.backup(group.table._prefix)
    assert await designate(group.first, 2) == ResponseCode.SUCCESS
    group.store.restore(before)
    header, body = alters([1], set_epoch=2)

    response = await group.first.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)

    assert response.code == ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
    assert response.remark is not None
    assert "older backup of etcd" in response.remark
    assert (await group.known()).in_sync == (1, 2)


async def test_a_deposed_master_alters_nothing(group: Group) -> None:
    """The request and the election race; whichever is second sees the first."""
    group.second.controller._live.connection_closed(group.second.connections[1])
    header, body = alters([1, 3], set_epoch=2)

    response, election = await asyncio.gather(
        group.first.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body),
        group.second.controller._elections.elect(SET),
    )

    known = await group.known()
    if response.code == ResponseCode.SUCCESS:
        assert known.master_id == 3, "broker 2 had left the in-sync set"
    else:
        assert response.code == ResponseCode.CONTROLLER_INVALID_MASTER
        assert known.master_id == 2
    assert election.after == known


@pytest.mark.parametrize("link", [Link.NO_REQUEST, Link.NO_RESPONSE])
async def test_without_etcd_the_outcome_is_said_to_be_unknown(group: Group, link: Link) -> None:
    group.first.etcd.link = link
    header, body = alters([1], set_epoch=2)

    for code, asked, data in (
        (RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body),
        (RequestCode.CONTROLLER_ELECT_MASTER, elects(1), b""),
        (
            RequestCode.CONTROLLER_GET_REPLICA_INFO,
            ControllerGetReplicaInfoRequest(broker_name=SET),
            b"",
        ),
    ):
        response = await group.first.ask(code, asked, data)
        assert response.code == ResponseCode.CONTROLLER_NOT_LEADER
        assert "unknown" in str(response.remark)


async def test_a_change_that_is_always_overtaken_is_given_up(group: Group) -> None:
    tries = []

    def decide(before: BrokerSet | None) -> tuple[BrokerSet | None, None]:
        """Change the set behind the caller's back, then ask for another change."""
        assert before is not None
        tries.append(before)
        key = f"/cometmq/controllers/cometmq/brokerSets/{SET}"
        found = group.store.get(key)
        assert found is not None
        group.store.transact([], [Put(key, found.value)])
        return None, None

    with pytest.raises(ResponseError, match="other controllers") as refusal:
        await group.table.change(SET, decide)

    assert refusal.value.code == ResponseCode.CONTROLLER_NOT_LEADER
    assert len(tries) == ATTEMPTS
    assert await group.known() == tries[0]


async def test_a_set_that_is_removed_while_its_master_is_replaced_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    group = Group()
    await group.begin()
    other = "broker-b"
    await group.first.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, applies(1, name=other))
    await group.first.heartbeat(other, 1)
    await group.first.ask(RequestCode.CONTROLLER_ELECT_MASTER, elects(1, name=other))
    lost = [*await group.living(SET), *await group.living(other)]
    group.clock.advance(3_600_000)
    await group.first.renew()
    read = group.first.etcd.get

    async def get_and_remove(key: str) -> KeyValue | None:
        found = await read(key)
        if key.endswith(SET):
            group.store.transact([], [Delete(key)])
        return found

    group.first.etcd.get = get_and_remove  # type: ignore[method-assign]
    await group.first.controller._elections.replace(lost)
    assert f"the broker set is gone, no election broker={SET}" in caplog.text
    assert (await group.table.get(SET)) is None
    left = await group.table.get(other)
    assert left is not None
    assert left.master_id is None


@pytest.mark.parametrize("way", ["replace", "scan"])
async def test_a_set_that_cannot_be_changed_stops_no_other(
    caplog: pytest.LogCaptureFixture, way: str
) -> None:
    group = Group()
    await group.begin()
    other = "broker-b"
    for id_ in (1, 2):
        await group.first.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, applies(id_, name=other))
    await group.first.ask(RequestCode.CONTROLLER_ELECT_MASTER, elects(1, name=other))
    await group.first.heartbeat(other, 1)
    lost = [(await group.living(name))[0] for name in (SET, other)]
    group.clock.advance(3_600_000)
    await group.first.renew()
    await group.first.heartbeat(SET, 3)
    await group.first.heartbeat(other, 2)
    transact = group.first.etcd.transact
    key = f"/cometmq/controllers/cometmq/brokerSets/{SET}"

    async def overtaken(compares: list[Compare], operations: list[Put]) -> bool:
        if operations[0].key == key:  # another controller, each time
            found = group.store.get(key)
            assert found is not None
            group.store.transact([], [Put(key, found.value)])
        return await transact(compares, operations)

    group.first.etcd.transact = overtaken  # type: ignore[assignment,method-assign]
    elections = group.first.controller._elections
    await (elections.replace(lost) if way == "replace" else elections.scan())
    assert "cannot replace a master broker=broker-a: " in caplog.text
    left = await group.table.get(other)
    assert left is not None
    assert left.master_epoch == 2


ADDRESSES = ("1.2.3.4\0:1", "", "host", "a b:1", ":1", "h:0", f"{'h' * 300}:1")


@pytest.mark.parametrize("address", ADDRESSES)
async def test_an_address_that_is_none_is_refused(address: str) -> None:
    """Such an address of a changed heartbeat ended the task that notifies brokers."""
    group = Group()
    await group.begin()
    heartbeat = BrokerHeartbeatRequest(
        cluster_name="C", broker_name=SET, broker_addr=address, broker_id=1
    )
    register = ControllerRegisterBrokerRequest(
        cluster_name="C", broker_name=SET, broker_id=1, broker_address=address
    )
    for code, header in (
        (RequestCode.BROKER_HEARTBEAT, heartbeat),
        (RequestCode.CONTROLLER_REGISTER_BROKER, register),
    ):
        with pytest.raises(ResponseError, match="expected host:port") as refused:
            await group.first.ask(code, header)
        assert refused.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST
