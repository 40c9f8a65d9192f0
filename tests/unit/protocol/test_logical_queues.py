"""Items of logical queues: translation of offsets, and checks."""

from __future__ import annotations

import pytest

from cometmq.protocol.bodies.route import LogicQueueMappingItem, TopicQueueMappingDetail
from cometmq.protocol.logical_queues import (
    InvalidMappingError,
    check_items,
    check_physical_queues,
    end_of,
    index_for,
    info_of,
    last_decided,
    logical_offset,
    next_decided,
    physical_offset,
    round_up,
    stored_offset,
)


def item(gen: int, broker: str, queue: int, begin: int, end: int = -1) -> LogicQueueMappingItem:
    return LogicQueueMappingItem(
        gen=gen, bname=broker, queue_id=queue, logic_offset=begin, end_offset=end
    )


ITEMS = [item(0, "a", 0, 0), item(1, "b", 0, 100), item(2, "a", 1, 200), item(3, "c", 0, -1)]


@pytest.mark.parametrize(
    ("offset", "index"), [(-1, 0), (0, 0), (99, 0), (100, 1), (199, 1), (200, 2), (10**9, 2)]
)
def test_an_offset_belongs_to_the_last_item_that_begins_before_it(offset: int, index: int) -> None:
    assert index_for(ITEMS, offset) == index


def test_offsets_before_all_items_belong_to_the_first_one_and_undecided_items_have_none() -> None:
    assert index_for([item(3, "a", 0, 50), item(4, "b", 0, 60)], 0) == 0
    assert index_for([item(0, "a", 0, -1)], 0) is None
    assert last_decided(ITEMS) == 2
    assert (next_decided(ITEMS, 0), next_decided(ITEMS, 2)) == (1, None)


def test_offsets_are_translated_both_ways() -> None:
    assert physical_offset(ITEMS[1], 103) == 3
    assert logical_offset(ITEMS[1], 3) == 103
    assert (stored_offset(ITEMS[3], 3), stored_offset(item(0, "a", 0, 10, end=2), 5)) == (-1, 12)


def test_an_item_ends_where_the_next_one_begins_or_at_its_own_end() -> None:
    assert (end_of(ITEMS, 0), end_of(ITEMS, 2)) == (100, None)
    assert end_of([item(0, "a", 0, 0, end=40), ITEMS[1]], 0) == 40


@pytest.mark.parametrize(
    ("end", "begin"), [(0, 10_000), (4_999, 10_000), (5_000, 20_000), (14_999, 20_000)]
)
def test_at_least_half_a_block_is_left_behind_an_item(end: int, begin: int) -> None:
    assert round_up(end) == begin


def test_the_info_has_the_queues_whose_last_item_is_here() -> None:
    detail = TopicQueueMappingDetail(
        topic="T", total_queues=2, bname="a", epoch=7, hosted_queues={1: ITEMS[:3], 0: ITEMS[:2]}
    )

    assert info_of(detail).curr_id_map == {1: 1}


@pytest.mark.parametrize(
    ("items", "word"),
    [
        ([], "empty"),
        ([item(0, "", 0, 0)], "broker"),
        ([item(0, "a", -1, 0)], "negative"),
        ([item(0, "a", 0, -1), item(1, "b", 0, 5)], "negative logic offset"),
        ([item(1, "a", 0, 0), item(1, "b", 0, 5)], "gen"),
        ([item(0, "a", 0, 5), item(1, "b", 0, 5)], "base logic offset"),
        ([item(0, "a", 0, 0, end=5), item(1, "b", 0, 5)], "max logic offset"),
    ],
)
def test_items_that_do_not_follow_each_other_are_refused(
    items: list[LogicQueueMappingItem], word: str
) -> None:
    with pytest.raises(InvalidMappingError, match=word):
        check_items(0, items)


def test_a_physical_queue_has_one_item() -> None:
    twice = TopicQueueMappingDetail(
        hosted_queues={0: [item(0, "a", 3, 0)], 1: [item(0, "a", 3, 0)]}
    )

    with pytest.raises(InvalidMappingError, match="physical queue 3 of broker a"):
        check_physical_queues([twice])
