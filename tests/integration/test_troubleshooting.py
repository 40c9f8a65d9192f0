"""Runs every command of the how-to pages about symptoms, full disks and sizes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from cometmq.client import AdminClient
from support.processes.howto_pages import Guide, consumed, following, send

BODIES = [f"m{number}" for number in range(20)]


async def begin(guide: Guide) -> None:
    """Start the servers of a page; leave a group with a backlog."""
    guide.start("namesrv")
    guide.start("broker.conf")
    await send(guide, *BODIES)
    await consumed(guide, "billing", 5)


async def test_every_command_about_a_symptom_runs(tmp_path: Path) -> None:
    with following("troubleshoot", tmp_path) as guide:
        await begin(guide)
        printed = await asyncio.to_thread(guide.run_all)

    assert "problems=" in printed
    assert "broker-a" in printed  # cluster list, topic route
    assert re.search(r" putTps +\d", printed)
    assert "SEND_OK queue=orders@broker-a" in printed
    assert re.search(r" orders@broker-a:\d offset=\d+ ", printed)  # tail
    assert re.search(r"^Message id ", printed, re.MULTILINE)  # message find
    assert re.search(r"^Topic +Broker +Queue +Committed ", printed, re.MULTILINE)  # group lag
    assert "move group billing" in printed  # offset skip


async def test_every_command_about_a_full_disk_runs_and_does_what_the_page_says(
    tmp_path: Path,
) -> None:
    with following("full-disk", tmp_path) as guide:
        await begin(guide)
        printed = await asyncio.to_thread(guide.run_all)
        async with AdminClient(guide.name_servers) as admin:
            config = await admin.broker_config(guide.address("10911"))

    assert config["fileReservedTime"] == "24"
    assert "commitLogDiskRatio" in printed
    assert re.search(r"FINE|problems=", printed)
    assert "remove write permission of broker-a" in printed
    assert "restore write permission of broker-a" in printed
    assert "fileReservedTime=24" in (tmp_path / "broker.conf").read_text()


@pytest.mark.parametrize(("body", "record"), [(1000, 1217), (10, 227)])
async def test_the_program_computes_the_size_of_a_record(
    tmp_path: Path, body: int, record: int
) -> None:
    with following("size-a-broker", tmp_path) as guide:
        printed = await asyncio.to_thread(guide.program, "record =", BODY=body)

    assert f"record={record} bytes" in printed


async def test_what_the_page_measures_is_what_it_computes(tmp_path: Path) -> None:
    with following("size-a-broker", tmp_path) as guide:
        guide.start("namesrv")
        guide.start("broker.conf")
        printed = await asyncio.to_thread(guide.run_all)

    [text] = re.findall(r"putMessageAverageSize +: +([\d.]+)", printed)
    body = sum(len(f"{number} is a message like yours") for number in range(1, 501)) / 500
    properties = float(text) - 91 - body - len("orders")
    assert 60 < properties < 180, properties  # about 100 bytes, a key and a tag
    assert len((tmp_path / "sent").read_text().splitlines()) == 500
    assert "problems=" in printed
