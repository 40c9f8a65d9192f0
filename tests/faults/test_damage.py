"""Bits that flip on the disk: errors name file and byte, and inspection changes no file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cometmq.model.errors import CometError, StoreError
from cometmq.model.message import StoredMessage
from cometmq.protocol.properties import encode_properties
from cometmq.store import MessageStore, StoreCorruptError
from cometmq.store.config_files import JsonFile
from cometmq.store.inspect import StoreReader
from cometmq.store.lifecycle import recovery
from cometmq.store.queues.consume_queue import FILLER_SIZE
from cometmq.store.queues.queue_reader import RESPONSE_BYTES_MAX, GetResult
from cometmq.store.queues.repair import Repair
from support.checks.manual_clock import ManualClock
from support.checks.randomness import SeededRandomness
from support.runner.tiers import rounds
from support.stores.power_files import PowerFiles
from support.stores.small_stores import (
    TOPIC,
    all_messages,
    bodies,
    files_of,
    opened,
    put,
    small_settings,
    split,
)

DAMAGED = 12
ROOT = Path("/store")
LOG_FILE = ROOT / "commitlog" / f"{0:020d}"
SENT_MAX = 150
CLEANED_AT_MS = 2**60
SYNCED = 91
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
    again = opened(tmp_path)
    assert len(bodies(again)) == 30
    again.close()


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


QUEUES = [("orders", 0), ("orders", 1), ("bills", 0), ("quiet", 0)]
ENDINGS = ("closed", "killed", "power lost")
Queue = tuple[str, int]


@dataclass(frozen=True)
class Image:
    """The files of a store."""

    files: dict[Path, bytes]
    messages: dict[Queue, list[StoredMessage]]
    """All that were sent to each queue."""
    low: dict[Queue, int]
    """The first offset of each queue: older records are deleted."""
    least: dict[Queue, int]
    """So many are there for certain, if the store opens: after a loss of power, what was not synced
    may be torn; after a kill, the last one.
    """


@cache
def store_image(ending: str, *, is_cleaned: bool) -> Image:
    """Return the files of a store that was closed, killed, or lost its power."""
    files = PowerFiles(SeededRandomness(0))
    settings = {"consume_queue_ext_enabled": True, "file_reserved_hours": 0}
    store = opened(ROOT, files=files, **settings)
    least: dict[Queue, int] = {}
    for number in range(SENT_MAX):
        put_numbered(store, number)
        if number == SYNCED - 1:
            store.write_out()
            if is_cleaned:
                store.clean(CLEANED_AT_MS, expired_at_any_hour=True)
            least = {queue: store.bounds(*queue)[1] for queue in QUEUES}
    messages = {queue: all_messages(store, *queue) for queue in QUEUES}
    low = {queue: store.bounds(*queue)[0] for queue in QUEUES}
    if ending != "power lost":
        least = {queue: store.bounds(*queue)[1] for queue in QUEUES}
    # Of a queue without messages the end is not needed: a start corrects committed offsets.
    least = {queue: end if end > low[queue] else 0 for queue, end in least.items()}
    if ending == "killed":
        least[queue_of(SENT_MAX - 1)] -= 1
    if ending == "closed":
        store.close()
    else:
        store.abandon()
    image = files.image()
    if ending == "power lost":
        image[ROOT / "abort"] = b"1\nanother boot"
    return Image(image, messages, low, least)


def queue_of(number: int) -> Queue:
    """The quiet queue has a few of the first messages; many others are between those of a queue."""
    if number in (1, 40, 55):
        return QUEUES[3]
    return QUEUES[(0, 0, 0, 1, 2)[number * 7 % 5]]


def put_numbered(store: MessageStore, number: int) -> None:
    """Append a message; most records have one of two sizes, powers of two."""
    topic, queue_id = queue_of(number)
    properties = {"KEYS": f"k{number}", "TAGS": "TagA"}
    fixed = 88 + 4 + 1 + len(topic) + 2 + len(encode_properties(properties))
    size = (256, 256, 128 + 8, 128 + 8, 300 + number % 90)[number % 5]
    body = b"%d-" % number
    body += b"x" * (size - fixed - len(body))
    put(store, body, topic=topic, queue_id=queue_id, properties=properties)


@dataclass(frozen=True)
class Flip:
    """A store with one flipped bit."""

    files: PowerFiles
    place: str
    """Where the bit is."""
    image: Image


def flip_one_bit(seed: int) -> Flip:
    """Return the disk of a store with one flipped bit."""
    chance = SeededRandomness(seed)
    ending = ENDINGS[chance.below(3)]
    is_cleaned = chance.below(2) == 1
    image = store_image(ending, is_cleaned=is_cleaned)
    content = dict(image.files)
    paths = sorted(path for path in content if content[path])
    path = paths[chance.below(len(paths))]
    data = bytearray(content[path])
    used = len(data.rstrip(b"\0"))
    at = chance.below(used if used and chance.below(4) else len(data))
    mask = 1 << chance.below(8)
    data[at] ^= mask
    content[path] = bytes(data)
    files = PowerFiles(SeededRandomness(seed + 1))
    for name, file_content in content.items():
        files.write(name, file_content)
    place = f"{ending}, {'cleaned, ' if is_cleaned else ''}{path}, byte {at}, mask {mask}"
    return Flip(files, place, image)


@pytest.mark.parametrize("first", range(0, rounds(test=500, long=20_000), FLIPS_EACH))
def test_no_flip_in_any_file_lets_a_wrong_message_be_served(
    first: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store refuses to open, or each offset has its own message, or a consumer gets an error.

    Some fields of a message may be wrong: see `UNPROTECTED`.
    """
    for seed in range(first, first + FLIPS_EACH):
        flipped = flip_one_bit(seed)
        # Files are small: without this each start would look at the whole log.
        monkeypatch.setattr(recovery, "_WALKED_BYTES", (0, 100_000)[seed % 2])
        try:
            audit_flip(flipped, caplog)
        except Exception as problem:
            raise AssertionError(f"seed {seed}: {flipped.place}: {problem!r}") from problem


UNPROTECTED = frozenset(
    (
        *("flag", "sys_flag", "born_time_ms", "born_host", "store_time_ms", "store_host"),
        *("reconsume_times", "prepared_offset", "properties", "offset_message_id"),
    )
)
"""The fields of a message that may be served with a changed bit: nothing in RocketMQ's format shows
it. The offset in the log is one half of the id of the message, the broker's address the other.
"""


def audit_flip(flipped: Flip, caplog: pytest.LogCaptureFixture) -> set[str]:
    """Read all messages as consumers do; return which fields differ from what was sent."""
    caplog.clear()
    settings = small_settings(ROOT, consume_queue_ext_enabled=True)
    store = MessageStore(settings, clock=ManualClock(), files=flipped.files)
    try:
        store.open()
    except StoreError:
        return set()
    differing: set[str] = set()
    for queue in QUEUES:
        messages, first = flipped.image.messages[queue], flipped.image.low[queue]
        low, high = store.bounds(*queue)
        assert flipped.image.least[queue] <= high <= first + len(messages), f"{queue} up to {high}"
        assert low <= first, f"{queue} from {low}"
        for offset in range(low, min(first, high)):
            found = split(b"".join(read(store, queue, offset).slices))
            assert all(message == messages[0] for message in found), f"{queue}: {offset} is deleted"
        for offset in range(first, high):
            if unit_size(store, queue, offset) == FILLER_SIZE:
                logged = f"skipped topic={queue[0]} queue={queue[1]} from={offset} to={offset + 1}"
                assert logged in caplog.text, f"{queue}: {offset} is skipped"
                continue
            try:
                met = read_one(store, queue, offset)
            except CometError:  # a consumer gets the error
                continue
            differing |= differences(met, messages[offset - first])
    for number in range(0, SENT_MAX, 7):
        audit_query(store, flipped.image.messages[queue_of(number)], number)
    store.abandon()
    assert differing <= UNPROTECTED, f"{differing - UNPROTECTED} differ"
    return differing


def audit_query(store: MessageStore, sent: list[StoredMessage], number: int) -> None:
    """Look for a message by its key: it may not be found, but no other one is."""
    for record in store.query(queue_of(number)[0], f"k{number}", 9, 0, 2**62).records:
        try:
            (met,) = split(record)
        except CometError:  # the client gets the error
            continue
        assert met.body in [message.body for message in sent], f"k{number}"
        assert met.body.startswith(b"%d-" % number), f"k{number}"


def read(store: MessageStore, queue: Queue, offset: int) -> GetResult:
    """Read one message as a pull does."""
    asked = (*queue, offset, 1, None, RESPONSE_BYTES_MAX)
    return store.reader.verified(store.reader.get(*asked), *asked)


def read_one(store: MessageStore, queue: Queue, offset: int) -> StoredMessage:
    """Return the message at an offset."""
    found = read(store, queue, offset)
    messages = split(b"".join(found.slices))
    assert len(messages) == 1, f"{len(messages)} messages at {queue} offset {offset}"
    skipped = range(offset + 1, found.next_begin_offset)
    assert all(unit_size(store, queue, number) == FILLER_SIZE for number in skipped)
    return messages[0]


def unit_size(store: MessageStore, queue: Queue, offset: int) -> int:
    return store.consume_queue_units(*queue, offset, 1)[0][1]


def differences(met: StoredMessage, sent: StoredMessage) -> set[str]:
    """Return the names of the fields that are not the same."""
    names = [item.name for item in fields(StoredMessage)]
    return {name for name in names if getattr(met, name) != getattr(sent, name)}


FIELDS: list[tuple[str, int, str]] = [
    ("size", 4, "repaired"),
    ("magic", 4, "repaired"),
    ("body_crc", 4, "refused"),
    ("queue_id", 4, "repaired"),
    ("flag", 4, "served"),
    ("queue_offset", 8, "repaired"),
    ("log_offset", 8, "repaired"),
    ("sys_flag", 3, "served"),
    ("sys_flag with the kinds of hosts", 1, "refused, served"),
    ("born_ms", 8, "served"),
    ("born_host", 8, "served"),
    ("stored_ms", 8, "served"),
    ("store_host", 8, "served"),
    ("reconsume_times", 4, "served"),
    ("prepared_offset", 8, "served"),
    ("body_bytes", 4, "refused"),
    ("body", 5, "refused"),
    ("topic_bytes", 1, "refused"),
    ("topic", len(TOPIC), "repaired"),
    ("properties_bytes", 2, "refused"),
    ("properties", 14, "served"),
]
"""The fields of a record in their order, their sizes, and what becomes of a bit that is changed
in one of them: a pull gets the message as it was sent, or an error, or the changed field.
"""


def test_the_table_of_fields_says_what_becomes_of_each_bit_of_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "_WALKED_BYTES", 0)  # else a start looks at the body
    files = PowerFiles(SeededRandomness(0))
    store = opened(ROOT, files=files)
    for body in (b"first", b"other", b"third"):
        stored = put(store, body, properties={"TAGS": "A", "KEYS": "k"})
    at, size = stored.log_offset - stored.size_bytes, stored.size_bytes
    sent = all_messages(store)[1]
    store.close()
    image = files.image()
    assert sum(field_bytes for _, field_bytes, _ in FIELDS) == size
    for name, field_bytes, expected in FIELDS:
        outcomes = set()
        for bit in range(field_bytes * 8):
            log = bytearray(image[LOG_FILE])
            log[at + bit // 8] ^= 1 << bit % 8
            outcomes.add(outcome({**image, LOG_FILE: bytes(log)}, sent))
        at += field_bytes
        assert ", ".join(sorted(outcomes)) == expected, name


def outcome(image: dict[Path, bytes], sent: StoredMessage) -> str:
    """Return what a pull makes of the message at offset 1."""
    files = PowerFiles(SeededRandomness(0))
    for path, content in image.items():
        files.write(path, content)
    store = opened(ROOT, files=files)
    try:
        found = split(b"".join(read(store, (TOPIC, 0), 1).slices))
        return "repaired" if found == [sent] else "served"
    except StoreError:
        return "refused"
    except CometError:  # the client refuses it: the body is not compressed
        return "served"
    finally:
        store.abandon()


def test_a_flip_in_a_table_is_met_as_another_value_at_most() -> None:
    """RocketMQ's tables have no checksum. What is no JSON any more is read from the backup."""
    files = PowerFiles(SeededRandomness(0))
    table = JsonFile(ROOT / "config" / "consumerOffset.json", files)
    earlier = {"offsetTable": {"orders@readers": {"0": 12, "1": 345}}}
    table.save(earlier)
    table.save({"offsetTable": {"orders@readers": {"0": 99, "1": 678}}})
    data = files.image()[table.path]
    backups = 0
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            files.write(table.path, bytes(damaged))
            content = table.load()
            assert isinstance(content, dict)
            backups += content == earlier
    assert backups > len(data)


def no_checksums(find_end: Any) -> Any:
    return lambda *log, **more: find_end(*log, **{**more, "check_crc": False})


LOOKED_AT: dict[str, tuple[object, str, Callable[[Any], Any], int]] = {
    "what follows damage in the log": (
        recovery,
        "find_follower",
        lambda _: lambda *_: None,
        940,
    ),
    "units that cannot be right": (Repair, "repair", lambda _: lambda *_: False, 0),
    "records that are not those of their units": (
        Repair,
        "repair_records",
        lambda _: lambda *_: None,
        0,
    ),
    "the last units of queues": (
        recovery.Recovery,
        "_end_of_damaged",
        lambda _: lambda _: None,
        690,
    ),
}
"""A check of starts or readers, the function that replaces it by one that checks nothing, and the
first seed: few flips show that some checks are missing.
"""


@pytest.mark.parametrize("mutation", LOOKED_AT)
def test_flips_show_what_is_not_looked_at(
    mutation: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner, name, replacement, first = LOOKED_AT[mutation]
    monkeypatch.setattr(owner, name, replacement(getattr(owner, name)))
    for seed in range(first, first + FLIPS_MAX):
        flipped = flip_one_bit(seed)
        monkeypatch.setattr(recovery, "_WALKED_BYTES", (0, 100_000)[seed % 2])
        try:
            audit_flip(flipped, caplog)
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
    assert any(finding.path == index_file for finding in findings)
    assert len(findings) == 5


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
