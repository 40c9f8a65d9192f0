"""The copies of timer messages in the log."""

from __future__ import annotations

from pathlib import Path

from cometmq.broker.timers.delivered import Delivered
from cometmq.model import property_names as names
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import split_record
from support.stores.small_stores import opened, put


def test_a_copy_of_rocketmq_counts_for_one_record_however_often_it_is_looked_at(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path)
    waiting = {names.REAL_TOPIC: "T", names.REAL_QID: "0", names.TIMER_OUT_MS: "1000"}
    waiting[names.UNIQ_KEY] = "K"
    for _ in range(2):  # a producer has sent it twice
        put(store, b"a", TIMER_TOPIC, 0, encode_properties(waiting))
    put(store, b"a", "T", 0, encode_properties({**waiting, names.TIMER_DEQUEUE_MS: "1500"}))
    found = Delivered(knows_rocketmq=True)
    for facts in store.written_facts_from(0):
        found.take(store, facts)
    units = list(store.written_units(TIMER_TOPIC, 0, 0))
    first, second = (split_record(store.written_record_at(*unit) or b"") for unit in units)

    # A store that refuses a message for a moment lets it be looked at again.
    assert [found.has(first), found.has(first), found.has(second)] == [True, True, False]
    store.close()
