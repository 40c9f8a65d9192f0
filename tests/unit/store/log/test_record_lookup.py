"""Reading records by their log offset."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.protocol.record import body_at
from cometmq.store import MessageStore
from support.stores.small_stores import LOG_FILE_BYTES, TOPIC, put
from support.wire.message_records import record


@pytest.mark.parametrize("where", [-1, -(2**63), 1, 7, 10**6, 2**62, 2**63 - 1])
def test_no_record_is_found_where_none_begins(store: MessageStore, where: int) -> None:
    for body in (b"0", b"1", b"2"):
        put(store, body)
    assert store.record_at(where) is None


@pytest.mark.parametrize("size", [0, 1, 91, 93, 2**31])
def test_no_record_is_found_of_another_size(store: MessageStore, size: int) -> None:
    stored = put(store, b"1")
    assert stored.size_bytes not in (size,)
    assert store.record_at(stored.log_offset, size) is None
    assert store.record_at(stored.log_offset, stored.size_bytes) is not None


def imitation(
    log_offset: int, *, topic: str = TOPIC, queue_id: int = 0, queue_offset: int
) -> bytes:
    """What a client may send as a body: a record at the offset that the body is going to have."""
    facts = {"queue_id": queue_id, "queue_offset": queue_offset, "log_offset": log_offset}
    return record(b"imitated", topic.encode(), {"KEYS": "made-up"}, **facts)


IMITATED: dict[str, dict[str, Any]] = {
    "a message of its queue": {"queue_offset": 1},
    "the message that contains it": {"queue_offset": 2},
    "the next message of its queue": {"queue_offset": 3},
    "no message of its queue": {"queue_offset": 10**12},
    "a negative offset": {"queue_offset": -1},
    "another queue": {"queue_id": 7, "queue_offset": 0},
    "a topic without queues": {"topic": "elsewhere", "queue_offset": 0},
}


@pytest.mark.parametrize("case", IMITATED)
def test_a_body_that_imitates_a_record_is_no_record(store: MessageStore, case: str) -> None:
    put(store, b"0")
    put(store, b"1")
    at = store.written_to + body_at(0)
    assert put(store, imitation(at, **IMITATED[case])).log_offset == at - body_at(0)
    put(store, b"behind it")
    assert store.record_at(at) is None
    for log_offset, size, _ in store.consume_queue_units(TOPIC, 0, 0, 9):
        assert store.record_at(log_offset) == store.record_at(log_offset, size) is not None


def test_the_records_from_an_offset_on_are_read_over_the_ends_of_files(store: MessageStore) -> None:
    stored = [put(store, body=b"x" * 1000) for _ in range(40)]
    offsets = [each.log_offset for each in stored]
    assert len({offset // LOG_FILE_BYTES for offset in offsets}) > 2
    assert [facts.log_offset for facts in store.facts_from(0)] == offsets
    assert [facts.log_offset for facts in store.facts_from(offsets[7])] == offsets[7:]
    assert list(store.facts_from(offsets[7] + 1)) == []
    assert list(store.facts_from(store.written_to)) == []
    assert list(store.facts_from(1 << 40)) == []
