"""Extension units: their files, their ends, and queues that have them only in part."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.store import MessageStore, TagMatcher
from cometmq.store.errors import StoreCorruptError
from cometmq.store.log.segments import Segments
from cometmq.store.queues.consume_queue_ext import ConsumeQueueExt, ExtUnit, address_of, is_address
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock
from support.stores.faulty_files import FaultyFiles, nearly_full_disk
from support.stores.small_stores import TOPIC, new_record, put, split


def ext_in(folder: Path, size_bytes: int = 64, files: Files | None = None) -> ConsumeQueueExt:
    segments = Segments(files or Files(), folder / "ext", size_bytes)
    ext = ConsumeQueueExt(segments, writing=True)
    ext.load()
    return ext


def test_a_file_without_room_for_a_unit_and_its_end_mark_is_closed(tmp_path: Path) -> None:
    ext = ext_in(tmp_path)
    addresses = [ext.put(code, 5) for code in range(4)]
    # Two units of 20 bytes and 24 free bytes: 20 fit as they leave 4.
    assert [address - address_of(0) for address in addresses] == [0, 20, 40, 64]
    data = (tmp_path / "ext" / f"{0:020d}").read_bytes()
    assert data[60:] == b"\xff\xff\0\0"


def test_a_unit_that_no_file_has_room_for_is_not_written(tmp_path: Path) -> None:
    ext = ext_in(tmp_path)
    assert ext.put(7, 5, bytes(41)) == 7  # the tags code itself, no address
    assert ext.get(ext.put(8, 5, bytes(40))) == ExtUnit(8, 5, bytes(40))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
def test_the_stream_goes_on_where_its_files_end(tmp_path: Path, count: int) -> None:
    first = ext_in(tmp_path)
    units = [ExtUnit(code, 9, b"\x01" * (code % 3)) for code in range(count)]
    addresses = [first.put(unit.tags_code, unit.store_ms, unit.bitmap) for unit in units]
    first.close()
    again = ext_in(tmp_path)
    assert again.end_offset == first.end_offset
    assert [again.get(address) for address in addresses] == units
    assert again.get(again.put(77, 1)) == ExtUnit(77, 1)


def test_a_file_that_was_there_before_gets_its_blocks_before_it_is_written(tmp_path: Path) -> None:
    """RocketMQ leaves it sparse: on a full disk a write to its mapping is a signal."""
    ext_in(tmp_path).put(3, 5)
    files = FaultyFiles()
    files.room_bytes = 0
    again = ext_in(tmp_path, files=files)
    assert again.put(7, 5) == 7  # the tags code itself, no address
    files.room_bytes = 100
    assert is_address(again.put(7, 5))
    assert is_address(again.put(7, 5))


def test_space_for_units_is_reserved_in_steps_and_by_unit_when_little_is_left(
    tmp_path: Path,
) -> None:
    room, unit_bytes = 2**20, 20
    files = FaultyFiles()
    files.room_bytes = room
    ext = ext_in(tmp_path, room, files)
    for number in range(1200):
        assert is_address(ext.put(number, 5))
        assert room - files.room_bytes <= 4096 + 2 * number * unit_bytes
    files.room_bytes = unit_bytes + 4
    written = 0
    while is_address(ext.put(7, 5)):
        written += 1
        assert written < 1200
    assert files.room_bytes < unit_bytes + 4


def test_units_go_on_behind_an_empty_file_when_the_file_before_it_is_not_full(
    tmp_path: Path,
) -> None:
    first = ext_in(tmp_path)
    addresses = [first.put(code, 5) for code in range(2)]
    first.segments.add(64)
    first.close()
    again = ext_in(tmp_path)
    addresses.append(again.put(2, 5))
    assert [again.get(address) for address in addresses] == [ExtUnit(n, 5) for n in range(3)]


@pytest.mark.parametrize("offset", [-1, 1, 20, 40, 10**6, 2**40])
def test_an_address_without_a_unit_finds_none(tmp_path: Path, offset: int) -> None:
    ext = ext_in(tmp_path)
    ext.put(3, 5)
    assert ext.get(address_of(offset) if offset >= 0 else offset) is None
    assert ext.tags_code_of(-5) == -5


def test_a_store_with_extension_units_reads_the_same_tags_codes(
    open_store: Callable[..., MessageStore],
) -> None:
    store = open_store(consume_queue_ext_enabled=True)
    for _ in range(30):
        put(store, properties={"TAGS": "TagA"})
    assert {code for _, _, code in store.consume_queue_units(TOPIC, 0, 0, 99)} == {2598919}
    store.close()
    again = open_store()  # the setting is off now, the files are still there
    put(again, properties={"TAGS": "TagB"})
    codes = [code for _, _, code in again.consume_queue_units(TOPIC, 0, 0, 99)]
    assert codes == [2598919] * 30 + [2598920]


class OneBit:
    """Wants messages whose bit map has the first bit."""

    needs_properties = True

    def __init__(self) -> None:
        self.evaluated: list[bytes] = []

    def matches_tags(self, tags_code: int) -> bool:
        return True

    def matches_bitmap(self, store_ms: int, bitmap: bytes) -> bool:
        return not bitmap or bitmap[0] & 1 == 1

    def matches_properties(self, properties: bytes) -> bool:
        self.evaluated.append(properties)
        return b"yes" in properties


def test_a_search_evaluates_only_what_the_bit_maps_let_pass(
    open_store: Callable[..., MessageStore], tmp_path: Path
) -> None:
    store = open_store(consume_queue_ext_enabled=True)
    put(store, b"without", properties={"a": "yes"})
    met: list[tuple[str, bytes, int]] = []

    def bitmap_of(topic: str, properties: bytes, store_ms: int, at_once: int) -> bytes:
        met.append((topic, properties, at_once))
        return b"\0" if b"no" in properties else b"\1"

    store.compute_bitmaps(bitmap_of)
    for value in ("yes", "no", "other", "yes"):
        put(store, value.encode(), properties={"a": value})
    matcher = OneBit()
    result = store.get(TOPIC, 0, 0, 32, matcher)
    assert [message.body for message in split(b"".join(result.slices))] == [
        b"without", b"yes", b"yes",
    ]  # fmt: skip
    assert len(matcher.evaluated) == 4
    assert met[0] == (TOPIC, b"a\x01yes\x02", 1)
    units = store.ext_units(TOPIC, 0, 0, 5)
    assert [unit.bitmap for unit in units if unit is not None] == [
        b"", b"\1", b"\0", b"\1", b"\1",
    ]  # fmt: skip


def test_messages_of_a_batch_are_counted_together(
    open_store: Callable[..., MessageStore],
) -> None:
    store = open_store(consume_queue_ext_enabled=True)
    counts: list[int] = []

    def bitmap_of(topic: str, properties: bytes, store_ms: int, at_once: int) -> bytes:
        counts.append(at_once)
        return b"\7"

    store.compute_bitmaps(bitmap_of)
    items = [BatchItem(0, b"x", b"a\x011\x02")] * 3
    store.append_batch(new_record(encode_batch(items)))
    put(store)
    assert counts == [3, 3, 3, 1]


@pytest.mark.parametrize("kept", [0, 3])
def test_truncating_a_queue_truncates_its_extension_units(
    open_store: Callable[..., MessageStore], kept: int
) -> None:
    store = open_store(consume_queue_ext_enabled=True)
    ends = [put(store, properties={"TAGS": "TagA"}) for _ in range(20)]
    end = 0 if kept == 0 else ends[kept - 1].log_offset + ends[kept - 1].size_bytes
    queue = store._table.find(TOPIC, 0)
    assert queue is not None
    queue.truncate(end)
    assert queue.max_offset == kept
    assert queue.ext.end_offset == kept * 20
    assert queue.ext.segments.count == (1 if kept else 0)


def test_extension_units_leave_with_their_messages(
    open_store: Callable[..., MessageStore], clock: ManualClock, tmp_path: Path
) -> None:
    store = open_store(
        files=nearly_full_disk(), file_reserved_hours=0, consume_queue_ext_enabled=True
    )
    for _ in range(400):
        put(store, properties={"TAGS": "TagA"})
    folder = tmp_path / "consumequeue_ext" / TOPIC / "0"
    before = len(list(folder.iterdir()))
    store.write_out()
    clock.advance(10**12)
    while store.clean():
        pass
    low, high = store.bounds(TOPIC, 0)
    assert 0 < low < high
    assert 0 < len(list(folder.iterdir())) < before
    assert {code for _, _, code in store.consume_queue_units(TOPIC, 0, low, 999)} == {2598919}
    assert all(unit is not None for unit in store.ext_units(TOPIC, 0, low, high - low))


def test_queue_units_hold_addresses_while_the_setting_is_on(
    open_store: Callable[..., MessageStore], tmp_path: Path
) -> None:
    store = open_store(consume_queue_ext_enabled=True)
    put(store, properties={"TAGS": "TagA"})
    store.close()
    unit = (tmp_path / "consumequeue" / TOPIC / "0" / f"{0:020d}").read_bytes()[:20]
    assert is_address(int.from_bytes(unit[12:], "big", signed=True))


def test_a_crash_leaves_no_unit_behind_the_queues_end(
    open_store: Callable[..., MessageStore],
) -> None:
    store = open_store(consume_queue_ext_enabled=True)
    for _ in range(10):
        put(store, properties={"TAGS": "TagA"})
    store.abandon()
    again = open_store(consume_queue_ext_enabled=True)
    put(again, properties={"TAGS": "TagB"})
    codes = [code for _, _, code in again.consume_queue_units(TOPIC, 0, 0, 99)]
    assert codes == [2598919] * 10 + [2598920]


TAG_A, TAG_B = 2598919, 2598920
MATCHERS = {
    "one tag": TagMatcher(frozenset({TAG_A})),
    "several tags": TagMatcher(frozenset({TAG_A, 1})),
}


def lose_all(folder: Path) -> None:
    shutil.rmtree(folder)


def lose_the_content(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize("lose", [lose_all, lose_the_content])
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("matcher", MATCHERS.values(), ids=MATCHERS)
def test_messages_without_their_extension_units_are_left_to_the_client(
    open_store: Callable[..., MessageStore],
    tmp_path: Path,
    lose: Callable[[Path], None],
    enabled: bool,
    matcher: TagMatcher,
) -> None:
    """The client compares tags, too: a message that is left out here is lost."""
    store = open_store(consume_queue_ext_enabled=True)
    for _ in range(5):
        put(store, properties={"TAGS": "TagA"})
    store.close()
    lose(tmp_path / "consumequeue_ext")
    again = open_store(consume_queue_ext_enabled=enabled)
    for tag in ("TagB", "TagA"):
        put(again, properties={"TAGS": tag})

    result = again.get(TOPIC, 0, 0, 32, matcher)

    found = [message.queue_offset for message in split(b"".join(result.slices))]
    assert found == [0, 1, 2, 3, 4, 6]
    codes = [code for _, _, code in again.consume_queue_units(TOPIC, 0, 0, 99)]
    assert codes[5:] == [TAG_B, TAG_A]
    assert all(is_address(code) for code in codes[:5])


def test_units_go_on_behind_a_lost_file(tmp_path: Path) -> None:
    ext = ext_in(tmp_path)
    addresses = [ext.put(code, 5) for code in range(9)]  # in three files
    ext.close()
    for name in (64, 128):
        (tmp_path / "ext" / f"{name:020d}").unlink()
    again = ext_in(tmp_path)

    again.begin_behind(addresses[-1])

    fresh = [again.put(code, 5) for code in range(100, 109)]
    assert min(fresh) > addresses[-1]
    assert [again.get(address) for address in fresh] == [ExtUnit(n, 5) for n in range(100, 109)]
    assert not any(again.get(address) for address in addresses[3:])
    again.close()
    last = ext_in(tmp_path)
    assert last.end_offset == again.end_offset
    last.begin_behind(fresh[-1])
    assert last.end_offset == again.end_offset


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:30])


@pytest.mark.parametrize("damage", [Path.unlink, cut_off])
@pytest.mark.parametrize("number", [0, 2, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_file_of_units_that_is_missing_or_cut_off_stops_no_start(
    open_store: Callable[..., MessageStore],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    number: int,
    enabled: bool,
) -> None:
    store = open_store(consume_queue_ext_enabled=True, consume_queue_ext_file_bytes=200)
    for _ in range(50):  # 9 to a file
        put(store, properties={"TAGS": "TagA"})
    store.close()
    files = sorted((tmp_path / "consumequeue_ext" / TOPIC / "0").iterdir())
    assert len(files) == 6
    damage(files[number])
    matcher = TagMatcher(frozenset({TAG_A}))

    for total in (51, 52):
        again = open_store(consume_queue_ext_enabled=enabled, consume_queue_ext_file_bytes=200)
        put(again, properties={"TAGS": "TagA"})
        found = [
            message.queue_offset
            for offset in range(0, total, 32)
            for message in split(b"".join(again.get(TOPIC, 0, offset, 32, matcher).slices))
        ]
        assert found == list(range(total))
        units = again.ext_units(TOPIC, 0, 0, total)
        again.close()

    if number == 2 or damage is cut_off:
        assert "unusable files: one is missing or cut off" in caplog.text
    if number == -1:
        assert "extension units lost" in caplog.text
    else:
        lost = 9 * (number + 1)
        assert [unit is not None for unit in units[:50]] == [False] * lost + [True] * (50 - lost)


@pytest.mark.parametrize("count", [5, 50], ids=["one file", "several files"])
@pytest.mark.parametrize("size_bytes", [100, 300])
def test_files_keep_their_size_if_the_setting_changes(
    open_store: Callable[..., MessageStore], tmp_path: Path, count: int, size_bytes: int
) -> None:
    folder = tmp_path / "consumequeue_ext" / TOPIC / "0"
    store = open_store(consume_queue_ext_enabled=True, consume_queue_ext_file_bytes=200)
    for _ in range(count):
        put(store)
    store.close()
    before = sorted(folder.iterdir())

    again = open_store(consume_queue_ext_enabled=True, consume_queue_ext_file_bytes=size_bytes)
    for _ in range(20):
        put(again)
    assert all(again.ext_units(TOPIC, 0, 0, count + 20))
    again.close()
    after = sorted(folder.iterdir())
    assert after[: len(before)] == before
    assert {file.stat().st_size for file in after} == {200}


def test_a_file_that_is_no_file_of_units_is_an_error(
    open_store: Callable[..., MessageStore], tmp_path: Path
) -> None:
    store = open_store(consume_queue_ext_enabled=True)
    put(store)
    store.close()
    folder = tmp_path / "consumequeue_ext" / TOPIC / "0"
    (folder / f"{7:020d}").write_bytes(bytes(200))
    with pytest.raises(StoreCorruptError, match="expected"):
        open_store(consume_queue_ext_enabled=True)
    assert len(list(folder.iterdir())) == 2


def test_extension_units_are_deleted_after_their_last_message_if_they_are_off(
    open_store: Callable[..., MessageStore], clock: ManualClock, tmp_path: Path
) -> None:
    settings = {"files": nearly_full_disk(), "file_reserved_hours": 0}
    folder = tmp_path / "consumequeue_ext"
    store = open_store(**settings, consume_queue_ext_enabled=True)
    for _ in range(30):
        put(store, properties={"TAGS": "TagA"})
    store.close()

    store = open_store(**settings)
    put(store, properties={"TAGS": "TagA"}, queue_id=1)
    assert store._table.find(TOPIC, 1).ext is None  # type: ignore[union-attr]
    assert store._table.find(TOPIC, 0).ext is not None  # type: ignore[union-attr]
    for _ in range(400):
        put(store, properties={"TAGS": "TagA"})
    store.write_out()
    clock.advance(10**12)
    while store.clean():
        pass
    low, high = store.bounds(TOPIC, 0)
    assert 30 < low < high
    store.close()
    assert folder.exists()

    store = open_store(**settings)
    assert not folder.exists()
    assert {code for _, _, code in store.consume_queue_units(TOPIC, 0, low, 999)} == {TAG_A}
    assert not store._loader.has_ext
