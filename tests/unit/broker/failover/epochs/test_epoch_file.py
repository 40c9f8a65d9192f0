"""The epochs of a log: their file, and how far two replicas agree."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cometmq.broker.failover.epochs.epoch_file import (
    ENTRIES_MAX,
    FILE_NAME,
    NO_EPOCH,
    OFFSET_MAX,
    Epoch,
    EpochFile,
    common_point,
    file_text,
    parse,
)
from cometmq.model.errors import StoreError
from cometmq.system.files import Files


def opened(folder: Path) -> EpochFile:
    return EpochFile(folder, Files())


def test_a_new_store_has_no_epoch_and_no_file(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    assert epochs.epochs == []
    assert epochs.last == NO_EPOCH
    assert epochs.covering(0) is None
    assert not list(tmp_path.iterdir())


def test_epochs_are_there_after_a_start(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    epochs.begin(1, 0)
    epochs.received(Epoch(5, 700))
    epochs.received(Epoch(5, 900))
    epochs.received(Epoch(3, 900))
    assert opened(tmp_path).epochs == epochs.epochs == [Epoch(1, 0), Epoch(5, 700)]
    assert epochs.last == 5


def test_epochs_that_are_received_together_are_one_write(tmp_path: Path) -> None:
    """A slave that missed a thousand elections writes no thousand files."""
    epochs = opened(tmp_path)
    epochs.begin(1, 0)
    epochs.received(*(Epoch(number, 700) for number in range(1, 500)))
    assert len(opened(tmp_path).epochs) == len(epochs.epochs) == 499
    assert parse((tmp_path / f"{FILE_NAME}.bak").read_bytes()) == [Epoch(1, 0)]


def test_an_epoch_without_a_byte_has_an_entry(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    epochs.begin(1, 0)
    epochs.begin(5, 0)
    assert opened(tmp_path).epochs == [Epoch(1, 0), Epoch(5, 0)]


def test_epochs_of_bytes_that_were_lost_go(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    epochs.begin(1, 0)
    epochs.begin(5, 700)
    epochs.begin(6, 650)  # the power was lost, and with it the bytes behind
    assert opened(tmp_path).epochs == epochs.epochs == [Epoch(1, 0), Epoch(6, 650)]


@pytest.mark.parametrize("number", [4, 5])
def test_an_epoch_begins_once(tmp_path: Path, number: int) -> None:
    epochs = opened(tmp_path)
    epochs.begin(5, 0)
    with pytest.raises(ValueError, match=f"met epoch {number}, expected 6 or more"):
        epochs.begin(number, 10)
    with pytest.raises(ValueError, match="from log offset -1 on"):
        epochs.received(Epoch(6, -1))
    assert opened(tmp_path).epochs == epochs.epochs == [Epoch(5, 0)]


def test_no_epochs_are_no_epochs_after_a_start(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    epochs.begin(1, 0)
    epochs.begin(2, 10)
    epochs.keep([])
    assert opened(tmp_path).epochs == epochs.epochs == []


def test_epochs_of_deleted_files_go_and_the_last_stays(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    for number, start in ((1, 0), (2, 100), (3, 200)):
        epochs.begin(number, start)
    epochs.deleted_before(100)
    assert [epoch.number for epoch in epochs.epochs] == [1, 2, 3]
    epochs.deleted_before(101)
    assert [epoch.number for epoch in epochs.epochs] == [2, 3]
    epochs.deleted_before(10_000)
    assert opened(tmp_path).epochs == [Epoch(3, 200)]


def test_the_epoch_of_a_byte(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    for number, start in ((1, 10), (2, 100), (3, 100), (4, 200)):
        epochs.received(Epoch(number, start))
    assert epochs.covering(9) is None
    assert epochs.covering(10) == (Epoch(1, 10), 100)
    assert epochs.covering(99) == (Epoch(1, 10), 100)
    assert epochs.covering(100) == (Epoch(3, 100), 200)
    assert epochs.covering(200) == epochs.covering(10**9) == (Epoch(4, 200), OFFSET_MAX)
    assert [epochs.number_at(end) for end in (9, 99, 200)] == [NO_EPOCH, 1, 4]


def test_the_list_is_bounded(tmp_path: Path) -> None:
    lines = [Epoch(number, number) for number in range(ENTRIES_MAX)]
    (tmp_path / "epochFileCheckpoint").write_text(file_text(lines))
    epochs = opened(tmp_path)
    epochs.begin(ENTRIES_MAX, ENTRIES_MAX)
    assert epochs.epochs == [*lines[1:], Epoch(ENTRIES_MAX, ENTRIES_MAX)]


@pytest.mark.parametrize("zeros", [0, 5])
def test_a_torn_file_is_replaced_by_its_backup(tmp_path: Path, zeros: int) -> None:
    epochs = opened(tmp_path)
    epochs.begin(1, 0)
    epochs.begin(2, 10)
    file = tmp_path / "epochFileCheckpoint"
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size] + bytes(zeros))
        assert opened(tmp_path).epochs == [Epoch(1, 0)], size
    (tmp_path / "epochFileCheckpoint.bak").write_text("x")
    with pytest.raises(StoreError, match="cannot read the epochs of"):
        opened(tmp_path)


def test_a_damaged_file_is_not_replaced_by_its_backup(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    epochs.begin(1, 0)
    epochs.begin(2, 10)
    file = tmp_path / "epochFileCheckpoint"
    whole = file.read_bytes()
    for at in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[at // 8] ^= 1 << at % 8
        file.write_bytes(flipped)
        with pytest.raises(StoreError, match="cannot read the epochs of"):
            opened(tmp_path)


def test_a_log_from_before_the_first_election_has_an_epoch(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    epochs.begin(1, 700)
    assert opened(tmp_path).epochs == [Epoch(0, 0), Epoch(1, 700)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x\n0\n1-0\n", "met 'x', expected a number"),
        ("1\n-1\n1-0\n", "met '-1', expected a number"),
        ("1\n0\n1-\n", "met '', expected a number"),
        ("1\n0\n1_0-0\n", "met '1_0', expected a number"),
        ("0\n0\n", "met 0 epochs, expected 0, and at least 1"),
        ("2\n0\n5-0\n5-3\n", "met epoch 5 from log offset 3 on, expected an epoch above 5"),
        ("2\n0\n5-4\n6-3\n", "met epoch 6 from log offset 3 on, expected .* from 4 or more"),
        ("1\n0\n2147483648-0\n", "met epoch 2147483648"),
        ("1\n7\n1-0\n", "met lines with the checksum 1725254278, expected 7"),
    ],
)
def test_what_is_damaged_about_a_file(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text.encode())


def test_a_checksum_of_zero_is_not_checked() -> None:
    assert parse(b"1\n0\n1-0\n") == [Epoch(1, 0)]


def test_every_flipped_bit_is_found() -> None:
    epochs = [Epoch(1, 0), Epoch(5, 93229)]
    data = file_text(epochs).encode()
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        try:
            assert parse(bytes(flipped)) == epochs
        except ValueError:
            continue


# --- the common point ---------------------------------------------------------------------------


def points(own: str, own_end: int, master: str, master_end: int) -> tuple[int, str] | None:
    found = common_point(listed(own), own_end, listed(master), master_end)
    if found is None:
        return None
    return found.point, " ".join(f"{number}-{start}" for number, start in found.epochs)


def listed(text: str) -> list[Epoch]:
    pairs = (part.split("-") for part in text.split())
    return [Epoch(int(number), int(start)) for number, start in pairs]


@pytest.mark.parametrize(
    ("own", "own_end", "master", "master_end", "expected"),
    [
        ("1-0", 50, "1-0", 80, (50, "1-0")),  # behind
        ("1-0", 80, "1-0", 50, (50, "1-0")),  # ahead: the master lost bytes
        ("1-0", 80, "1-0 2-50", 90, (50, "1-0")),  # the old master returns
        ("1-0 2-50", 90, "1-0 2-50 3-90", 99, (90, "1-0 2-50")),
        ("1-0 2-50", 70, "1-0 3-60", 99, (50, "1-0")),  # each was a master
        ("1-0 2-60", 70, "1-0 3-50", 99, (50, "1-0")),
        ("1-0 2-50", 50, "1-0 3-50", 50, (50, "1-0")),  # nothing was written in 2
        ("1-0", 786, "1-0 5-0", 1410, (0, "1-0")),  # 5 starts where 1 does
        ("1-0 5-0", 786, "1-0 5-0", 1410, (786, "1-0 5-0")),
        ("1-0 5-93229", 90000, "1-0 5-93229", 99999, (90000, "1-0")),  # lost with the power
        ("1-0 5-93229", 93229, "1-0 5-93229", 99999, (93229, "1-0 5-93229")),
        ("2-50", 70, "1-0 3-60", 99, None),
        ("1-0", 70, "1-10", 99, None),
        ("1-0", 70, "", 0, None),
    ],
)
def test_the_common_point(
    own: str, own_end: int, master: str, master_end: int, expected: tuple[int, str] | None
) -> None:
    assert points(own, own_end, master, master_end) == expected


@pytest.mark.parametrize("seed", range(50))
def test_up_to_the_common_point_the_logs_are_equal(seed: int) -> None:
    """Replicas that are masters by turns, and follow each other, never keep a byte of their own."""
    chance = random.Random(seed)
    logs: list[list[int]] = [[], [], []]  # each byte is the epoch in which it was written
    lists: list[list[Epoch]] = [[], [], []]
    for number in range(1, 12):
        master = chance.randrange(3)
        lists[master].append(Epoch(number, len(logs[master])))
        logs[master] += [number] * chance.choice([0, 0, 1, 5, 20])
        for replica in {0, 1, 2} - {master}:
            if chance.random() < 0.5:
                continue
            if lists[replica]:
                found = common_point(
                    lists[replica], len(logs[replica]), lists[master], len(logs[master])
                )
                if found is None:
                    assert {e.number for e in lists[replica]}.isdisjoint(
                        e.number for e in lists[master]
                    ), f"seed {seed}"
                    logs[replica], lists[replica] = [], []
                else:
                    del logs[replica][found.point :]
                    lists[replica] = found.epochs
            assert logs[replica] == logs[master][: len(logs[replica])], f"seed {seed}"
            stop = chance.randint(len(logs[replica]), len(logs[master]))
            logs[replica] = logs[master][:stop]
            known = lists[replica][-1].number if lists[replica] else NO_EPOCH
            lists[replica] += [e for e in lists[master] if e.number > known and e.start < stop]


def test_elections_without_a_message_leave_the_epochs_that_the_log_was_written_in(
    tmp_path: Path,
) -> None:
    epochs = opened(tmp_path)
    epochs.begin(1, 0)
    slave = epochs.epochs
    for number in range(2, ENTRIES_MAX + 20):
        epochs.begin(number, 5_000_000_000)
    epochs.begin(2_000, 6_000_000_000)
    kept = opened(tmp_path).epochs
    assert len(kept) == ENTRIES_MAX
    assert kept[0] == Epoch(1, 0)
    assert kept[-2:] == [Epoch(ENTRIES_MAX + 19, 5_000_000_000), Epoch(2_000, 6_000_000_000)]
    assert epochs.covering(0) == (Epoch(1, 0), 5_000_000_000)
    common = common_point(slave, 7_000_000_000, kept, 6_500_000_000)
    assert common is not None
    assert common.point == 5_000_000_000


def test_a_replica_that_wrote_in_a_dropped_epoch_is_truncated_to_its_start(tmp_path: Path) -> None:
    epochs = opened(tmp_path)
    epochs.begin(1, 0)
    for number in range(2, ENTRIES_MAX + 20):
        epochs.begin(number, 700)
    assert Epoch(2, 700) not in epochs.epochs
    common = common_point([Epoch(1, 0), Epoch(2, 700)], 900, epochs.epochs, 800)
    assert common is not None
    assert common.point == 700
