"""A crash in the middle of a write: the log, a queue and the index keep what was whole before."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.stores.small_stores import LOG_FILE_BYTES, TOPIC, bodies, opened, put

RECORD_BYTES = 91 + len(TOPIC) + 80


@pytest.mark.parametrize("kept_bytes", range(0, RECORD_BYTES, 3))
def test_flushed_records_survive_when_the_last_one_is_torn(tmp_path: Path, kept_bytes: int) -> None:
    """Any part of an unflushed record may have reached the disk; nothing before it may change."""
    store = opened(tmp_path)
    made = [b"a", b"b" * 50, b"c" * 200]
    for body in made:
        put(store, body)
    store.flush()
    torn = put(store, b"z" * 80)
    assert torn.size_bytes == RECORD_BYTES
    store.abandon()
    log = tmp_path / "commitlog" / f"{0:020d}"
    data = log.read_bytes()
    log.write_bytes(data[: torn.log_offset + kept_bytes].ljust(len(data), b"\0"))

    recovered = opened(tmp_path)

    assert bodies(recovered) == made
    assert recovered.written_to == torn.log_offset
    assert put(recovered, b"next").queue_offset == 3
    assert bodies(recovered) == [*made, b"next"]
    recovered.close()
    assert not any(log.read_bytes()[recovered.written_to :])


@pytest.mark.parametrize("kept_bytes", range(8))
def test_a_torn_blank_at_the_end_of_a_file_is_no_damage(tmp_path: Path, kept_bytes: int) -> None:
    """The machine stopped when the blank was half on the disk and the next file was not."""
    store = opened(tmp_path)
    made = [b"x" * 5000, b"y" * 5000, b"z" * 5000]
    ends = [put(store, body) for body in made]
    blank = ends[2].log_offset + ends[2].size_bytes
    assert put(store, b"w" * 5000).log_offset == LOG_FILE_BYTES
    store.abandon()
    (tmp_path / "commitlog" / f"{LOG_FILE_BYTES:020d}").unlink()
    log = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[blank + kept_bytes : blank + 8] = bytes(8 - kept_bytes)
    log.write_bytes(data)

    recovered = opened(tmp_path)

    assert bodies(recovered) == made
    assert put(recovered, b"again").queue_offset == 3
    recovered.close()


@pytest.mark.parametrize("kept_bytes", range(20))
def test_a_torn_unit_is_made_again(tmp_path: Path, kept_bytes: int) -> None:
    store = opened(tmp_path)
    made = [b"%d" % number for number in range(10)]
    for body in made:
        put(store, body)
    store.abandon()
    path = tmp_path / "consumequeue" / TOPIC / "0" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[: 9 * 20 + kept_bytes].ljust(len(data), b"\0"))
    recovered = opened(tmp_path)
    assert bodies(recovered) == made
    assert path.read_bytes() == data
    recovered.close()


def test_an_index_that_stopped_anywhere_finds_every_message(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(150):
        put(store, properties={"KEYS": f"k{number}"})
    store.abandon()
    for path in sorted((tmp_path / "index").iterdir())[1:]:
        path.write_bytes(bytes(path.stat().st_size))
    recovered = opened(tmp_path)
    for number in range(150):
        assert len(recovered.query(TOPIC, f"k{number}", 9, 0, 2**62).records) == 1
    recovered.close()
