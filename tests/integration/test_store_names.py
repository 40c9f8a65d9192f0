"""Which process leads when stores are copied, members are killed, or etcd is restored."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from cometmq.broker.app import Broker
from cometmq.controller.active import ControllerEntry
from cometmq.controller.app import Controller
from cometmq.controller.broker_log_states import State as LogState
from cometmq.controller.broker_set import BrokerSet
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.controller import CleanBrokerDataRequest
from support.brokers.pairs import LIMIT_S
from support.checks.waiting import until
from support.controllers.elected_pairs import (
    NAME,
    ElectedPairs,
    is_master,
    log_of,
    members,
    running_elected_pairs,
)

VERIFIED, UNVERIFIED, REPLACED = LogState

ALL = {"allAckInSyncStateSet": "true"}


@pytest.fixture
async def elected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ElectedPairs]:
    monkeypatch.setattr("cometmq.broker.failover.feature.DECISION_S", 0.1)
    async with running_elected_pairs(tmp_path) as made:
        await made.controller(expiry_scan_ms=100, master_scan_ms=100)
        yield made


async def both(elected: ElectedPairs, **settings: str) -> tuple[Broker, Broker]:
    """A master, and a slave that is in the in-sync set."""
    master = await elected.start("a", **(ALL | settings))
    await until(lambda: is_master(master))
    slave = await elected.start("b", **(ALL | settings))
    await until(lambda: members(master) == {1, 2})
    return master, slave


def known(elected: ElectedPairs) -> BrokerSet:
    """The broker set in etcd."""
    [value] = elected.store.backup("brokerSets/").values()
    return msgspec.json.decode(value, type=BrokerSet)


def copy_store(folder: Path, name: str, target: str) -> None:
    shutil.copytree(folder / name, folder / target)
    (folder / target / "lock").unlink(missing_ok=True)


async def killed(elected: ElectedPairs, broker: Broker, folder: Path, name: str) -> None:
    """Stop a broker, and leave its store as a kill does."""
    abort = (folder / name / "abort").read_bytes()
    await elected.pairs.stop(broker)
    (folder / name / "abort").write_bytes(abort)


async def sent(elected: ElectedPairs, broker: Broker, body: bytes) -> None:
    """Send until the broker acknowledges."""
    async with asyncio.timeout(LIMIT_S):
        while (await elected.send(broker, body)).code != ResponseCode.SUCCESS:
            await asyncio.sleep(0.02)


async def test_a_slave_greets_with_its_process_and_is_verified_by_its_master(
    elected: ElectedPairs, tmp_path: Path
) -> None:
    master, slave = await both(elected)
    await killed(elected, slave, tmp_path, "b")
    await until(lambda: members(master) == {1})
    slave = await elected.start("b", **ALL)
    await until(lambda: members(master) == {1, 2})
    assert known(elected).replicas[2].log_state == VERIFIED
    assert master.features.failover.elected is not None
    [(id_, connection)] = master.features.failover.elected.replication._connections.items()
    assert connection.greeting is not None
    assert connection.greeting.incarnation == known(elected).replicas[id_].incarnation
    await elected.pairs.stop(master)
    await until(lambda: is_master(slave))


async def test_members_that_were_killed_elect_the_largest_log_when_all_are_back(
    elected: ElectedPairs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave = await both(elected)
    await sent(elected, master, b"1")
    before = elected.store.backup("brokerSets/")
    await killed(elected, slave, tmp_path, "b")
    await killed(elected, master, tmp_path, "a")
    elected.store.restore(before)  # both are members, as if all power had failed at once
    slave = await elected.start("b", **ALL)
    await until(lambda: known(elected).replicas[2].log_state == UNVERIFIED)
    await until(lambda: "waits for the brokers 1 at" in caplog.text)
    assert not is_master(slave)
    master = await elected.start("a", **ALL)
    await until(lambda: is_master(master) or is_master(slave))
    await until(lambda: len(members(master) | members(slave)) == 2)
    await until(lambda: log_of(master) == log_of(slave) != b"")


async def waiting(elected: ElectedPairs, folder: Path) -> Controller:
    """Return the controller of a set of which one member was killed and one is gone."""
    [controller] = elected.controllers
    master, slave = await both(elected)
    before = elected.store.backup("brokerSets/")
    await killed(elected, slave, folder, "b")
    await killed(elected, master, folder, "a")
    elected.store.restore(before)
    slave = await elected.start("b", **ALL)
    await until(lambda: NAME in controller._elections.waiting)
    await elected.pairs.stop(slave)
    return controller


async def test_a_set_that_was_cleaned_waits_for_no_member(
    elected: ElectedPairs, tmp_path: Path
) -> None:
    controller = await waiting(elected, tmp_path)
    header = CleanBrokerDataRequest(broker_name=NAME, is_clean_living_broker=True)
    response = await elected.call(controller.address, RequestCode.CLEAN_BROKER_DATA, header)
    assert response.code == ResponseCode.SUCCESS, response.remark
    await until(lambda: not controller._elections.waiting)


async def test_a_controller_that_is_no_longer_active_has_no_sets_that_wait(
    elected: ElectedPairs, tmp_path: Path
) -> None:
    controller = await waiting(elected, tmp_path)
    await controller.active.resign()
    other = msgspec.json.encode(ControllerEntry("other", "127.0.0.1:1", lease=0))
    elected.store.restore({controller.active._active_key: other})
    await until(lambda: not controller._elections.waiting)


async def test_a_copy_does_not_lead_without_what_the_controller_has_heard_of(
    elected: ElectedPairs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The original is lost for ever."""
    master = await elected.start("a", **ALL)
    await until(lambda: is_master(master))
    await sent(elected, master, b"1")
    copy_store(tmp_path, "a", "copy")
    await sent(elected, master, b"2")
    end = master.core.store.written_to
    live = elected.controllers[0]._live
    await until(lambda: any(one.confirmed_to == end for one in live.heard(NAME).values()))
    await elected.pairs.stop(master)
    copy = await elected.start("copy", **ALL)
    await until(lambda: "waits for a broker that has it" in caplog.text)
    assert not is_master(copy)
    elected.controllers[0].configuration.set({"enableElectUncleanMaster": "true"})
    await until(lambda: is_master(copy))
    await sent(elected, copy, b"3")


async def test_a_copy_of_an_older_start_is_not_elected_before_a_master_has_compared_it(
    elected: ElectedPairs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = await elected.start("a", **ALL)
    await until(lambda: is_master(master))
    await elected.pairs.stop(master)
    copy_store(tmp_path, "a", "copy")
    master = await elected.start("a", **ALL)
    await until(lambda: is_master(master))
    await elected.pairs.stop(master)
    copy = await elected.start("copy", **ALL)
    await until(lambda: "the stores of the brokers [1] were replaced" in caplog.text)
    assert known(elected).replicas[1].log_state == REPLACED
    assert not is_master(copy)


async def test_a_store_that_was_emptied_of_all_but_its_id_counts_as_replaced(
    elected: ElectedPairs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the file ``abort`` it looks as after a clean stop."""
    master = await elected.start("a", **ALL)
    await until(lambda: is_master(master))
    await sent(elected, master, b"1")
    await elected.pairs.stop(master)
    before = known(elected).replicas[1]
    assert before.log_state == VERIFIED
    for path in (tmp_path / "a").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.name.startswith(("brokerIdentity", "storeIdentity")):
            path.unlink()
    emptied = await elected.start("a", **ALL)
    await until(lambda: "the stores of the brokers [1] were replaced" in caplog.text)
    assert known(elected).replicas[1].log_state == REPLACED
    assert not is_master(emptied)


async def test_a_master_renews_its_in_sync_set_when_etcd_was_restored(
    elected: ElectedPairs,
) -> None:
    master, slave = await both(elected)
    before = elected.store.backup("brokerSets/")
    await elected.pairs.stop(slave)
    await until(lambda: members(master) == {1})
    number = known(elected).in_sync_epoch
    elected.store.restore(before)
    await until(lambda: known(elected).in_sync_epoch > number)
    assert known(elected).in_sync == (1,)
    await sent(elected, master, b"1")


async def test_an_older_master_epoch_is_left_by_a_comparison_of_all(
    elected: ElectedPairs, caplog: pytest.LogCaptureFixture
) -> None:
    """Etcd names a master that was replaced since; the one of now has more."""
    first, second = await both(elected)
    before = elected.store.backup("brokerSets/")
    assert (await elected.elect(2)).code == ResponseCode.SUCCESS
    await until(lambda: is_master(second) and members(second) == {1, 2})
    await sent(elected, second, b"1")
    elected.store.restore(before)
    await until(lambda: known(elected).master_epoch > 2)
    await until(lambda: is_master(first) != is_master(second))
    leads = first if is_master(first) else second
    await sent(elected, leads, b"2")
    await until(lambda: log_of(first) == log_of(second))
    assert b"1" in log_of(leads)


async def test_a_master_acknowledges_nothing_while_its_set_is_unknown(
    elected: ElectedPairs, caplog: pytest.LogCaptureFixture
) -> None:
    master = await elected.start("a", **ALL)
    await until(lambda: is_master(master))
    before = elected.store.backup("brokerSets/")
    elected.store.clear("brokerSets/")
    async with asyncio.timeout(LIMIT_S):
        while (answer := await elected.send(master, b"1")).code == ResponseCode.SUCCESS:
            await asyncio.sleep(0.02)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "the controllers do not know the id 1 of this broker" in str(answer.remark)
    elected.store.restore(before)
    await sent(elected, master, b"2")


async def test_a_process_whose_id_another_one_has_taken_leads_no_more(
    elected: ElectedPairs, caplog: pytest.LogCaptureFixture
) -> None:
    """As if a copy of its store had registered with its address, behind a NAT."""
    master = await elected.start("a", **ALL)
    await until(lambda: is_master(master))
    taken = known(elected)
    other = msgspec.structs.replace(taken.replicas[1], incarnation="f" * 32)
    changed = msgspec.structs.replace(taken, replicas={1: other}, master_incarnation="f" * 32)
    [key] = elected.store.backup("brokerSets/")
    elected.store.restore({key: msgspec.json.encode(changed)})
    await until(lambda: "this process does not hold its id" in caplog.text)
    await until(lambda: known(elected).replicas[1].log_state == REPLACED)
    async with asyncio.timeout(LIMIT_S):
        while (await elected.send(master, b"1")).code != ResponseCode.SERVICE_NOT_AVAILABLE:
            await asyncio.sleep(0.02)
