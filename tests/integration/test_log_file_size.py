"""The size of a store's log files: small in `cometmq standalone`, and kept by whatever opens it."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.client import AdminClient, Message, Producer
from cometmq.store import SMALL_LOG_FILE_BYTES, MessageStore, StoreSettings
from support.stores.small_stores import put

LIMIT_S = 60.0
DEFAULT_BYTES = 1024 * 1024 * 1024


@asynccontextmanager
async def standalone(store: Path, *options: str) -> AsyncIterator[list[str]]:
    """A server on a store, and the two lines that it prints; it is stopped in order."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cometmq", "standalone", *options,
        *("--namesrv-port", "0", "--broker-port", "0", "--store", str(store)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        try:
            yield [(await process.stdout.readline()).decode() for _ in range(2)]
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()
    assert process.returncode == 0


def log_sizes(store: Path) -> list[int]:
    return [path.stat().st_size for path in sorted((store / "commitlog").iterdir())]


async def shown_size(ready: str) -> str:
    """The setting as tools are shown it, by the servers of a ready line."""
    found = re.match(r"ready namesrv=(\S+) broker=(\S+) ", ready)
    assert found is not None, ready
    async with AdminClient(found[1]) as admin:
        settings = await admin.broker_config(found[2])
    return settings["mappedFileSizeCommitLog"]


async def test_a_new_store_takes_little_disk_and_a_line_says_so(tmp_path: Path) -> None:
    store = tmp_path / "store"

    async with standalone(store) as (ready, said):
        name_server = ready.split()[1].removeprefix("namesrv=")
        async with Producer(name_server, group="g") as producer:
            await producer.send(Message("orders", b"hello"))
        assert await shown_size(ready) == str(SMALL_LOG_FILE_BYTES)

    assert re.fullmatch(
        rf"store {store} takes \d+ MiB of disk and grows by files of 64 MiB; --store FOLDER .*\n",
        said,
    )
    assert log_sizes(store) == [SMALL_LOG_FILE_BYTES]


async def test_a_store_with_the_files_of_a_broker_keeps_their_size(tmp_path: Path) -> None:
    store = MessageStore(StoreSettings(root=tmp_path / "store"))
    store.open()
    put(store, b"one")
    store.close()

    async with standalone(tmp_path / "store") as (ready, said):
        assert await shown_size(ready) == str(DEFAULT_BYTES)

    assert "grows by files of 1024 MiB" in said
    assert log_sizes(tmp_path / "store") == [DEFAULT_BYTES]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("mappedFileSizeCommitLog=4194304", "4194304"), ("maxMessageSize=67108864", "1073741824")],
)
async def test_a_setting_or_a_message_that_needs_more_decides_the_size(
    setting: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "broker.conf").write_text(f"{setting}\n")

    async with standalone(tmp_path / "store", "-c", str(tmp_path / "broker.conf")) as (ready, _):
        assert await shown_size(ready) == expected
