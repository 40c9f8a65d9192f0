"""Brokers of RocketMQ and ours take over from each other, under a controller of either."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from pathlib import Path

import kit
import pytest
from codes import Answer
from mqadmin import MqAdmin
from servers import CLUSTER, Server, connect
from test_mqadmin_command import run

from cometmq.protocol.codes import RequestCode
from cometmq.system import java_properties
from support.controllers.elected_processes import (
    COMET,
    NAME,
    CometController,
    ElectedBroker,
    ElectedCluster,
    RealController,
    running_elected,
)
from support.processes.etcd_server import etcd

JAVA = "5.3.3"
TOPIC = "T"
COUNT = 200
OF_THEIR_RAFT = {"controllerDLegerPeers", "jraftConfig"}
OF_THE_PROCESS = {
    "bindAddress", "configStorePath", "controllerDLegerGroup", "controllerDLegerSelfId",
    "controllerStorePath", "listenPort", "mappedFileSize", "rocketmqHome",
}  # fmt: skip
"""Settings with other values: paths and ports, what the test sets, and safer defaults of ours."""


def store(broker: ElectedBroker, first: int) -> None:
    """Store `COUNT` messages; each must be acknowledged."""
    with closing(connect(broker.address)) as connection:
        for number in range(first, first + COUNT):
            stored = kit.send(connection, TOPIC, b"%d" % number)
            assert stored.code == Answer.SUCCESS, stored


def check(broker: ElectedBroker, count: int) -> None:
    """Read all messages of a master: they are there once, in their order."""
    with closing(connect(broker.address)) as connection:
        kit.wait_for_queue(connection, TOPIC, count, timeout=60.0)
        found = kit.read_queue(connection, "readers", TOPIC, count, timeout=60.0)
    assert [message.body for message in found] == [b"%d" % number for number in range(count)]


def create_topic(master: ElectedBroker, slave: ElectedBroker) -> None:
    """Create the topic, and wait until the slave has copied it."""
    connection = connect(master.address)
    kit.ok(kit.create_topic(connection, TOPIC))
    connection.close()
    connection = connect(slave.address)
    kit.eventually(lambda: kit.topic_config(connection, TOPIC), timeout=60.0, pause=0.2)
    connection.close()


@pytest.mark.parametrize(
    ("controller", "brokers"),
    [
        (COMET, (COMET, COMET)),
        pytest.param(COMET, (JAVA, JAVA), marks=pytest.mark.long),
        pytest.param(COMET, (JAVA, COMET), marks=pytest.mark.long),
        pytest.param(COMET, (COMET, JAVA), marks=pytest.mark.long),
        pytest.param(JAVA, (COMET, COMET), marks=pytest.mark.long),
        pytest.param(JAVA, (COMET, JAVA), marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(600)
def test_no_acknowledged_message_is_lost_when_masters_are_killed_in_turn(
    controller: str, brokers: tuple[str, str], tmp_path: Path
) -> None:
    with running_elected(controller, brokers, tmp_path, allAckInSyncStateSet=True) as cluster:
        first, second = cluster.brokers
        cluster.await_in_sync(2)
        assert cluster.master() is first
        create_topic(first, second)
        store(first, 0)

        first.kill()
        assert cluster.await_master(other_than=first) is second
        check(second, COUNT)
        store(second, COUNT)

        first.start()
        cluster.await_in_sync(2)
        store(second, 2 * COUNT)

        second.kill()
        assert cluster.await_master(other_than=second) is first
        check(first, 3 * COUNT)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_mqadmin_shows_the_in_sync_set_and_elects(tmp_path: Path) -> None:
    with running_elected(COMET, (COMET, COMET), tmp_path, allAckInSyncStateSet=True) as cluster:
        first, second = cluster.brokers
        cluster.await_in_sync(2)
        with closing(MqAdmin(tmp_path / "admin", JAVA)) as admin:
            shown = admin.run("", "getSyncStateSet", "-a", cluster.controller.address, "-b", NAME)
            assert f"brokerAddress='{first.address}'" in shown.out.replace('"', "'"), shown
            assert "MasterEpoch" in shown.out, shown
            shown = admin.run(cluster.namesrv, "haStatus", "-b", first.address)
            assert "InSync" in shown.out or "inSync" in shown.out, shown
            shown = admin.run(cluster.namesrv, "getBrokerEpoch", "-b", NAME)
            assert first.address in shown.out, shown
            assert second.address in shown.out, shown
            shown = admin.run(
                "",
                *("electMaster", "-a", cluster.controller.address, "-b", "2"),
                *("-bn", NAME, "-c", CLUSTER),
            )
            assert cluster.await_master(other_than=first) is second, shown
            cluster.await_in_sync(2)
            check_settings(cluster, admin, tmp_path / "controller" / "controller.conf")


def ours(*words: str) -> tuple[int, str]:
    """Run our own mqadmin; return the exit code and what it printed."""
    printed = asyncio.run(run(["--like", JAVA, *words], until_lines=None))
    return printed.code, printed.out + printed.err


def without_figures(text: str) -> list[str]:
    """The lines of a printout of replication, without speeds, times and offsets."""
    lines = [re.sub(r"(?<![.:\d])\d[\d.:, -]*(?!\S)", "<N>", line) for line in text.splitlines()]
    return [line.rstrip() for line in lines if line.strip()]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_our_mqadmin_prints_the_same_and_elects(tmp_path: Path) -> None:
    with running_elected(COMET, (COMET, COMET), tmp_path, allAckInSyncStateSet=True) as cluster:
        first, second = cluster.brokers
        cluster.await_in_sync(2)
        controller = ("-a", cluster.controller.address)
        with closing(MqAdmin(tmp_path / "admin", JAVA)) as admin:
            for words in (
                ("getSyncStateSet", *controller, "-b", NAME),
                ("getSyncStateSet", *controller, "-c", CLUSTER),
                ("getBrokerEpoch", "-b", NAME),
                ("getBrokerEpoch", "-c", CLUSTER),
                ("getControllerMetaData", *controller),
                ("getControllerConfig", *controller),
                ("haStatus", "-b", first.address),
                ("haStatus", "-b", second.address),
                ("getBrokerConfig", "-c", CLUSTER),
                ("updateBrokerConfig", "-c", CLUSTER, "-a", "true", "-k", "deleteWhen", "-v", "05"),
                ("brokerStatus", "-c", CLUSTER),
                ("clusterList",),
            ):
                code, mine = ours(*words, "-n", cluster.namesrv)
                theirs = admin.run(cluster.namesrv, *words)
                assert (code, theirs.err) == (0, ""), (mine, theirs)
                has_figures = words[0] in ("haStatus", "brokerStatus", "clusterList")
                lines = without_figures if has_figures else str.splitlines
                here, there = map(lines, (mine, theirs.out))
                # Java prints settings in the order of a hash table.
                assert sorted(here) == sorted(there), words
        elected = ("-b", "2", "-bn", NAME, "-c", CLUSTER)
        code, shown_text = ours("electMaster", *controller, *elected)
        assert cluster.await_master(other_than=first) is second, shown_text
        assert code == 0
        assert f"#BrokerMasterAddr\t{second.address}" in shown_text
        cluster.await_in_sync(2)
        first.kill()
        code, shown_text = ours(
            "cleanBrokerMetadata", *controller, "-b", "1", "-bn", NAME, "-c", CLUSTER, "-l"
        )
        assert (code, shown_text) == (
            0, f"clear broker {NAME} metadata from controller success!\n",
        )  # fmt: skip
        code, shown_text = ours("getSyncStateSet", *controller, "-b", NAME)
        assert code == 0
        assert first.address not in shown_text
        code, shown_text = ours(
            "updateControllerConfig", *controller, "-k", "scanInactiveMasterInterval", "-v", "900"
        )
        assert "scanInactiveMasterInterval : 900" in shown_text


def check_settings(cluster: ElectedCluster, admin: MqAdmin, file: Path) -> None:
    """See the settings of the controller, and change one, which stands in its file then."""
    address, key = ("-a", cluster.controller.address), "scanInactiveMasterInterval"
    shown = admin.run("", "getControllerConfig", *address)
    assert f"============{cluster.controller.address}============" in shown.out, shown
    assert re.search(rf"{key} *=  5000", shown.out), shown

    changed = admin.run("", "updateControllerConfig", *address, "-k", key, "-v", "1000")
    assert "update controller config success!" in changed.out, changed
    assert f"{key} : 1000" in changed.out, changed
    shown = admin.run("", "getControllerConfig", *address)
    assert re.search(rf"{key} *=  1000", shown.out), shown
    assert f"{key}=1000" in file.read_text()

    refused = admin.run("", "updateControllerConfig", *address, "-k", "listenPort", "-v", "1")
    assert "Can not update config in black list." in refused.err, refused


@pytest.mark.long
def test_a_controller_shows_the_settings_that_rocketmq_shows(tmp_path: Path) -> None:
    def shown(controller: Server) -> dict[str, str]:
        controller.start()
        try:
            connection = connect(controller.address)
            body = kit.ok(connection.request(RequestCode.GET_CONTROLLER_CONFIG)).body
            connection.close()
        finally:
            controller.kill()
        return {entry.key: entry.value for entry in java_properties.parse(body.decode())}

    theirs = shown(RealController(JAVA, tmp_path / "theirs"))
    with etcd(tmp_path / "etcd") as store:
        ours = shown(CometController(tmp_path / "ours", store))

    assert theirs.keys() - ours.keys() == OF_THEIR_RAFT
    different = {key for key in theirs.keys() & ours.keys() if theirs[key] != ours[key]}
    assert different <= OF_THE_PROCESS, {key: (theirs[key], ours[key]) for key in different}
