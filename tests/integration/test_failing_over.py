"""Follows the how-to page about failover with its own files and commands."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

from cometmq.client import AdminClient
from support.etcd_server import etcd
from support.guides import LIMIT_S, Guide, consumed, following, send


async def until_in_sync(guide: Guide, port: str) -> None:
    """Wait until a master has a slave in its in-sync set."""
    async with asyncio.timeout(LIMIT_S), AdminClient(guide.name_servers) as admin:
        while True:
            status = await admin.replication(guide.address(port))
            if any(slave.in_sync for slave in status.ha_connection_info):
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

        await asyncio.to_thread(guide.stop, "one.conf", signal.SIGKILL)
        await send(guide, "3")
        assert await shown(guide) == [f"{two} master"]

        await asyncio.to_thread(guide.start, "one.conf")
        await until_in_sync(guide, "10921")
        assert await shown(guide) == [f"{two} master", f"{one} slave"]
        await send(guide, "4")
        await until_copied(guide, "10911")

        await asyncio.to_thread(guide.stop, "two.conf", signal.SIGTERM)
        await send(guide, "5")
        assert await consumed(guide, "later", 5) == ["1", "2", "3", "4", "5"]
