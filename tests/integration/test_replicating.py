"""Runs the files and commands of the how-to page about replication."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.client import AdminClient, Message, Producer, SendStatus
from cometmq.model.errors import CometError
from support.processes.howto_pages import LIMIT_S, Guide, consumed, following, send


@pytest.fixture
def guide(tmp_path: Path) -> Iterator[Guide]:
    with following("replicate-a-broker", tmp_path) as guide:
        yield guide


async def until_acknowledged(guide: Guide) -> None:
    """Wait until a slave is connected, and has a topic."""
    deadline = time.monotonic() + LIMIT_S
    async with Producer(guide.name_servers, group="p") as producer:
        while True:
            try:
                receipt = await producer.send(Message("probe", b"x"))
                if receipt.status is SendStatus.SEND_OK:
                    return
            except CometError:  # the route is older than the broker
                pass
            assert time.monotonic() < deadline, guide.log()
            await asyncio.sleep(0.2)


async def until_copied(guide: Guide, topic: str, port: str) -> None:
    """Wait until a slave has copied a topic."""
    async with asyncio.timeout(LIMIT_S), AdminClient(guide.name_servers) as admin:
        while topic not in await admin.broker_topics(guide.address(port)):
            await asyncio.sleep(0.2)


async def test_the_page_holds_from_the_first_start_to_a_replaced_master(guide: Guide) -> None:
    guide.start("namesrv")
    guide.start("master.conf")
    guide.start("slave.conf")
    await until_acknowledged(guide)
    await send(guide, "1", "2", "3")
    await until_copied(guide, "orders", "10921")
    shown = await asyncio.to_thread(guide.program, "replication")
    assert re.fullmatch(r"127\.0\.0\.1:\d+ \d+ bytes behind\n", shown), shown

    await asyncio.to_thread(guide.stop, "master.conf", signal.SIGKILL)
    assert await consumed(guide, "while-the-master-is-gone", 3) == ["1", "2", "3"]

    await asyncio.to_thread(guide.stop, "slave.conf")
    guide.start("promoted.conf")
    guide.start("returned.conf")
    await until_acknowledged(guide)
    await send(guide, "4")
    assert await consumed(guide, "later", 4) == ["1", "2", "3", "4"]
