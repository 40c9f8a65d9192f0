"""The calls of the client to its system; these tests also run as if on other systems."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import threading
from pathlib import Path

import pytest

from cometmq.system.platforms import SYSTEM


def test_a_rename_replaces_a_file(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).write_text(name)
    SYSTEM.replace(tmp_path / "new", tmp_path / "old")
    SYSTEM.sync_directory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "new"


def test_a_rename_waits_for_a_program_that_reads_the_file(tmp_path: Path) -> None:
    """On systems where an open file cannot be replaced."""
    (tmp_path / "new").write_text("new")
    (tmp_path / "old").write_text("old")
    file = (tmp_path / "old").open()
    closing = threading.Timer(0.05, file.close)
    closing.start()
    try:
        SYSTEM.replace(tmp_path / "new", tmp_path / "old")
    finally:
        closing.join()
    assert (tmp_path / "old").read_text() == "new"


def test_a_lock_excludes_others_until_its_file_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as first, (tmp_path / "lock").open("w") as second:
        SYSTEM.lock(first.fileno())
        with pytest.raises(BlockingIOError):
            SYSTEM.lock(second.fileno())
        first.close()
        SYSTEM.lock(second.fileno(), wait=True)


def test_a_part_of_a_file_is_read_into_a_buffer(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123\r\n6789")
    descriptor = SYSTEM.open_to_read(str(tmp_path / "file"))
    buffer = bytearray(8)
    assert SYSTEM.read_into(descriptor, memoryview(buffer), 4) == 6
    assert bytes(buffer) == b"\r\n6789\0\0"
    os.close(descriptor)


def test_a_private_file_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old and longer")
    with os.fdopen(SYSTEM.open_private(tmp_path / "file"), "wb") as file:
        file.write(b"new\n")
        file.flush()
        SYSTEM.sync_file(file.fileno())
    assert (tmp_path / "file").read_bytes() == b"new\n"
    assert SYSTEM.only_user_can_write(tmp_path / "file")


async def test_signals_call_into_the_loop_until_they_are_restored() -> None:
    called = asyncio.Event()
    before = signal.getsignal(signal.SIGTERM)
    restore = SYSTEM.on_signals(asyncio.get_running_loop(), called.set)
    try:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(called.wait(), 30)
    finally:
        restore()
    assert signal.getsignal(signal.SIGTERM) == before


def test_there_is_a_processor() -> None:
    assert 1 <= SYSTEM.processors() <= (os.cpu_count() or 1)


def test_the_client_loads() -> None:
    importlib.import_module("cometmq.client.blocking")
