"""When, where and by whom a unique id was made: round trips, months, forks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.message_id import (
    CLOCK_STEP_MS_MAX,
    UniqueIds,
)
from support.wire.unique_ids import decode_unique_id, unique_id_time_ms

VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "values"
DAY_MS = 86_400_000
FIRST_SECOND_MS, LAST_MS = 946_684_800_000, 4_102_444_800_000


@pytest.fixture(autouse=True, params=["UTC", "Asia/Shanghai", "America/New_York"])
def time_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Months begin at another moment in each time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def at(year: int, month: int, day: int, *clock: int) -> int:
    """A moment of the local time zone."""
    return int(datetime(year, month, day, *clock).timestamp() * 1000)


def made_at(now_ms: int, ip: bytes = b"\x0a\0\0\1") -> str:
    return UniqueIds(ip, pid=4711, now_ms=lambda: now_ms).next()


def rows(version: str) -> list[dict[str, Any]]:
    text = (VECTORS / version / "message_ids.json").read_text()
    found: list[dict[str, Any]] = json.loads(text)["unique_ids"]
    return found


@given(st.integers(FIRST_SECOND_MS, LAST_MS), st.ip_addresses(), st.integers(1, 25 * DAY_MS))
def test_time_address_and_process_come_back(now_ms: int, ip: Any, later_ms: int) -> None:
    text = UniqueIds(ip.packed, pid=70_000, now_ms=lambda: now_ms).next()

    found = decode_unique_id(text)

    assert unique_id_time_ms(text, now_ms=now_ms + later_ms) == now_ms
    assert (found.host, found.pid, found.counter) == (str(ip), 70_000 & 0xFFFF, 0)
    assert len(text) == (56 if ip.version == 6 else 32)


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_ids_that_java_made_are_taken_apart_as_java_does(version: str, time_zone: str) -> None:
    for row in rows(version):
        found = decode_unique_id(row["id"])
        assert (found.pid, found.month_ms, found.counter) == (
            row["pid"],
            row["time_field_ms"],
            row["counter"],
        )
        assert found.process_number == row["class_loader_hash"]
        assert bytes.fromhex(row["ip_hex"]).hex().upper() == row["id"][: len(row["ip_hex"])]
        if time_zone == "UTC":
            time_ms = unique_id_time_ms(row["id"], now_ms=row["evaluated_at"] + 1)
            assert time_ms == row["nearly_time"]


def test_an_id_of_the_end_of_last_month_is_not_taken_for_one_of_the_future() -> None:
    made_ms = at(2026, 1, 31, 23, 59, 59)

    assert unique_id_time_ms(made_at(made_ms), now_ms=at(2026, 2, 1)) == made_ms
    assert unique_id_time_ms(made_at(made_ms), now_ms=at(2026, 2, 20)) == made_ms


def test_the_last_month_of_january_is_december() -> None:
    made_ms = at(2025, 12, 30, 12)

    assert unique_id_time_ms(made_at(made_ms), now_ms=at(2026, 1, 2)) == made_ms


def test_an_id_older_than_a_month_looks_younger_than_it_is() -> None:
    made_ms = at(2026, 1, 5)

    assert unique_id_time_ms(made_at(made_ms), now_ms=at(2026, 3, 6)) == at(2026, 3, 5)


def test_the_month_rolls_over_while_ids_are_made() -> None:
    moments = iter([at(2026, 1, 31, 23, 59, 59), at(2026, 2, 1), at(2026, 2, 1, 0, 0, 1)])
    ids = UniqueIds(now_ms=moments.__next__)

    made = [decode_unique_id(ids.next()) for _ in range(3)]

    assert [one.month_ms for one in made] == [31 * DAY_MS - 1_000, 0, 1_000]
    assert [one.counter for one in made] == [0, 1, 2]


def test_a_clock_put_back_a_little_at_the_month_s_beginning_stands_still() -> None:
    begin_ms = at(2026, 3, 1)
    moments = iter([begin_ms, begin_ms - 1, begin_ms - CLOCK_STEP_MS_MAX + 1])
    ids = UniqueIds(now_ms=moments.__next__)

    assert [decode_unique_id(ids.next()).month_ms for _ in range(3)] == [0, 0, 0]


def test_a_clock_put_back_a_lot_is_in_the_month_before() -> None:
    begin_ms = at(2026, 3, 1)
    moments = iter([begin_ms, begin_ms - CLOCK_STEP_MS_MAX])
    ids = UniqueIds(now_ms=moments.__next__)
    ids.next()

    assert decode_unique_id(ids.next()).month_ms == 28 * DAY_MS - CLOCK_STEP_MS_MAX


def test_the_counter_wraps_after_65536_ids() -> None:
    ids = UniqueIds(now_ms=lambda: FIRST_SECOND_MS)
    counters = [decode_unique_id(ids.next()).counter for _ in range(65_537)]

    assert counters[:2] == [0, 1]
    assert counters[-2:] == [65_535, 0]


def test_a_forked_child_makes_ids_of_its_own() -> None:
    """Without that, parent and child would go on with the same numbers."""
    ids = UniqueIds(b"\x0a\0\0\1")
    ids.next()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, f"{os.getpid()} {ids.next()}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    pid, text = os.read(reading, 200).decode().split()
    os.close(reading)
    os.close(writing)

    own, theirs = decode_unique_id(ids.next()), decode_unique_id(text)

    assert theirs.pid == int(pid) & 0xFFFF != own.pid
    assert theirs.process_number != own.process_number
    assert (theirs.counter, own.counter) == (0, 1)
