"""The key-value table and its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.model.errors import ConfigError, StoreError
from cometmq.namesrv.kv_config import table
from cometmq.namesrv.kv_config.table import KvTable, TableFullError
from cometmq.remoting.slow_requests import begin_request
from cometmq.store.config_files import JsonFile
from cometmq.system.files import Files


def table_in(folder: Path) -> KvTable:
    file = JsonFile(folder / "kvConfig.json", Files())
    return KvTable(file.load(), file.save)


async def test_values_are_there_after_a_restart(tmp_path: Path) -> None:
    kv = table_in(tmp_path)
    await kv.put("ns", "k", "v ü\n")
    await kv.put("ns", "gone", "x")
    await kv.delete("ns", "gone")
    again = table_in(tmp_path)
    assert again.get("ns", "k") == "v ü\n"
    assert await again.namespace("ns") == {"k": "v ü\n"}


async def test_what_was_never_put_is_none(tmp_path: Path) -> None:
    kv = table_in(tmp_path)
    assert kv.get("ns", "k") is None
    assert await kv.namespace("ns") is None
    await kv.delete("ns", "k")
    assert not (tmp_path / "kvConfig.json").exists()


async def test_emptied_namespace_is_known_still(tmp_path: Path) -> None:
    kv = table_in(tmp_path)
    await kv.put("ns", "k", "v")
    await kv.delete("ns", "k")
    assert await kv.namespace("ns") == {}


async def test_namespace_is_handed_out_as_a_copy(tmp_path: Path) -> None:
    kv = table_in(tmp_path)
    await kv.put("ns", "k", "v")
    found = await kv.namespace("ns")
    assert found is not None
    found["k"] = "changed"
    assert kv.get("ns", "k") == "v"


def test_file_of_rocketmq_is_read(tmp_path: Path) -> None:
    text = '{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:2"}}}'
    (tmp_path / "kvConfig.json").write_text(text)
    assert table_in(tmp_path).get("ORDER_TOPIC_CONFIG", "T") == "broker-a:2"


@pytest.mark.parametrize("text", ["{}", '{"configTable":[]}', '{"configTable":{"ns":"k"}}'])
def test_file_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "kvConfig.json").write_text(text)
    with pytest.raises(ConfigError):
        table_in(tmp_path)


async def test_change_that_cannot_be_written_is_not_made(tmp_path: Path) -> None:
    kv = table_in(tmp_path / "folder")
    await kv.put("ns", "k", "old")
    (tmp_path / "folder" / "kvConfig.json.tmp").mkdir()
    with pytest.raises(StoreError):
        await kv.put("ns", "k", "new")
    assert kv.get("ns", "k") == "old"


async def test_table_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ENTRIES_MAX", 2)
    kv = table_in(tmp_path)
    await kv.put("a", "1", "x")
    await kv.put("b", "1", "x")
    await kv.put("b", "1", "y")
    with pytest.raises(TableFullError):
        await kv.put("c", "1", "x")


async def test_the_wait_for_the_file_is_time_of_a_thread(tmp_path: Path) -> None:
    spent = begin_request()
    await table_in(tmp_path).put("ns", "k", "v")

    assert list(spent) == ["thread"]
