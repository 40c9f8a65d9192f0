"""Finding messages by their store time."""

from __future__ import annotations

import pytest

from cometmq.store import MessageStore
from support.checks.manual_clock import ManualClock
from support.stores.small_stores import TOPIC, put

BASE_MS = 1_700_000_000_000


def put_at(store: MessageStore, clock: ManualClock, *times: int) -> None:
    for time_ms in times:
        clock.set_wall(BASE_MS + time_ms)
        put(store)


@pytest.mark.parametrize(
    ("asked", "lower", "upper"),
    [
        (500, 0, 0),
        (1000, 0, 0),
        (1200, 1, 0),
        (2000, 1, 3),
        (2400, 4, 3),
        (3000, 4, 4),
        (3500, 5, 4),
        (5000, 5, 5),
        (6000, 6, 5),
    ],
)
def test_an_offset_is_found_by_time_as_rocketmq_5_finds_it(
    store: MessageStore, clock: ManualClock, asked: int, lower: int, upper: int
) -> None:
    put_at(store, clock, 1000, 2000, 2000, 2000, 3000, 5000)
    assert store.offset_at_time(TOPIC, 0, BASE_MS + asked) == lower
    assert store.offset_at_time(TOPIC, 0, BASE_MS + asked, "UPPER") == upper


def test_every_message_has_its_store_time(store: MessageStore, clock: ManualClock) -> None:
    put_at(store, clock, 10, 20)
    times = [store.store_time_at(TOPIC, 0, offset) for offset in (-1, 0, 1, 2)]
    assert times == [-1, BASE_MS + 10, BASE_MS + 20, -1]
