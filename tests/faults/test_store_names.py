"""Copied stores, an etcd that was emptied or restored, and members that lost their power.

In each case another broker could lead, and did lead before brokers had names: messages that were
acknowledged were lost, or two masters acknowledged at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import kit
import pytest
from codes import Answer
from servers import connect

from cometmq.protocol.codes import ResponseCode
from support.controllers.elected_processes import (
    COMET,
    ElectedBroker,
    ElectedCluster,
    ElectedComet,
    running_elected,
)
from support.processes.etcd_server import EtcdKeys

pytestmark = [pytest.mark.needs("etcd"), pytest.mark.promise]

TOPIC = "orders"
LIMIT_S = 60.0
KEYS = "brokerSets/"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ElectedCluster]:
    """A master and a slave in its in-sync set, which have acknowledged one message."""
    with running_elected(
        *(COMET, (COMET, COMET), tmp_path),
        allAckInSyncStateSet=True,
        brokerHeartbeatInterval=200,
        syncBrokerMetadataPeriod=500,
    ) as cluster:
        cluster.await_in_sync(2)
        store(cluster.brokers[0], b"0")
        yield cluster


def store(broker: ElectedBroker, *bodies: bytes) -> None:
    """Store messages; each must be acknowledged."""
    with closing(connect(broker.address)) as connection:
        for body in bodies:
            kit.eventually(
                lambda body=body: kit.send(connection, TOPIC, body).code == Answer.SUCCESS,  # type: ignore[misc]
                timeout=LIMIT_S,
            )


def refusal(broker: ElectedBroker) -> str:
    """Wait until a broker refuses sends; return why."""

    def refused() -> str | None:
        try:
            connection = connect(broker.address)
        except ConnectionRefusedError:
            return None  # it does not listen yet
        try:
            answer = kit.send(connection, TOPIC, b"refused")
        finally:
            connection.close()
        is_refused = answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        return str(answer.remark) if is_refused else None

    return kit.eventually(refused, timeout=LIMIT_S)


def bodies(broker: ElectedBroker, count: int) -> list[bytes]:
    """Return the messages of a broker."""
    with closing(connect(broker.address)) as connection:
        kit.wait_for_queue(connection, TOPIC, count, timeout=LIMIT_S)
        found = kit.read_queue(connection, "readers", TOPIC, count, timeout=LIMIT_S)
    return [message.body for message in found]


def ours(broker: ElectedBroker) -> ElectedComet:
    assert isinstance(broker, ElectedComet)
    return broker


def controller_says(cluster: ElectedCluster, text: str) -> None:
    """Wait until the log of the controller has a text."""
    log = cluster.controller.folder / "cometmq.out"
    kit.eventually(lambda: text in log.read_text(errors="replace"), timeout=LIMIT_S)


def test_a_copy_of_a_store_takes_no_part_while_the_original_runs(
    cluster: ElectedCluster,
) -> None:
    master, slave = cluster.brokers
    copy = cluster.another("copy", copy_of=slave)
    copy.launch()
    copy.await_line("another process with the broker id 2 is alive")
    controller_says(cluster, f"registration refused broker=broker-a/2@127.0.0.1:{copy.port}")

    master.kill()
    assert cluster.await_master(other_than=master) is slave
    store(slave, b"1", b"2")
    assert refusal(copy)
    assert bodies(slave, 3) == [b"0", b"1", b"2"]


def test_brokers_of_a_new_set_do_not_lead_those_of_the_old_one(cluster: ElectedCluster) -> None:
    master, slave = cluster.brokers
    EtcdKeys(cluster.etcd).clear()
    fresh = cluster.another("fresh")
    fresh.launch()
    fresh.await_line("this broker is the master")

    assert "fenced" in refusal(master)
    ours(master).await_line("the controllers have another broker set of this name: met set")
    ours(slave).await_line("the controllers have another broker set of this name: met set")
    controller_says(cluster, "the broker belongs to another set of the name")
    master.kill()
    slave.kill()
    ours(slave).launch()
    kit.eventually(
        lambda: ours(slave).log().count("have another broker set of this name") > 1,
        timeout=LIMIT_S,
    )
    assert refusal(slave)
    assert "log truncated" not in ours(slave).log()


def test_an_older_backup_of_etcd_lets_no_broker_lead_that_lacks_messages(
    cluster: ElectedCluster,
) -> None:
    """The in-sync set of the backup has a member that left it before the messages were stored."""
    master, slave = cluster.brokers
    etcd = EtcdKeys(cluster.etcd)
    backup = etcd.read(KEYS)
    slave.kill()
    cluster.await_in_sync(1)
    store(master, b"1")

    etcd.restore(backup)
    ours(master).await_line("the master of this epoch renews the set")
    cluster.await_state(lambda state: state["syncStateSetEpoch"] > 3)
    store(master, b"2")

    master.kill()
    etcd.restore(backup)
    ours(slave).launch()
    controller_says(cluster, "waits for the brokers 1 at")
    assert refusal(slave)
    master.start()
    cluster.await_in_sync(2)
    assert bodies(master, 3) == [b"0", b"1", b"2"]


def test_a_member_that_lost_its_power_does_not_lead_before_its_log_was_compared(
    cluster: ElectedCluster,
) -> None:
    """The last message was not flushed on the slave."""
    master, slave = cluster.brokers
    for broker in (slave, master):
        broker.kill()
    (slave.store / "abort").write_bytes(b"1\nanother boot")
    [log] = (slave.store / "commitlog").iterdir()
    content = log.read_bytes()
    end = len(content.rstrip(b"\0"))
    with log.open("r+b") as file:
        file.seek(end - 100)
        file.write(bytes(100))

    ours(slave).launch()
    controller_says(cluster, "waits for the brokers 1 at")
    assert refusal(slave)
    master.start()
    cluster.await_in_sync(2)
    assert cluster.master() is master
    assert bodies(master, 1) == [b"0"]
