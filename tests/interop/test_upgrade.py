"""Follows the how-to page that changes a RocketMQ pair to CometMQ, one broker at a time."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from cometmq.client import Message, Producer, SendStatus
from cometmq.model.errors import CometError
from support.brokers.replicas import running_pair
from support.processes.howto_pages import LIMIT_S, Guide, consumed, following, load, stored
from support.runner.versions import VERSIONS


async def until_acknowledged_by_both(guide: Guide) -> None:
    """Wait until the master has a slave that follows."""
    async with (
        asyncio.timeout(LIMIT_S),
        Producer(guide.name_servers, group="probe", timeout_ms=10_000) as producer,
    ):
        while True:
            try:
                receipt = await producer.send(Message("probe", b"x"))
            except CometError:
                continue
            if receipt.status is SendStatus.SEND_OK:
                return
            await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    "version", [VERSIONS[0], pytest.param(VERSIONS[1], marks=pytest.mark.long)]
)
async def test_a_pair_changes_under_load_and_loses_nothing(version: str, tmp_path: Path) -> None:
    with running_pair(version, tmp_path / "pair") as pair:
        (tmp_path / "master").symlink_to(pair.master.store)
        (tmp_path / "slave").symlink_to(pair.replica.store)
        ports = {
            "10911": int(pair.master.broker.rpartition(":")[2]),
            "10921": pair.replica.port,
        }
        where = pair.master.namesrv
        with following("upgrade-from-rocketmq", tmp_path, name_servers=where, ports=ports) as guide:
            async with load(guide) as sender:
                await sender.acknowledge(100)
                await asyncio.to_thread(pair.replica.stop)
                verified = await asyncio.to_thread(guide.run, "store verify")
                assert " findings=0\n" in verified
                guide.start("broker -c slave.conf")
                await sender.acknowledge(100)
                listed = await asyncio.to_thread(guide.run, "store list")
                assert len(re.findall(r"commit log: files=\d begin=0 end=\d+", listed)) == 2

                await asyncio.to_thread(pair.master.stop_broker)
                guide.start("broker -c master.conf")
                await sender.acknowledge(100)
            await until_acknowledged_by_both(guide)
            sent = sender.acknowledged
            read = await consumed(guide, "audit", await stored(guide))

            guide.start("namesrv")
            await asyncio.to_thread(guide.run, "sed")
            for server in ("broker -c slave.conf", "broker -c master.conf"):
                await asyncio.to_thread(guide.stop, server)
                guide.start(server)
            pair.master.stop()
            guide.name_servers = f"127.0.0.1:{guide.ports['9877']}"
            await until_acknowledged_by_both(guide)
            await asyncio.to_thread(guide.stop, "broker -c master.conf")
            kept = await consumed(guide, "audit-of-the-slave", len(read))
    assert set(sent) <= set(read)
    assert set(kept) == set(read)
