"""Whatever differs between a store's log and the files that follow from it is found."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.store.inspect import Finding, StoreReader
from support.stores.small_stores import opened, put, small_settings

COUNT = 300
UNIT = struct.Struct(">qiq")
ENTRIES_AT = 40 + 16 * 4


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store of three queues of two topics, with two keys in each message."""
    made = opened(tmp_path / "store")
    for number in range(COUNT):
        put(
            made,
            b"%d" % number,
            topic=("a", "b")[number % 2],
            queue_id=number % 3,
            properties={"TAGS": f"t{number % 5}", "KEYS": f"k{number}", "UNIQ_KEY": f"u{number}"},
        )
    made.close()
    return tmp_path / "store"


def findings_of(store: Path) -> list[Finding]:
    with StoreReader(small_settings(store)) as reader:
        return list(reader.verify())


def change(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def queue_file(store: Path, topic: str = "a", queue_id: int = 0) -> Path:
    return min((store / "consumequeue" / topic / str(queue_id)).iterdir())


def index_file(store: Path) -> Path:
    return min((store / "index").iterdir())


def unit_at(path: Path, number: int) -> tuple[int, int, int]:
    return UNIT.unpack_from(path.read_bytes(), number * 20)


def set_unit(store: Path, number: int, **changes: int) -> None:
    path = queue_file(store)
    names = ("location", "size", "code")
    unit = dict(zip(names, unit_at(path, number), strict=True)) | changes
    change(path, number * 20, UNIT.pack(*(unit[name] for name in names)))


def add_unit(store: Path, topic: str, queue_id: int, number: int) -> None:
    """Add the unit of another record behind the last one of queue 0 of topic a."""
    path = queue_file(store)
    new = path.with_name(f"{COUNT // 6 * 20:020d}")  # a file holds 50 units
    new.write_bytes(
        UNIT.pack(*unit_at(queue_file(store, topic, queue_id), number)).ljust(
            path.stat().st_size, b"\0"
        )
    )


def take_units_of_another_topic(store: Path) -> None:
    """Queue 0 of a new topic leads to the records of a."""
    shutil.copytree(store / "consumequeue" / "a" / "0", store / "consumequeue" / "c" / "0")


def drop_queue(store: Path) -> None:
    queue_file(store, "b", 1).unlink()


def change_entry(store: Path) -> None:
    change(index_file(store), ENTRIES_AT + 3 * 20, struct.pack(">i", 12345))


def move_entry(store: Path) -> None:
    """The last entry of a file is of a record that nobody stored."""
    change(index_file(store), ENTRIES_AT + 63 * 20 + 4, struct.pack(">q", 1 << 40))


def double_entry(store: Path) -> None:
    """The entry after the last one of the newest file has its chain, and a key of no record."""
    path = max((store / "index").iterdir())
    data = path.read_bytes()
    number = struct.unpack_from(">i", data, 36)[0]
    entry = struct.unpack_from(">iqii", data, ENTRIES_AT + (number - 1) * 20)
    change(path, ENTRIES_AT + number * 20, struct.pack(">iqii", 7, *entry[1:]))
    change(path, 36, struct.pack(">i", number + 1))


def change_slot(store: Path) -> None:
    path = index_file(store)
    data = path.read_bytes()
    number = next(n for n in range(16) if any(data[40 + n * 4 : 44 + n * 4]))
    change(path, 40 + number * 4, bytes(4))


def damage_body(store: Path, body: bytes = b"10") -> None:
    needle = len(body).to_bytes(4, "big") + body + b"\x01"
    for path in (store / "commitlog").iterdir():
        if (position := path.read_bytes().find(needle)) >= 0:
            change(path, position + 4, b"x")
            return
    raise AssertionError(f"no body {body!r}")


def damage_last_body(store: Path) -> None:
    """Nothing follows it, so that the log may seem to end before it."""
    damage_body(store, b"%d" % (COUNT - 1))


NO_RECORD = "expected a record there"
DAMAGES: list[tuple[str, Callable[[Path], None], dict[str, int]]] = [
    ("code", lambda store: set_unit(store, 5, code=7), {"7), expected (": 1}),
    ("location", lambda store: set_unit(store, 5, location=9), {"met (9,": 1, NO_RECORD: 1}),
    ("size", lambda store: set_unit(store, 6, size=99), {"99, ": 1, NO_RECORD: 1}),
    ("filler", lambda store: set_unit(store, 7, size=0x7FFFFFFF), {"2147483647, ": 1}),
    ("surplus", lambda store: add_unit(store, "a", 0, 3), {"met a unit for offset 3 of queue": 1}),
    ("topic", take_units_of_another_topic, {"of topic a": COUNT // 6}),
    ("queue", drop_queue, {"expected a unit for it": COUNT // 6}),
    ("entry", change_entry, {"expected an index entry": 1, "for the hash 12345": 1}),
    ("record", move_entry, {"expected an index entry": 1, f"log offset {1 << 40}": 1}),
    ("key", double_entry, {"for the hash 7 ": 1}),
    ("slot", change_slot, {"expected an index entry": 1}),
    ("body", damage_body, {"as whole records follow": 1}),
    ("last body", damage_last_body, {NO_RECORD: 1}),
]


def test_a_whole_store_has_no_findings(store: Path) -> None:
    assert findings_of(store) == []


@pytest.mark.parametrize(
    ("damage", "expected"), [case[1:] for case in DAMAGES], ids=[case[0] for case in DAMAGES]
)
def test_damage_is_found(
    store: Path, damage: Callable[[Path], None], expected: dict[str, int]
) -> None:
    damage(store)
    texts = [finding.text for finding in findings_of(store)]
    for words, count in expected.items():
        met = sum(words in text for text in texts)
        assert met >= count, (words, texts)
        assert met == count or words == "expected an index entry", (words, texts)


def test_a_finding_has_the_file_and_the_byte(store: Path) -> None:
    change_entry(store)
    places = [(finding.path, finding.position) for finding in findings_of(store)]
    assert (index_file(store), ENTRIES_AT + 3 * 20) in places


def test_a_store_that_is_written_to_is_whole(tmp_path: Path) -> None:
    """Half messages behind the last unit included, of which only the log knows."""
    made = opened(tmp_path)
    for number in range(50):
        put(made, properties={"KEYS": f"k{number}"})
    put(made, topic="RMQ_SYS_TRANS_HALF_TOPIC", sys_flag=4, properties={"KEYS": "half"})
    made.flush()
    assert findings_of(tmp_path) == []
    made.close()
