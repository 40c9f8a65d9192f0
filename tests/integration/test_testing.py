"""The clusters that the package offers to tests of other programs."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.client import (
    AdminClient,
    Message,
    Producer,
    PullConsumer,
    StartFrom,
    TopicNotFoundError,
)
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.testing import Cluster, ServerProcess, ServerStartError, ThreadedCluster
from support.checks import plugin_options
from tools.generate.root import ROOT


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


async def test_a_cluster_serves_within_its_block_and_is_gone_after_it() -> None:
    async with Cluster() as cluster:
        addresses = [cluster.name_servers, *cluster.broker_addresses]
        async with Producer(cluster.name_servers, group="g") as sending:
            receipt = await sending.send(Message("t", b"x"))
        assert receipt.queue.broker_name == "broker-0"
        root = cluster.brokers[0].core.store.settings.root

    assert not any(answers(address) for address in addresses)
    assert not root.exists()


async def test_a_cluster_can_have_several_brokers() -> None:
    async with Cluster(brokers=2) as cluster, AdminClient(cluster.name_servers) as admin:
        queues = await admin.create_topic("t", queues=2)

    assert [str(q) for q in queues] == [
        "t@broker-0:0", "t@broker-0:1", "t@broker-1:0", "t@broker-1:1"
    ]  # fmt: skip


async def test_a_living_broker_takes_the_messages_of_one_that_stopped() -> None:
    async with Cluster(brokers=2) as cluster, Producer(cluster.name_servers, group="g") as sending:
        async with AdminClient(cluster.name_servers) as admin:
            await admin.create_topic("t", queues=2)
        await sending.send(Message("t", b"x"))
        await cluster.brokers[0].stop()

        receipts = [await sending.send(Message("t", b"x")) for _ in range(6)]

    assert {receipt.queue.broker_name for receipt in receipts} == {"broker-1"}


async def test_settings_reach_every_broker() -> None:
    async with (
        Cluster(settings={"autoCreateTopicEnable": "false"}) as cluster,
        Producer(cluster.name_servers, group="g") as sending,
    ):
        with pytest.raises(TopicNotFoundError):
            await sending.send(Message("t", b"x"))


async def test_a_broker_in_the_place_of_a_name_server_is_told() -> None:
    async with Cluster() as cluster:
        (address,) = cluster.broker_addresses
        async with Producer(address, group="g") as sending:
            with pytest.raises(ResponseError, match=f"{address} is not a name server"):
                await sending.send(Message("t", b"x"))


async def test_a_wrong_setting_is_told_and_leaves_nothing_running() -> None:
    cluster = Cluster(settings={"flushDiskType": "SOMETIMES"})

    with pytest.raises(ConfigError, match="SOMETIMES"):
        await cluster.start()
    assert cluster.brokers == []


def test_plain_tests_get_a_cluster_in_a_thread() -> None:
    async def use(name_servers: str) -> bytes:
        async with Producer(name_servers, group="g") as sending:
            receipt = await sending.send(Message("t", b"x"))
        async with PullConsumer(name_servers, group="c", start_from=StartFrom.FIRST) as reading:
            return (await reading.pull(receipt.queue, 0)).messages[0].body

    with ThreadedCluster() as cluster:
        assert asyncio.run(use(cluster.name_servers)) == b"x"
        addresses = [cluster.name_servers, *cluster.broker_addresses]
    assert not any(answers(address) for address in addresses)


def test_a_cluster_in_a_thread_tells_why_it_does_not_start() -> None:
    with pytest.raises(ConfigError, match="SOMETIMES"):
        ThreadedCluster(settings={"flushDiskType": "SOMETIMES"}).start()


async def test_a_process_that_ends_before_it_is_ready_tells_why(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"ended with 2.*/nowhere"):
        await ServerProcess.start("broker", "-c", "/nowhere", log=tmp_path / "log")


async def test_a_process_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    command = ("namesrv", "--port", "0")
    with pytest.raises(TimeoutError):
        await ServerProcess.start(*command, log=tmp_path / "log", timeout=0.001)


def test_the_fixtures_serve_a_test_of_somebody_else() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *plugin_options.OPTIONS, "examples/08_in_pytest.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("kind", [Cluster, ThreadedCluster])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"brokers": 0}, "brokers=0: expected a whole number of at least 1"),
        ({"brokers": "2"}, "brokers='2': expected a whole number"),
        (
            {"settings": {"enablePropertyFilter": True}},
            "settings: enablePropertyFilter=True: expected text, such as 'true'",
        ),
    ],
)
def test_wrong_options_of_a_cluster_are_refused(
    kind: Callable[..., object], options: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        kind(**options)


@pytest.mark.parametrize("kind", [Cluster, ThreadedCluster])
def test_a_cluster_that_does_not_run_has_no_address(
    kind: type[Cluster] | type[ThreadedCluster],
) -> None:
    with pytest.raises(RuntimeError, match="is not running: use it within"):
        _ = kind().name_servers
