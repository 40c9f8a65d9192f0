"""Batches of log files: which rows, from where to where, filters, and what damage does."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from cometmq.protocol.record import MAGIC_BLANK, encode_host, encode_record
from cometmq.spark.errors import DataLossError, OptionError, SourceError
from support.checks.manual_clock import ManualClock
from support.spark.log_files import (
    FilledStore,
    log_options,
    log_reader,
    read_all,
    rows_at,
)
from support.stores.small_stores import LOG_FILE_BYTES, PRODUCER

TAG, TWIN = "Aa", "BB"
"""Java gives both one hash, which is all that a consume queue knows of tags."""


@pytest.fixture
def filled(tmp_path: Path) -> FilledStore:
    store = FilledStore(tmp_path / "store")
    store.fill(200)
    yield store
    store.close()


# --- which rows ----------------------------------------------------------------------------------


def test_every_record_is_a_row_whatever_the_cuts(filled: FilledStore) -> None:
    for most in (101, 1000, 7919, 1 << 30):
        assert rows_at(log_reader(filled.root, maxPartitionBytes=most)) == filled.offsets


def test_a_log_is_read_while_it_grows(filled: FilledStore) -> None:
    reader = log_reader(filled.root)
    parts = reader.partitions()
    before = filled.offsets
    filled.fill(30)
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted(row["phy_offset"] for row in rows) == before
    assert rows_at(reader) == filled.offsets


def test_parts_read_again_give_the_same_rows(filled: FilledStore) -> None:
    reader = log_reader(filled.root, maxPartitionBytes=3000)
    for part in reader.partitions():
        assert list(reader.read(part)) == list(reader.read(part))


def test_an_empty_batch_has_no_parts_and_none_is_read(filled: FilledStore) -> None:
    reader = log_reader(filled.root, startingOffsets="latest")
    assert reader.partitions() == []
    assert list(reader.read(None)) == []


def test_batches_are_bounded_by_rows_and_bytes(filled: FilledStore) -> None:
    def sizes(**given: Any) -> list[int]:
        reader = log_reader(filled.root, **given)
        return [b.num_rows for part in reader.partitions() for b in reader.read(part)]

    assert max(sizes(batch_rows=7)) == 7
    assert max(sizes(batch_bytes=2048)) < 20
    assert sum(sizes(batch_bytes=2048)) == 200


def test_tasks_are_as_many_as_asked(filled: FilledStore) -> None:
    reader = log_reader(filled.root, minPartitions=11)
    parts = reader.partitions()
    assert 11 <= len(parts) <= 14
    sizes = [part.value.range.size for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert rows_at(reader) == filled.offsets


def test_a_record_larger_than_any_window_is_read(tmp_path: Path) -> None:
    store = FilledStore(tmp_path / "store", commit_log_file_bytes=8 << 20)
    sizes = [100, 3 << 20, 10, 2 << 20, 100]
    for size in sizes:
        store.fill(1, body_bytes=size)
    for most in (1 << 30, 70_000):
        reader = log_reader(store.root, columns=("phy_offset", "body"), maxPartitionBytes=most)
        table = read_all(reader)
        assert table.column("phy_offset").to_pylist() == store.offsets
        bodies = table.column("body").to_pylist()
        assert [len(body) - len(b"0:") for body in bodies] == sizes
    assert rows_at(log_reader(store.root / "commitlog")) == store.offsets
    store.close()


def test_records_of_every_form_are_found_from_any_cut(tmp_path: Path) -> None:
    """Long topics, IPv6 hosts, empty bodies, and properties with and without their last sign."""
    data, expected = bytearray(), []
    hosts = (PRODUCER, encode_host("2001:db8::7", 4711))
    topics = (b"t", b"%RETRY%" + b"g" * 200)
    kinds = itertools.product(topics, (b"", b"body" * 30), hosts, hosts, (b"", b"A\1b", b"A\1b\2"))
    for number, (topic, body, born, stored, properties) in enumerate(kinds):
        expected.append((len(data), topic.decode(), body, number))
        data += encode_record(
            *(topic, body, properties),
            queue_id=0, queue_offset=number, log_offset=len(data), born_time_ms=1,
            born_host=born, store_time_ms=2 + number, store_host=stored,
        )  # fmt: skip
    blank = 1000
    data += blank.to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
    (tmp_path / f"{0:020d}").write_bytes(data.ljust(len(data) - 8 + blank, b"\xee"))
    columns = ("phy_offset", "topic", "body", "queue_offset")
    for most in (1 << 30, 1000, 333, 1):
        table = read_all(log_reader(tmp_path, columns=columns, maxPartitionBytes=most))
        assert list(zip(*table.to_pydict().values(), strict=True)) == expected
    assert rows_at(log_reader(tmp_path, startingTimestamp=30)) == [e[0] for e in expected[28:]]


def test_several_brokers_are_read_together(filled: FilledStore, tmp_path: Path) -> None:
    other = FilledStore(tmp_path / "other")
    other.fill(7)
    paths = f'{{"b-1": "{filled.root}", "b-2": ["{other.root}"]}}'
    table = read_all(log_reader(None, brokers=paths))
    names = table.column("broker_name").to_pylist()
    assert (names.count("b-1"), names.count("b-2")) == (200, 7)
    other.close()


def test_the_columns_are_those_asked_for(filled: FilledStore) -> None:
    columns = ("queue_offset", "topic", "body")
    table = read_all(log_reader(filled.root, columns=columns, brokerName="b"))
    assert tuple(table.column_names) == columns
    assert set(
        read_all(log_reader(filled.root, brokerName="b")).column("broker_name").to_pylist()
    ) == {"b"}


# --- from where to where -------------------------------------------------------------------------


def test_places_in_the_log_bound_a_batch(filled: FilledStore) -> None:
    low, high = filled.offsets[20], filled.offsets[90]
    given = {
        "startingOffsets": f'{{"log": {low}}}',
        "endingOffsets": f'{{"log": {{"phy": {high}}}}}',
    }
    assert rows_at(log_reader(filled.root, **given)) == filled.offsets[20:90]
    # Inside a record, the next one is the first.
    given["startingOffsets"] = f'{{"log": {low + 1}}}'
    assert rows_at(log_reader(filled.root, **given)) == filled.offsets[21:90]


def test_times_bound_a_batch(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FilledStore(tmp_path / "store", clock=clock)
    times = []
    for _ in range(120):
        times.append(clock.now_ms())
        store.fill(1)
        clock.advance(250)
    given = {"startingTimestamp": times[33] - 100, "endingTimestamp": times[77]}
    assert rows_at(log_reader(store.root, **given)) == store.offsets[33:77]
    assert rows_at(log_reader(store.root, startingTimestamp=clock.now_ms())) == []
    store.close()


def test_a_batch_that_asks_for_more_than_there_is_fails_unless_told(filled: FilledStore) -> None:
    given = {"endingOffsets": f'{{"log": {filled.end + 1000}}}'}
    with pytest.raises(DataLossError, match=f"log of log: bytes 0 to {filled.end + 1000} should"):
        log_reader(filled.root, **given).partitions()
    given["failOnDataLoss"] = "false"
    assert rows_at(log_reader(filled.root, **given)) == filled.offsets


def test_a_segment_missing_in_the_middle_is_a_loss(filled: FilledStore, tmp_path: Path) -> None:
    log = filled.root / "commitlog"
    places = [str(path) for path in sorted(log.iterdir())]
    del places[1]
    paths = str(places).replace("'", '"')
    with pytest.raises(DataLossError, match=f"{LOG_FILE_BYTES} to {2 * LOG_FILE_BYTES} are in no"):
        log_reader(None, paths=paths).partitions()
    rows = rows_at(log_reader(None, paths=paths, failOnDataLoss=False))
    assert rows == [at for at in filled.offsets if at // LOG_FILE_BYTES != 1]


def test_a_file_deleted_after_planning_fails_the_task(filled: FilledStore) -> None:
    reader = log_reader(filled.root)
    gone = next(part for part in reader.partitions() if part.value.range.start == 0)
    filled.segment(0).unlink()
    with pytest.raises(DataLossError, match=r"bytes 0 to .* was deleted"):
        list(reader.read(gone))
    tolerant = log_reader(filled.root, failOnDataLoss=False)
    assert list(tolerant.read(gone)) == []


def test_a_file_cut_after_planning_is_an_error_and_no_end(filled: FilledStore) -> None:
    reader = log_reader(filled.root)
    part = next(part for part in reader.partitions() if part.value.range.start == 0)
    with filled.segment(0).open("r+b") as file:
        file.truncate(filled.offsets[3])
    with pytest.raises(SourceError, match=r"0{20} ends at byte|was cut|should be|expected"):
        list(reader.read(part))


# --- filters -------------------------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path: Path) -> FilledStore:
    store = FilledStore(tmp_path / "store")
    for number in range(40):
        store.fill(1, topic="rare" if number % 10 == 0 else "orders", properties={"TAGS": TAG})
        store.fill(1, topic="orders", properties={"TAGS": TWIN, "KEYS": f"k{number} all"})
        store.fill(1, topic="plain")
    yield store
    store.close()


def test_topics_tags_and_keys_choose_rows(mixed: FilledStore) -> None:
    def rows(**given: Any) -> list[tuple[Any, ...]]:
        table = read_all(log_reader(mixed.root, **given))
        columns = (table.column(name).to_pylist() for name in ("topic", "tags", "keys"))
        return sorted(zip(*columns, strict=True), key=str)

    assert [row[0] for row in rows(subscribe="rare, plain")].count("plain") == 40
    assert rows(subscribe="rare") == [("rare", TAG, None)] * 4
    assert rows(subscribe="orders", filter_tags=f"{TWIN} || other") == sorted(
        ("orders", TWIN, f"k{number} all") for number in range(40)
    )
    assert rows(subscribe="orders", filter_keys="k7,k9") == [
        ("orders", TWIN, "k7 all"),
        ("orders", TWIN, "k9 all"),
    ]
    assert rows(subscribe="orders", filter_keys="k") == [], "a part of a key is none"
    assert rows(subscribe="none") == []


def test_filters_work_on_columns_that_are_not_asked_for(mixed: FilledStore) -> None:
    reader = log_reader(mixed.root, columns=("phy_offset",), filter_tags=TAG, filter_keys="all")
    assert read_all(reader).num_rows == 0
    reader = log_reader(mixed.root, columns=("phy_offset",), filter_tags=TWIN, filter_keys="k3")
    table = read_all(reader)
    assert (table.column_names, table.num_rows) == (["phy_offset"], 1)


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "exactly one of path"),
        ({"path": "x", "brokers": "{}"}, "exactly one of path"),
        ({"brokers": "[1]"}, "expected an object"),
        ({"brokers": '{"b": 1}'}, "expected a path"),
        ({"paths": "{"}, "expected JSON"),
        ({"path": "x", "badRecords": "permissive"}, "needs validate=true"),
        ({"path": "x", "validate": "true", "checkCrc": "false"}, "leave checkCrc out"),
        ({"path": "x", "readThrough": "queues"}, "readThrough was removed"),
        ({"path": "x", "startingOffsets": "first"}, "startingOffsets"),
        ({"path": "x", "startingOffsets": '{"b": -3}'}, "expected a physical offset"),
        ({"path": "x", "startingOffsets": '{"b": true}'}, "expected a physical offset"),
        ({"path": "x", "endingOffsets": "earliest"}, "met earliest"),
        ({"path": "x", "subscribes": "t"}, "did you mean subscribe"),
    ],
)
def test_options_that_mean_nothing_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        log_options(**given)


def test_what_planning_can_refuse_fails_planning(filled: FilledStore) -> None:
    with pytest.raises(OptionError, match=r"filter\.tags"):
        log_reader(filled.root, filter_tags="||")
    with pytest.raises(OptionError, match=r"filter\.keys"):
        log_reader(filled.root, filter_keys=" , ")
    with pytest.raises(OptionError, match="needs the column record_valid"):
        log_reader(filled.root, columns=("body",), badRecords="permissive", validate=True)
    with pytest.raises(OptionError, match="met broker other"):
        log_reader(filled.root, startingOffsets='{"other": 0}').partitions()
