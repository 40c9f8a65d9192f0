"""Runs the files and commands of the how-to pages about failover and controllers."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

from cometmq.client import AdminClient
from cometmq.testing.cluster import SMALL_FILES
from support.processes.etcd_server import Member, etcd
from support.processes.howto_pages import LIMIT_S, Guide, consumed, following, load, send, stored
from tools.generate.root import ROOT

RELEASE_0_1_0 = "cc924c0d"
"""The commit of the first release."""


async def until_in_sync(guide: Guide, port: str, *, slaves: int = 1) -> None:
    """Wait until a master has that many slaves in its in-sync set."""
    async with asyncio.timeout(LIMIT_S), AdminClient(guide.name_servers) as admin:
        while True:
            status = await admin.replication(guide.address(port))
            if sum(slave.in_sync for slave in status.ha_connection_info) == slaves:
                return
            await asyncio.sleep(0.1)


async def until_copied(guide: Guide, port: str) -> None:
    """Wait until a slave has copied the topic."""
    async with asyncio.timeout(LIMIT_S), AdminClient(guide.name_servers) as admin:
        while "orders" not in await admin.broker_topics(guide.address(port)):
            await asyncio.sleep(0.1)


async def shown(guide: Guide) -> list[str]:
    """What the program of the page prints."""
    return (await asyncio.to_thread(guide.program, "cluster_info")).splitlines()


@pytest.mark.needs("etcd")
async def test_the_page_holds_when_masters_are_killed_and_return(tmp_path: Path) -> None:
    with etcd(tmp_path / "etcd") as store, following("fail-over", tmp_path) as guide:
        file = tmp_path / "controller.conf"
        file.write_text(re.sub(r"etcd://\S+", f"etcd://{store}", file.read_text()))
        for word in ("namesrv", "controller.conf", "one.conf", "two.conf"):
            await asyncio.to_thread(guide.start, word)
        one, two = guide.address("10911"), guide.address("10921")
        await until_in_sync(guide, "10911")
        assert await shown(guide) == [f"{one} master", f"{two} slave"]
        await send(guide, "1", "2")
        await until_copied(guide, "10921")
        state = (await asyncio.to_thread(guide.run, "sync-state")).partition("\n\n")[0]
        assert re.search(rf"^broker-a +1  {one}  master  yes +yes +1$", state, re.M), state
        assert re.search(rf"^broker-a +2  {two}  slave +yes +yes +1$", state, re.M), state
        assert re.search(rf"^broker-a  {one}  \S+ +\d+ +0 B ", state, re.M), state
        assert re.search(r"^broker-a +2 +1 +0 +\d+$", state, re.M), state

        await asyncio.to_thread(guide.run, "elect")
        await until_in_sync(guide, "10921")
        assert await shown(guide) == [f"{two} master", f"{one} slave"]
        await asyncio.to_thread(guide.stop, "two.conf", signal.SIGKILL)
        await send(guide, "3")
        assert await shown(guide) == [f"{one} master"]

        await asyncio.to_thread(guide.start, "two.conf")
        await until_in_sync(guide, "10911")
        assert await shown(guide) == [f"{one} master", f"{two} slave"]
        await send(guide, "4")
        await until_copied(guide, "10921")

        await asyncio.to_thread(guide.stop, "one.conf", signal.SIGTERM)
        await send(guide, "5")
        assert await consumed(guide, "later", 5) == ["1", "2", "3", "4", "5"]


async def until_known(guide: Guide, count: int, word: str) -> str:
    """Wait until that many controllers are known; return the address of the active one."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await asyncio.to_thread(guide.run, "controller status", word)
            [active] = re.findall(r"^Active address +(.*)$", found, re.M)
            [peers] = re.findall(r"^Peers +(.*)$", found, re.M)
            if len(peers.split(", ")) == count:
                return str(active)


@pytest.mark.needs("etcd")
async def test_the_page_about_controllers_holds_when_one_is_lost(tmp_path: Path) -> None:
    with etcd(tmp_path / "etcd") as store, following("run-a-controller", tmp_path) as guide:
        for name in ("controller", "controller-2", "controller-3"):
            file = tmp_path / f"{name}.conf"
            file.write_text(re.sub(r"etcd://\S+", f"etcd://{store}", file.read_text()))
        await asyncio.to_thread(guide.start, "-c controller.conf")
        async with asyncio.timeout(LIMIT_S):
            while "controller is active" not in guide.log():
                await asyncio.sleep(0.05)
        assert await until_known(guide, 1, "-a 127.0.0.1:9878\n") == guide.address("9878")
        for word in ("-c controller-2.conf", "-c controller-3.conf"):
            await asyncio.to_thread(guide.start, word)
        assert await until_known(guide, 3, "9898") == guide.address("9878")

        changed = await asyncio.to_thread(guide.run, "set-config")
        assert changed.count(" done") == 3
        values = await asyncio.to_thread(guide.run, "set-config")
        assert len(re.findall(r"scanInactiveMasterInterval +1000$", values, re.M)) == 3

        await asyncio.to_thread(guide.stop, "-c controller.conf")
        assert await until_known(guide, 2, "9898") != guide.address("9878")


def newest(guide: Guide) -> str:
    """Choose the broker whose log counts, as the page says, from what its commands print."""
    printed = guide.run("tail -n 1", "store list")
    epochs = [int(number) for number in re.findall(r"^(\d+)-\d+$", printed, re.M)]
    ends = [int(number) for number in re.findall(r" end=(\d+)", printed)]
    assert len(epochs) == len(ends) == 2, printed
    return max(zip(epochs, ends, ("one.conf", "two.conf"), strict=True))[2]


def of_release(commit: str, folder: Path) -> dict[str, str]:
    """Write the packages of an older release; return the environment in which Python finds them."""
    packed = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode:
        pytest.skip(f"git does not have the commit {commit}: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return {"PYTHONPATH": str(folder / "src"), "COMETMQ_BUILD": "interpreted"}


@pytest.mark.needs("etcd")
@pytest.mark.parametrize(
    "release", ["", pytest.param(RELEASE_0_1_0, marks=pytest.mark.long, id="0.1.0")]
)
async def test_a_cluster_is_upgraded_and_no_send_fails(release: str, tmp_path: Path) -> None:
    """Every server is restarted; without an older release with the same code."""
    with etcd(tmp_path / "etcd") as store, following("upgrade-a-cluster", tmp_path) as guide:
        for name in ("controller.conf", "controller-2.conf"):
            file = tmp_path / name
            file.write_text(re.sub(r"etcd://\S+", f"etcd://{store}", file.read_text()))
        for name in ("one.conf", "two.conf", "three.conf"):
            guide.set(name, **SMALL_FILES, syncBrokerMetadataPeriod="200")
        if release:
            guide.environment = of_release(release, tmp_path / "release")
        for word in (
            "namesrv",
            "controller.conf",
            "controller-2.conf",
            "one.conf",
            "two.conf",
            "three.conf",
        ):
            await asyncio.to_thread(guide.start, word)
        if not release:
            for port in ("5571", "5572", "5573"):
                await asyncio.to_thread(guide.run, f"{port}/ready")
        else:
            await until_in_sync(guide, "10911", slaves=2)
        await send(guide, "before")
        guide.environment = {}
        async with load(guide) as sender:
            await sender.acknowledge(50)
            for word, ready in (
                ("controller-2.conf", "5580/ready"),
                ("controller.conf", "5570/ready"),
                ("three.conf", "5573/ready"),
                ("two.conf", "5572/ready"),
                ("one.conf", "5571/ready"),
            ):
                await asyncio.to_thread(guide.stop, word)
                await asyncio.to_thread(guide.start, word)
                if "controller" not in word:
                    assert "ready\n" in await asyncio.to_thread(guide.run, ready)
                await sender.acknowledge(50)
            await asyncio.to_thread(guide.run, "5570/ready")
            state = await asyncio.to_thread(guide.run, "sync-state")
            await asyncio.to_thread(guide.run, "controller elect")
            await sender.acknowledge(50)
        assert sender.failures == []
        assert len(re.findall(r"^broker-a .* yes +yes +\d+$", state, re.M)) == 3, state
        assert re.search(r"^broker-a +[23] .* master ", state, re.M), state
        # A send that the client repeats after a failover may be stored twice.
        everything = set(await consumed(guide, "audit", await stored(guide)))
        assert everything == {"before", *sender.acknowledged}


@pytest.mark.needs("etcd")
async def test_brokers_are_registered_again_when_the_data_of_etcd_is_lost(tmp_path: Path) -> None:
    """The broker to keep has the newest epoch, and a message that the other one lacks."""
    etcds = [Member(tmp_path / name) for name in ("etcd-old", "etcd-new")]
    with following("fail-over", tmp_path) as guide, contextlib.ExitStack() as stack:
        file = tmp_path / "controller.conf"
        text = file.read_text()
        for member in etcds:
            stack.callback(member.kill)
            await asyncio.to_thread(member.launch, member.entry)
            await asyncio.to_thread(member.wait)
        file.write_text(re.sub(r"etcd://\S+", f"etcd://{etcds[0].address}", text))
        for word in ("namesrv", "controller.conf", "one.conf", "two.conf"):
            await asyncio.to_thread(guide.start, word)
        await until_in_sync(guide, "10911")
        await send(guide, "1", "2")
        await until_copied(guide, "10921")
        await asyncio.to_thread(guide.stop, "one.conf", signal.SIGKILL)
        await send(guide, "3")
        await asyncio.to_thread(guide.stop, "two.conf")
        await asyncio.to_thread(guide.stop, "controller.conf")
        etcds[0].kill()

        file.write_text(re.sub(r"etcd://\S+", f"etcd://{etcds[1].address}", text))
        await asyncio.to_thread(guide.start, "controller.conf")
        await asyncio.to_thread(guide.start, "one.conf")
        async with asyncio.timeout(LIMIT_S):
            while "the controllers do not know the id 1" not in guide.log():
                await asyncio.sleep(0.1)
        await asyncio.to_thread(guide.stop, "one.conf")

        chosen = await asyncio.to_thread(newest, guide)
        assert chosen == "two.conf"
        await asyncio.to_thread(guide.run, "rm -f ./one/brokerIdentity")
        await asyncio.to_thread(guide.start, chosen)
        await asyncio.to_thread(guide.start, "one.conf")
        await until_in_sync(guide, "10921")
        await send(guide, "4")
        await asyncio.to_thread(guide.stop, chosen, signal.SIGKILL)
        assert await consumed(guide, "later", 4) == ["1", "2", "3", "4"]
