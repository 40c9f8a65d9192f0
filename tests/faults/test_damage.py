"""Bits that flip on the disk: named with file and place, and never made worse by looking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cometmq.model.errors import CometError, StoreError
from cometmq.store import MessageStore, StoreCorruptError, recovery
from cometmq.store.inspect import StoreReader
from cometmq.system.clock import ManualClock
from support.power_files import PowerFiles
from support.randomness import SeededRandomness
from support.stores import TOPIC, bodies, files_of, opened, put, small_settings, split
from support.tiers import rounds

DAMAGED = 12
ROOT = Path("/store")
SENT = [b"%d-" % number + b"x" * (number * 7 % 90) for number in range(120)]
SYNCED = 61
"""How many messages were synced, if the power is lost."""
FLIPS_EACH = 250
FLIPS_MAX = 1_500
"""So many flips are enough to show that a start does not look at something."""


@pytest.fixture
def damaged_at(tmp_path: Path) -> tuple[Path, int, int]:
    """A closed store of 30 messages; log file, place and size of one in the middle."""
    store = opened(tmp_path)
    for number in range(30):
        put(store, b"%d" % number * 40, properties={"KEYS": f"k{number}", "TAGS": "TagA"})
    place, size, _ = store.consume_queue_units(TOPIC, 0, DAMAGED, 1)[0]
    store.close()
    return tmp_path / "commitlog" / f"{0:020d}", place, size


def flip(path: Path, position: int, mask: int = 0xFF) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def checked_positions(size: int) -> list[int]:
    """The bytes of a record that say how long it is, where it is and what its body is."""
    body = 88
    return [*range(8), *range(8, 12), *range(28, 36), *range(84, 88), *range(body, body + 60, 7)]


def test_every_byte_that_is_checked_is_found_and_named(
    tmp_path: Path, damaged_at: tuple[Path, int, int]
) -> None:
    path, place, size = damaged_at
    for position in checked_positions(size):
        flip(path, place + position)
        before = files_of(tmp_path)
        with pytest.raises(StoreCorruptError, match="as the checkpoint says") as met:
            opened(tmp_path)
        assert (met.value.path, met.value.position) == (path, place)
        assert files_of(tmp_path) == before
        flip(path, place + position)
    assert len(bodies(opened(tmp_path))) == 30


def test_a_slave_opens_without_the_end_of_its_log_but_not_with_damage_in_the_middle(
    tmp_path: Path, damaged_at: tuple[Path, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Its master has what is missing; what follows damage may be nowhere else."""
    path, place, _ = damaged_at
    data = path.read_bytes()
    path.write_bytes(data[:place] + bytes(len(data) - place))
    with pytest.raises(StoreCorruptError, match="as the checkpoint says"):
        opened(tmp_path)

    store = MessageStore(small_settings(tmp_path), clock=ManualClock(), is_copy=True)
    store.open()
    assert len(bodies(store)) == DAMAGED
    assert store.written_to == place
    assert f"copying them again end={place} expected=" in caplog.text
    store.abandon()

    path.write_bytes(data)
    flip(path, place)
    with pytest.raises(StoreCorruptError, match="as whole records follow"):
        MessageStore(small_settings(tmp_path), clock=ManualClock(), is_copy=True).open()


@pytest.mark.parametrize("seed", range(60))
def test_a_flip_anywhere_opens_or_is_named_and_inspection_always_works(
    tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    chance = SeededRandomness(seed)
    store = opened(tmp_path)
    for number in range(120):
        put(store, b"%d" % number * 20, properties={"KEYS": f"k{number}", "TAGS": "TagA"})
    store.abandon() if seed % 2 else store.close()
    folders = ("commitlog", "consumequeue", "index")
    candidates = sorted(p for name in folders for p in (tmp_path / name).rglob("*") if p.is_file())
    for _ in range(3):
        path = candidates[chance.below(len(candidates))]
        flip(path, chance.below(path.stat().st_size), 1 << chance.below(8))
    before = files_of(tmp_path)

    with StoreReader(small_settings(tmp_path)) as reader:
        list(reader.verify())
        list(reader.records())
    assert files_of(tmp_path) == before

    store = MessageStore(small_settings(tmp_path))
    try:
        store.open()
    except StoreCorruptError:
        assert files_of(tmp_path) == before
        return
    use_everything(store)
    store.close()


@cache
def store_image(ending: str) -> dict[Path, bytes]:
    """Return the files of a store that was closed, killed, or lost its power."""
    files = PowerFiles(SeededRandomness(0))
    store = opened(ROOT, files=files, consume_queue_ext_enabled=True)
    for number, body in enumerate(SENT):
        put(store, body, properties={"KEYS": f"k{number}", "TAGS": "TagA"})
        if number == SYNCED - 1:
            store.flush()
            store.flush_queues()
            store.write_checkpoint()
    if ending == "closed":
        store.close()
    else:
        store.abandon()
    image = files.image()
    if ending == "power lost":
        image[ROOT / "abort"] = b"1\nanother boot"
    return image


@dataclass(frozen=True)
class Flip:
    """A store with one flipped bit."""

    files: PowerFiles
    place: str
    """Where the bit is."""
    least: int
    """How many messages are there for certain, if the store opens: after a loss of power, what was
    not synced may be torn; after a kill, the last one.
    """


def flip_one_bit(seed: int) -> Flip:
    """Return the disk of a store with one flipped bit."""
    chance = SeededRandomness(seed)
    ending = ("closed", "killed", "power lost")[chance.below(3)]
    image = dict(store_image(ending))
    paths = sorted(path for path in image if image[path])
    path = paths[chance.below(len(paths))]
    data = bytearray(image[path])
    used = len(data.rstrip(b"\0"))
    at = chance.below(used if used and chance.below(4) else len(data))
    mask = 1 << chance.below(8)
    data[at] ^= mask
    image[path] = bytes(data)
    files = PowerFiles(SeededRandomness(seed + 1))
    for name, content in image.items():
        files.write(name, content)
    least = {"closed": len(SENT), "killed": len(SENT) - 1, "power lost": SYNCED}[ending]
    return Flip(files, f"{ending}, {path}, byte {at}, mask {mask}", least)


@pytest.mark.parametrize("first", range(0, rounds(test=500, long=20_000), FLIPS_EACH))
def test_no_flip_in_any_file_lets_a_wrong_message_be_served(first: int) -> None:
    """The store refuses to open, or each offset has its own body, or a consumer sees the damage.

    The format has a checksum of the body only: a field, like the offset that a message says it
    has, may be wrong.
    """
    for seed in range(first, first + FLIPS_EACH):
        flipped = flip_one_bit(seed)
        try:
            audit_flip(flipped)
        except Exception as problem:
            raise AssertionError(f"seed {seed}: {flipped.place}: {problem!r}") from problem


def audit_flip(flipped: Flip) -> None:
    settings = small_settings(ROOT, consume_queue_ext_enabled=True)
    store = MessageStore(settings, clock=ManualClock(), files=flipped.files)
    try:
        store.open()
    except StoreError:
        return
    low, high = store.bounds(TOPIC, 0)
    assert flipped.least <= high <= len(SENT), f"a queue up to {high}"
    for offset in range(low, high):
        read = store.get(TOPIC, 0, offset, 1)
        try:
            served = split(b"".join(read.slices))
        except CometError:  # a consumer finds the damage too
            continue
        able = SENT[offset : read.next_begin_offset]  # damaged units are skipped
        assert len(served) <= 1, f"{len(served)} messages at offset {offset}"
        assert all(message.body in able for message in served), f"offset {offset}"
    store.abandon()


def no_checksums(find_end: Any) -> Any:
    return lambda *log, **more: find_end(*log, **{**more, "check_crc": False})


LOOKED_AT: dict[str, tuple[object, str, Callable[[Any], Any]]] = {
    "the checksums of bodies": (recovery, "find_end", no_checksums),
    "what follows damage in the log": (recovery, "find_follower", lambda _: lambda *_: None),
}
"""What a start looks at, and how it is replaced by one that does not, given the original."""


@pytest.mark.parametrize("mutation", LOOKED_AT)
def test_flips_show_what_a_start_does_not_look_at(
    mutation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, replacement = LOOKED_AT[mutation]
    monkeypatch.setattr(owner, name, replacement(getattr(owner, name)))
    for seed in range(FLIPS_MAX):
        flipped = flip_one_bit(seed)
        try:
            audit_flip(flipped)
        except Exception as problem:
            print(f"seed {seed}: {flipped.place}: {problem!r}")
            return
    pytest.fail(f"{FLIPS_MAX} flips have not shown it")


def use_everything(store: MessageStore) -> None:
    """Read and write in every way; damage may be met, crashes may not."""
    low, high = store.bounds(TOPIC, 0)
    for offset in range(low, high):
        store.get(TOPIC, 0, offset, 4)
        store.store_time_at(TOPIC, 0, offset)
    for number in range(120):
        store.query(TOPIC, f"k{number}", 9, 0, 2**62)
    try:
        put(store, b"after", properties={"KEYS": "after"})
    except CometError as problem:
        pytest.fail(f"refused: {problem}")
    assert len(store.query(TOPIC, "after", 9, 0, 2**62).records) == 1


def test_inspection_names_what_does_not_hang_together(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(30):
        put(store, b"%d" % number * 40, properties={"KEYS": f"k{number}", "TAGS": "TagA"})
    store.close()
    queue_file = tmp_path / "consumequeue" / TOPIC / "0" / f"{0:020d}"
    flip(queue_file, 7 * 20 + 19)
    flip(queue_file, 9 * 20 + 7)
    index_file = next((tmp_path / "index").iterdir())
    flip(index_file, 40 + 16 * 4 + 5 * 20 + 3)
    with StoreReader(small_settings(tmp_path)) as reader:
        findings = list(reader.verify())
    places = {(finding.path, finding.position) for finding in findings}
    assert (queue_file, 7 * 20) in places
    assert (queue_file, 9 * 20) in places
    assert any("k4" in finding.text and "index entry" in finding.text for finding in findings)
    assert len(findings) == 4


def test_inspection_names_damage_in_the_log(
    tmp_path: Path, damaged_at: tuple[Path, int, int]
) -> None:
    path, place, _ = damaged_at
    flip(path, place + 90)
    with StoreReader(small_settings(tmp_path)) as reader:
        first = next(iter(reader.verify()))
        assert len(list(reader.records())) == DAMAGED
    assert (first.path, first.position) == (path, place)
    assert "checksum" in first.text
