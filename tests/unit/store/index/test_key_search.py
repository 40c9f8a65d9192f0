"""Finding messages by key."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cometmq.protocol.record import decode_record
from cometmq.store import MessageStore
from cometmq.store.index import key_search
from support.checks.manual_clock import ManualClock
from support.stores.small_stores import TOPIC, put

BASE_MS = 1_700_000_000_000


def places(store: MessageStore, key: str, *, count: int = 64, begin: int = 0, end: int = 10**9):
    found = store.query(TOPIC, key, count, BASE_MS + begin, BASE_MS + end).records
    return [decode_record(bytes(record)).queue_offset for record in found]


def keyed(
    store: MessageStore, clock: ManualClock, time_ms: int, keys: str, unique: str = ""
) -> None:
    clock.set_wall(BASE_MS + time_ms)
    put(store, properties={"KEYS": keys} | ({"UNIQ_KEY": unique} if unique else {}))


def test_a_message_is_found_by_each_key_and_by_its_unique_id(
    store: MessageStore, clock: ManualClock
) -> None:
    keyed(store, clock, 0, "one two", "id-0")
    keyed(store, clock, 1, " two  three ", "id-1")
    assert places(store, "one") == [0]
    assert places(store, "two") == [0, 1]
    assert places(store, "three") == [1]
    assert places(store, "id-1") == [1]
    assert places(store, "") == []
    assert places(store, "four") == []


@pytest.mark.parametrize("time_ms", [0, 1, 999, 1000, 1001, 1999, 2500])
def test_the_span_of_a_query_is_exact_to_the_millisecond(
    store: MessageStore, clock: ManualClock, time_ms: int
) -> None:
    keyed(store, clock, 0, "first")
    keyed(store, clock, time_ms, "k")
    assert places(store, "k", begin=time_ms, end=time_ms) == [1]
    assert places(store, "k", begin=time_ms + 1, end=10**9) == []
    assert places(store, "k", begin=-10, end=time_ms - 1) == []


def test_the_newest_messages_are_found_in_the_order_of_the_log(
    store: MessageStore, clock: ManualClock
) -> None:
    for number in range(200):
        keyed(store, clock, number, "k")
    assert places(store, "k", count=3) == [197, 198, 199]
    assert places(store, "k", count=1000) == list(range(136, 200))


def test_a_message_with_the_same_key_twice_is_found_once(
    store: MessageStore, clock: ManualClock
) -> None:
    keyed(store, clock, 0, "k k", "k")
    assert places(store, "k") == [0]


def test_keys_with_one_hash_are_told_apart(store: MessageStore, clock: ManualClock) -> None:
    keyed(store, clock, 0, "Aa")
    keyed(store, clock, 1, "BB")
    assert places(store, "Aa") == [0]
    assert places(store, "BB") == [1]


def test_a_key_beyond_ascii_is_found(store: MessageStore, clock: ManualClock) -> None:
    keyed(store, clock, 0, "schlüssel 钥匙🗝")
    assert places(store, "钥匙🗝") == [0]
    assert places(store, "schlüssel") == [0]


def test_a_query_tells_how_far_the_index_has_come(store: MessageStore, clock: ManualClock) -> None:
    keyed(store, clock, 0, "k")
    clock.set_wall(BASE_MS + 77)
    last = put(store, properties={"KEYS": "k"})
    put(store)
    result = store.query(TOPIC, "other", 9, 0, 2**62)
    assert result.index_last_update_phyoffset == last.log_offset
    assert result.index_last_update_timestamp == BASE_MS + 77


def test_nothing_is_found_where_there_is_no_index(
    open_store: Callable[..., MessageStore], clock: ManualClock
) -> None:
    store = open_store(index_enabled=False)
    keyed(store, clock, 0, "k")
    assert places(store, "k") == []


def test_a_search_works_in_steps_and_finds_the_same(
    store: MessageStore, clock: ManualClock
) -> None:
    for number in range(300):
        keyed(store, clock, number, "k")
    search = store.search(TOPIC, "k", 64, 0, BASE_MS + 10)
    steps = 1
    while not search.advance(7):
        steps += 1
    assert steps > 5
    found = search.result().records
    assert [bytes(record) for record in found] == [
        bytes(record) for record in store.query(TOPIC, "k", 64, 0, BASE_MS + 10).records
    ]
    assert len(found) == 11


def test_a_search_ends_after_a_number_of_entries(
    store: MessageStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_search, "ENTRIES_MAX", 20)
    for number in range(60):
        keyed(store, clock, number, "k")
    assert store.query(TOPIC, "k", 64, BASE_MS, BASE_MS + 10).records == []
    assert len(store.query(TOPIC, "k", 64, BASE_MS, BASE_MS + 100).records) == 20
