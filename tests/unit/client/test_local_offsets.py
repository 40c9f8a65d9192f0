"""The file of offsets: RocketMQ's form and the strict one, the older copy, disks that refuse."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from pathlib import Path

import pytest

from cometmq.client.offsets import (
    DEFAULT_FOLDER,
    LocalOffsetStore,
    offset_file,
    parse,
    render,
)
from cometmq.model.errors import ConfigError, StoreError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.system.files import SystemFiles

ONE = MessageQueue("news", "broker-a", 3)
TWO = MessageQueue("news", "broker-b", 0)
TABLE = {ONE: QueueOffset(23), TWO: QueueOffset(7)}

COMPACT = (
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"news"}:23,'
    b'{"brokerName":"broker-b","queueId":0,"topic":"news"}:7}}'
)
PRETTY = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":3,
\t\t\t"topic":"news"
\t\t}:23,{
\t\t\t"brokerName":"broker-b",
\t\t\t"queueId":0,
\t\t\t"topic":"news"
\t\t}:7
\t}
}"""


def store(folder: Path, **options: object) -> LocalOffsetStore:
    return LocalOffsetStore(folder, "10.0.0.1@DEFAULT", "readers", **options)  # type: ignore[arg-type]


async def kept(folder: Path, table: dict[MessageQueue, QueueOffset]) -> Path:
    """Keep a table of offsets, and give the file."""
    made = store(folder)
    for queue, offset in table.items():
        made.update(queue, offset)
    await made.persist(table)
    return made.path


def test_the_file_lies_under_the_client_id_and_the_group() -> None:
    assert offset_file(Path("/data"), "10.0.0.1@DEFAULT", "readers") == Path(
        "/data/10.0.0.1@DEFAULT/readers/offsets.json"
    )
    assert offset_file(None, "c", "g").is_relative_to(DEFAULT_FOLDER.expanduser())


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "a\\b", "a\0b"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="client id"):
        offset_file(None, name, "g")
    with pytest.raises(ConfigError, match="group"):
        offset_file(None, "c", name)


@pytest.mark.parametrize("text", [COMPACT, PRETTY, render(TABLE, strict=True)])
def test_both_forms_are_read(text: bytes) -> None:
    assert parse(text) == TABLE


def test_the_usual_form_is_rocketmqs_own() -> None:
    assert render(TABLE) == COMPACT


def test_the_strict_form_is_json() -> None:
    found = json.loads(render(TABLE, strict=True))

    assert {
        json.loads(queue)["queueId"]: offset for queue, offset in found["offsetTable"].items()
    } == {
        3: 23,
        0: 7,
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[]", "expected under offsetTable"),
        (b"{}", "expected under offsetTable"),
        (b'{"offsetTable":[1]}', "expected under offsetTable"),
        (b'{"offsetTable":{{"topic":"t"}:1}}', "is not a queue"),
        (b'{"offsetTable":{"[1]":1}}', "is not a queue"),
        (b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:-1}}', "-1 is not an offset"),
        (
            b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:"x"}}',
            "'x' is not an offset",
        ),
    ],
)
def test_what_is_no_table_of_offsets_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)


async def test_offsets_are_there_after_a_restart(tmp_path: Path) -> None:
    await kept(tmp_path, TABLE)

    fresh = store(tmp_path)
    await fresh.load()

    assert fresh.table() == TABLE
    assert await fresh.stored(ONE) == 23
    assert await fresh.stored(MessageQueue("news", "broker-a", 9)) is None


async def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    fresh = store(tmp_path)
    await fresh.load()

    assert fresh.table() == {}


@pytest.mark.parametrize("damage", [b"", b'{"offsetTable":{{"bro', None])
async def test_the_copy_is_read_when_the_file_is_empty_broken_or_gone(
    tmp_path: Path, damage: bytes | None
) -> None:
    await kept(tmp_path, {ONE: QueueOffset(22)})
    path = await kept(tmp_path, {ONE: QueueOffset(23)})
    path.unlink() if damage is None else path.write_bytes(damage)

    fresh = store(tmp_path)
    await fresh.load()

    assert fresh.table() == {ONE: 22}


async def test_loading_fails_when_file_and_copy_are_broken(tmp_path: Path) -> None:
    path = await kept(tmp_path, TABLE)
    path.write_bytes(b"x")
    path.with_name("offsets.json.bak").write_bytes(b"y")

    with pytest.raises(StoreError, match=r"offsets\.json"):
        await store(tmp_path).load()


async def test_queues_that_are_not_written_now_stay_in_the_file(tmp_path: Path) -> None:
    path = await kept(tmp_path, TABLE)
    again = store(tmp_path)
    await again.load()
    again.update(ONE, QueueOffset(24))
    again.forget(TWO)

    await again.persist([ONE])

    assert parse(path.read_bytes()) == {ONE: 24, TWO: 7}


async def test_nothing_is_written_when_nothing_has_changed(tmp_path: Path) -> None:
    again = store(tmp_path)
    again.update(ONE, QueueOffset(1))
    await again.persist([ONE])
    again.path.unlink()

    await again.persist([ONE])

    assert not again.path.exists()


class FullDisk(SystemFiles):
    """A disk that has no room while it is full."""

    full = True

    def write(self, path: Path, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left")
        super().write(path, data)


async def test_a_disk_that_refuses_is_logged_and_all_is_written_next_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    made = store(tmp_path, files=disk)
    made.update(ONE, QueueOffset(1))
    with caplog.at_level(logging.ERROR):
        await made.persist([ONE])
    assert "cannot write offsets" in caplog.text

    disk.full = False
    await made.persist([ONE])

    assert parse(made.path.read_bytes()) == {ONE: 1}


async def test_writes_at_the_same_time_leave_a_whole_file_with_the_newest_offsets(
    tmp_path: Path,
) -> None:
    made = store(tmp_path)

    async def move(offset: int) -> None:
        made.update(ONE, QueueOffset(offset))
        await made.persist([ONE])

    await asyncio.gather(*(move(offset) for offset in range(1, 20)))

    assert parse(made.path.read_bytes()) == {ONE: 19}


async def test_a_frozen_queue_stays_where_it_is_until_it_is_forgotten(tmp_path: Path) -> None:
    made = store(tmp_path)
    made.freeze(ONE, QueueOffset(5))
    made.update(ONE, QueueOffset(9))
    assert made.position(ONE) == 5

    made.forget(ONE)
    made.update(ONE, QueueOffset(9))
    assert made.position(ONE) == 9


def test_an_offset_that_may_only_grow_does_not_go_back(tmp_path: Path) -> None:
    made = store(tmp_path)
    made.update(ONE, QueueOffset(5))
    made.update(ONE, QueueOffset(4), increase_only=True)
    assert made.position(ONE) == 5
    made.update(ONE, QueueOffset(4))
    assert made.position(ONE) == 4
