"""Offset files that RocketMQ 4.9.7 and 5.3.3 wrote are read and continued."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cometmq.broker.offsets.offset_store import OffsetStore, read_numbers
from cometmq.store.config_files import JsonFile
from cometmq.system.files import Files
from golden.recordings import VERSIONS
from support.checks.manual_clock import ManualClock
from support.wire.recorded import unpack_store

NUMBERS = re.compile(r'"([^"]+@[^"]+)":\{([0-9:,]+)')


@pytest.fixture(params=VERSIONS)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpack_store(f"{request.param}-main", tmp_path) / "config"


def numbers(text: str) -> dict[int, int]:
    return {int(key): int(value) for key, value in (part.split(":") for part in text.split(","))}


def test_consumer_offsets_are_read_and_written_again(config: Path) -> None:
    path = config / "consumerOffset.json"
    expected = {key: numbers(text) for key, text in NUMBERS.findall(path.read_text())}
    assert expected
    offsets = OffsetStore(JsonFile(path, Files()), clock=ManualClock())
    offsets.load(lambda topic, queue_id: (0, 2**63 - 1))
    assert offsets.table() == expected

    offsets.commit("g", "T", 3, 4)
    offsets.persist(lambda: None)
    again = OffsetStore(JsonFile(path, Files()), clock=ManualClock())
    again.load(lambda topic, queue_id: (0, 2**63 - 1))
    assert again.table() == expected | {"T@g": {3: 4}}
    assert again.version == offsets.version


def test_delay_offsets_are_read(config: Path) -> None:
    file = JsonFile(config / "delayOffset.json", Files())
    content = file.load()
    assert content is not None
    text = re.search(r'"offsetTable":\{([0-9:,]+)', file.path.read_text())
    assert text is not None
    assert read_numbers(content["offsetTable"], file) == numbers(text[1])
