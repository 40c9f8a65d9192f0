"""The JSON files beside the messages: replaced as a whole, read from the backup when broken."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.errors import StoreError
from cometmq.model.topic import TopicConfig
from cometmq.store.config_files import JsonFile, entry_text
from cometmq.system.files import Files

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


class Breaking(Files):
    """Files whose operations fail from the ``nth`` change on, as those of a dying process do."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "Input/output error")

    def make_dirs(self, path: Path) -> None:
        self._count()
        super().make_dirs(path)

    def write(self, path: Path, data: bytes) -> None:
        self._count()
        super().write(path, data)

    def rename(self, path: Path, target: Path) -> None:
        self._count()
        super().rename(path, target)

    def sync_dir(self, path: Path) -> None:
        self._count()
        super().sync_dir(path)


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def file(tmp_path: Path) -> JsonFile:
    return JsonFile(tmp_path / "config" / "x.json", Files())


def test_missing_file_has_no_content(file: JsonFile) -> None:
    assert file.load() is None


def test_saved_content_is_loaded(file: JsonFile) -> None:
    file.save({"a": {"b": [1, "ü"]}, "t": TopicConfig(topic_name="T")})
    found = file.load()
    assert found is not None
    assert found["a"] == {"b": [1, "ü"]}
    assert found["t"]["topicName"] == "T"


@pytest.mark.parametrize("broken", [b"", b"{", b"\x00" * 50, b"[1]", b"null", b"\xff\xfe"])
def test_broken_file_is_read_from_the_backup(file: JsonFile, broken: bytes) -> None:
    file.save({"n": 1})
    file.save({"n": 2})
    file.path.write_bytes(broken)
    assert file.load() == {"n": 1}


def test_file_and_backup_broken_is_an_error_that_names_the_file(file: JsonFile) -> None:
    file.save({"n": 1})
    file.save({"n": 2})
    file.path.write_bytes(b"{")
    file.path.with_name("x.json.bak").write_bytes(b"{")
    with pytest.raises(StoreError, match=r"x\.json"):
        file.load()


@pytest.mark.parametrize("nth", range(6))
def test_saving_that_breaks_off_anywhere_leaves_the_old_or_the_new_content(
    tmp_path: Path, nth: int
) -> None:
    whole = JsonFile(tmp_path / "x.json", Files())
    whole.save({"n": 1})
    whole.save({"n": 2})
    breaking = Breaking(nth)
    try:
        JsonFile(tmp_path / "x.json", breaking).save({"n": 3})
    except StoreError:
        assert whole.load() in ({"n": 2}, {"n": 3})
    else:
        assert breaking.left >= 0
        assert whole.load() == {"n": 3}


class Hanging(Files):
    """A disk whose renames take until the test lets them go on."""

    def __init__(self) -> None:
        self.go_on, self.hanging = threading.Event(), threading.Event()

    def rename(self, path: Path, target: Path) -> None:
        self.hanging.set()
        assert self.go_on.wait(60)
        super().rename(path, target)


def test_closing_waits_for_a_write_and_refuses_further_ones(tmp_path: Path) -> None:
    """Else it could replace what the next broker on this store has written."""
    disk = Hanging()
    file = JsonFile(tmp_path / "x.json", disk)
    writing = threading.Thread(target=file.save, args=({"n": 1},))
    writing.start()
    assert disk.hanging.wait(60)
    closing = threading.Thread(target=file.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    disk.go_on.set()
    closing.join(60)
    assert file.load() == {"n": 1}
    with pytest.raises(StoreError, match=r"x\.json: the broker has stopped"):
        file.save({"n": 2})
    assert file.load() == {"n": 1}
    writing.join(60)


def test_number_keys_without_quotes_are_read(file: JsonFile) -> None:
    file.path.parent.mkdir()
    file.path.write_text('{\n\t"offsetTable":{\n\t\t"T@g":{0:5,1:7\n\t\t}\n\t}\n}')
    assert file.load() == {"offsetTable": {"T@g": {"0": 5, "1": 7}}}


def test_text_looks_as_rocketmq_writes_it() -> None:
    text = entry_text({"b": {"y": 1, "x": None}, "a": [], "c": {}, "d": ["p", "q"]}, depth=0)
    assert text == '{\n\t"a":[],\n\t"b":{\n\t\t"y":1\n\t},\n\t"c":{},\n\t"d":["p","q"]\n}'


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_whatever_is_written_is_the_same_json(content: dict[str, Any]) -> None:
    assert without_none(json.loads(entry_text(content, depth=0))) == without_none(content)
