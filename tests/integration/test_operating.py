"""Runs the how-to pages about backups, disks, machines and the size of a cluster.

The pages' own files, commands and programs run; messages are sent and consumed in between.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.client import (
    AdminClient,
    PushConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.testing.cluster import SMALL_FILES
from support.processes.etcd_server import EtcdKeys, etcd
from support.processes.howto_pages import LIMIT_S, Guide, consumed, following, load, send, stored
from support.runner.tiers import rounds

PRINTED = r"backup=backup taken=\S+ begin=0 end=\d+ last_message=\S+ files=\d+ seconds=\S+\n"
BODIES = [f"m{number:04}" for number in range(300)]


async def in_thread(work: Callable[..., object], *words: object, **more: object) -> str:
    return str(await asyncio.to_thread(work, *words, **more))


async def until_in_sync(guide: Guide, port: str) -> None:
    """Wait until a slave has the whole log of the master at this port."""
    async with asyncio.timeout(LIMIT_S), AdminClient(guide.name_servers) as admin:
        while True:
            slaves = (await admin.replication(guide.address(port))).ha_connection_info
            if slaves and slaves[0].diff == 0:
                return
            await asyncio.sleep(0.1)


async def until_copied(guide: Guide, port: str) -> None:
    """Wait until the slave at this port has copied the topic."""
    async with asyncio.timeout(LIMIT_S), AdminClient(guide.name_servers) as admin:
        while "orders" not in await admin.broker_topics(guide.address(port)):
            await asyncio.sleep(0.1)


async def until_offsets_are_copied(store: Path) -> None:
    """Wait until a slave has written the offsets of the group."""
    file = store / "config" / "consumerOffset.json"
    async with asyncio.timeout(LIMIT_S):
        while not file.exists() or "orders@g" not in file.read_text():
            await asyncio.sleep(0.1)


async def logged(guide: Guide, text: str) -> None:
    """Wait until a server has logged a text."""
    async with asyncio.timeout(LIMIT_S):
        while text not in guide.log():
            await asyncio.sleep(0.1)


def on_etcd(file: Path, store: str) -> None:
    """Name an etcd in the file of a controller."""
    file.write_text(file.read_text().replace("127.0.0.1:2379", store))


async def until_routed(guide: Guide) -> None:
    """Wait until the topic has a master."""
    async with asyncio.timeout(LIMIT_S), AdminClient(guide.name_servers) as admin:
        while "orders" not in await admin.topics():
            await asyncio.sleep(0.1)


async def test_a_backup_of_a_broker_under_load_has_what_was_acknowledged(tmp_path: Path) -> None:
    with following("back-up-a-store", tmp_path) as guide:
        guide.start("namesrv")
        guide.start("broker.conf", "./store")
        async with load(guide) as sender:
            for number in range(rounds(test=1, long=20)):
                if number:
                    await asyncio.to_thread(shutil.rmtree, tmp_path / "backup")
                await sender.acknowledge(200)
                before = list(sender.acknowledged)
                printed = await in_thread(guide.run, "store backup ./store")
                assert re.fullmatch(PRINTED, printed)
                verified = await in_thread(guide.run, "store verify")
                assert "orders" in verified
                assert " findings=0\n" in verified
                [count] = re.findall(r"records=(\d+)", verified)
                assert int(count) >= len(before)
            await sender.acknowledge(1)

        await in_thread(guide.stop, "broker.conf", signal.SIGKILL)
        await in_thread(guide.run, "store restore")
        guide.start("broker.conf", "./restored")
        restored = await consumed(guide, "audit", int(count))
        await send(guide, "after")
        assert await consumed(guide, "audit", 1) == ["after"]
    assert len(set(restored)) == len(restored)
    assert set(before) <= set(restored) <= set(sender.acknowledged)


@pytest.mark.needs("etcd")
@pytest.mark.promise
async def test_a_broker_with_a_controller_starts_on_a_backup(tmp_path: Path) -> None:
    with etcd(tmp_path / "etcd") as store, following("back-up-a-store", tmp_path) as guide:
        for name in ("controller.conf", "unclean.conf"):
            on_etcd(tmp_path / name, store)
        for word in ("namesrv", "controller.conf", "first.conf"):
            await in_thread(guide.start, word)
        await send(guide, *BODIES)
        async with load(guide) as sender:
            await in_thread(guide.run, "--to ./second")
            await in_thread(guide.start, "second.conf")
            await sender.acknowledge(50)
        await until_in_sync(guide, "10931")
        await until_copied(guide, "10941")
        await in_thread(guide.stop, "first.conf", signal.SIGKILL)
        await send(guide, "to the second")
        sent = [*BODIES, *sender.acknowledged, "to the second"]
        assert await consumed(guide, "g", len(sent)) == sorted(sent)

        await in_thread(guide.shell, "cometmq store backup second --to backup -c second.conf")
        await send(guide, "lost")
        await in_thread(guide.stop, "second.conf", signal.SIGKILL)
        await in_thread(guide.shell, "rm -r first; cometmq store restore backup --to first")
        await in_thread(guide.stop, "controller.conf")
        await in_thread(guide.start, "controller -c unclean.conf")
        await in_thread(guide.start, "first.conf")
        await until_routed(guide)
        await send(guide, "to the restored")
        sent[-1:] = ["to the restored", "to the second"]
        assert await consumed(guide, "audit", len(sent)) == sorted(sent)
        await in_thread(guide.run, "controller forget")
        state = await in_thread(guide.run, "controller sync-state")
        assert re.findall(r"^broker-c +(\d+) .* (\w+) +yes +yes", state, re.M) == [("3", "master")]
        assert state.count("broker-c") == 1


async def test_a_broker_moves_with_all_messages_and_offsets(tmp_path: Path) -> None:
    with following("move-a-broker", tmp_path) as guide:
        guide.start("namesrv")
        guide.start("old.conf")
        await send(guide, *BODIES)
        first = await consumed(guide, "g", 100)
        await in_thread(guide.stop, "old.conf")
        await in_thread(guide.run, "--to ./copied")
        guide.start("copied.conf")
        await send(guide, "after")
        rest = await consumed(guide, "g", len(BODIES) + 1 - len(first))
    assert sorted([*first, *rest]) == sorted([*BODIES, "after"])


async def test_a_broker_moves_with_a_slave_under_load(tmp_path: Path) -> None:
    with following("move-a-broker", tmp_path) as guide:
        guide.start("namesrv")
        guide.start("old.conf")
        await send(guide, *BODIES)
        first = await consumed(guide, "g", 100)
        async with load(guide) as sender:
            await sender.acknowledge(50)
            await in_thread(guide.run, "--to ./new")
            guide.start("slave.conf")
            await sender.acknowledge(50)
            waited = await in_thread(guide.run, "python wait.py")
            assert waited.endswith(": 0 bytes behind']\n")
            await in_thread(guide.stop, "old.conf")
            await in_thread(guide.stop, "slave.conf")
            ends = re.findall(r"end=(\d+)", await in_thread(guide.run, "store list ./old"))
            assert len(ends) == 2
            assert ends[0] == ends[1]
            await in_thread(guide.run, "cp ./old/config")
            guide.start("new.conf")
            await sender.acknowledge(50)
        sent = BODIES + sender.acknowledged
        rest = await consumed(guide, "g", len(sent) - len(first))
    assert sorted([*first, *rest]) == sorted(sent)


async def test_disks_of_a_master_and_its_slave_are_replaced(tmp_path: Path) -> None:
    with following("replace-a-disk", tmp_path) as guide:
        guide.start("namesrv")
        guide.start("master.conf", "./old-disk")
        guide.start("slave.conf", "./slave")
        await send(guide, *BODIES)
        await until_in_sync(guide, "10911")
        await in_thread(guide.stop, "master.conf")
        await in_thread(guide.run, "--to ./new-disk/store")
        guide.start("master.conf", "./new-disk/store")
        await send(guide, "after the master's")
        await until_in_sync(guide, "10911")

        await in_thread(guide.shell, "cometmq store backup slave --to of-the-slave -c slave.conf")
        verified = await in_thread(guide.shell, "cometmq store verify of-the-slave")
        assert re.search(rf"records={len(BODIES) + 1} .* findings=0\n", verified)

        await in_thread(guide.stop, "slave.conf")
        await in_thread(guide.run, "--to ./new-slave")
        guide.start("slave.conf", "./new-slave")
        await send(guide, "after the slave's")
        await until_in_sync(guide, "10911")
        await in_thread(guide.stop, "master.conf", signal.SIGKILL)
        expected = sorted([*BODIES, "after the master's", "after the slave's"])
        assert await consumed(guide, "g", len(expected)) == expected


async def until_of_set(guide: Guide, *lines: str) -> str:
    """Wait until the controllers show brokers like this; return what the page's command prints."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            state = await in_thread(guide.run, "controller sync-state")
            if all(re.search(line, state, re.M) for line in lines):
                return state
            await asyncio.sleep(0.2)


@pytest.mark.needs("etcd")
async def test_disks_of_brokers_with_a_controller_are_replaced_by_empty_ones(
    tmp_path: Path,
) -> None:
    with etcd(tmp_path / "etcd") as store, following("replace-a-disk", tmp_path) as guide:
        on_etcd(tmp_path / "controller.conf", store)
        guide.set("elected.conf", **SMALL_FILES)
        for word in ("namesrv", "controller.conf", "./first", "./second"):
            await in_thread(guide.start, word)
        await until_of_set(guide, "^broker-c +2 .* slave +yes +yes ")
        await send(guide, *BODIES)
        async with load(guide) as sender:
            await sender.acknowledge(50)
            await in_thread(guide.stop, "./second", signal.SIGKILL)
            await in_thread(guide.run, "rm -rf ./second")
            await in_thread(guide.start, "./second")
            state = await until_of_set(guide, "^broker-c +3 .* slave +yes +yes ")
            assert re.search("^broker-c +2 .* no +no ", state, re.M), state
            await in_thread(guide.run, "controller forget")

            await until_copied(guide, "10941")
            await in_thread(guide.stop, "./first", signal.SIGKILL)
            await in_thread(guide.shell, "rm -rf ./first")
            await until_of_set(guide, "^broker-c +3 .* master +yes +yes ")
            await in_thread(guide.start, "./first")
            await until_of_set(guide, "^broker-c +4 .* slave +yes +yes ")
            await sender.acknowledge(50)
        await until_copied(guide, "10931")
        count = await stored(guide)  # a send that the client repeated may be stored twice
        await in_thread(guide.stop, "./second", signal.SIGKILL)
        assert set(await consumed(guide, "g", count)) == {*BODIES, *sender.acknowledged}


@pytest.mark.needs("etcd")
async def test_a_cluster_is_recovered_after_the_loss_of_all(tmp_path: Path) -> None:
    with (
        etcd(tmp_path / "etcd") as lost,
        etcd(tmp_path / "new-etcd") as store,
        following("recover-a-cluster", tmp_path) as guide,
    ):
        settings = (tmp_path / "controller.conf").read_text()
        on_etcd(tmp_path / "controller.conf", lost)
        guide.set("broker.conf", **SMALL_FILES)
        for word in ("namesrv", "controller.conf", "10911", "10921"):
            await in_thread(guide.start, word)
        await until_of_set(guide, "^broker-a +2 .* slave +yes +yes ")
        elect = "cometmq admin controller elect -a 127.0.0.1:9878 --yes broker-a 2"
        await in_thread(guide.shell, guide.placed(elect))  # the epoch of the log is 2
        await until_of_set(guide, "^broker-a +1 .* slave +yes +yes ")
        await send(guide, *BODIES)
        first = await consumed(guide, "g", 100)
        await until_offsets_are_copied(tmp_path / "two")
        await in_thread(guide.run, "--to ./backup")
        await send(guide, "lost")
        again = await consumed(guide, "g", 50)
        for word in ("10911", "10921", "controller.conf"):
            await in_thread(guide.stop, word, signal.SIGKILL)
        shutil.copytree(tmp_path / "two", tmp_path / "snapshot")

        (tmp_path / "controller.conf").write_text(settings)
        on_etcd(tmp_path / "controller.conf", store)
        await in_thread(guide.start, "controller.conf")
        await in_thread(guide.run, "store restore")
        await in_thread(guide.start, "./restored")
        await until_of_set(guide, f"{guide.address('10931')}  master +yes +yes ")
        await in_thread(guide.start, "./second")
        await until_of_set(guide, f"{guide.address('10941')}  slave +yes +yes ")
        await send(guide, "after")
        rest = await consumed(guide, "g", len(BODIES) + 1 - len(first))
        assert sorted([*first, *rest]) == sorted([*BODIES, "after"])
        assert set(again) <= {*rest, "lost"}

        await in_thread(guide.start, "10951")
        await logged(guide, "the controllers have another broker set of this name")
        async with AdminClient(guide.name_servers) as admin:
            [brokers] = (await admin.cluster_info()).broker_addr_table.values()
        known = set(brokers.broker_addrs.values())
        assert known == {guide.address("10931"), guide.address("10941")}
        await in_thread(guide.stop, "10951")

        await in_thread(guide.stop, "./second")
        await in_thread(guide.stop, "./restored")
        # The same in a further new cluster, with a copy of a disk in place of the backup.
        await in_thread(guide.stop, "controller.conf")
        EtcdKeys(store).clear()
        await in_thread(guide.start, "controller.conf")
        await in_thread(guide.run, "rm -f ./snapshot")
        await in_thread(guide.start, "./snapshot")
        await until_of_set(guide, f"{guide.address('10961')}  master +yes +yes ")
        kept = sorted([*BODIES, "lost"])
        assert await consumed(guide, "audit", len(kept)) == kept


async def test_a_cluster_grows_and_shrinks_without_a_lost_message(tmp_path: Path) -> None:
    with following("resize-a-cluster", tmp_path) as guide:
        guide.start("namesrv")
        guide.start("broker-a.conf")
        await send(guide, *BODIES)
        async with AdminClient(guide.name_servers) as admin:
            await admin.create_static_topic("static", 1)  # the new broker gets no ordinary one
        first = await consumed(guide, "g", 50)
        guide.start("broker-b.conf")
        grown = await in_thread(guide.run, "python grow.py")
        assert re.findall(r"^topic (.+)$", grown, re.M) == ["orders"]
        assert "group g\n" in grown
        rest: list[str] = []

        async def receive(message: StoredMessage) -> None:
            rest.append(message.body.decode())

        consumer = PushConsumer(
            guide.name_servers,
            group="g",
            handler=receive,
            subscriptions={"orders": "*"},
            start_from=StartFrom.FIRST,
            persist_ms=200,
            route_refresh_ms=500,
        )
        async with consumer, load(guide) as sender:
            await sender.acknowledge(50)
            drained = await in_thread(guide.program, "stop_writing", QUIET_S=3)
            assert drained.endswith("broker-a can be stopped\n")
            await in_thread(guide.stop, "broker-a.conf")
            await sender.acknowledge(50)
            sender.stop()
            async with asyncio.timeout(LIMIT_S):
                while len(set(rest)) + len(first) < len(BODIES) + len(sender.acknowledged):
                    await asyncio.sleep(0.1)
    assert sorted({*first, *rest}) == sorted(BODIES + sender.acknowledged)
