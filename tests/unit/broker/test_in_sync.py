"""The in-sync set as its master sees it: who counts, who is added, who is removed."""

from __future__ import annotations

import pytest

from cometmq.broker.replication.in_sync import InSyncSet, Members


def members(*ids: int) -> Members:
    return frozenset(ids)


def in_sync(*ids: int, confirmed_to: int = 0) -> InSyncSet:
    return InSyncSet(1, members(*ids), 7, confirmed_to=confirmed_to, now_s=100.0)


def test_a_master_alone_confirms_what_it_writes() -> None:
    alone = in_sync(1)
    assert alone.written(50) == 50
    assert alone.all_have(50)
    assert alone.least_count == 1


def test_a_slave_is_added_when_it_has_all_confirmed_bytes_and_this_epoch() -> None:
    found = in_sync(1, confirmed_to=40)
    found.reported(2, 39, 60, 100.0)
    assert found.with_slave(2, 0) is None
    found.reported(2, 40, 60, 100.0)
    assert found.with_slave(2, 41) is None
    assert found.with_slave(2, 40) == members(1, 2)
    assert found.with_slave(3, 0) is None


def test_both_sets_count_until_the_answer() -> None:
    found = in_sync(1, 2)
    found.reported(2, 50, 50, 100.0)
    found.reported(3, 30, 50, 100.0)
    assert found.all_have(50)
    assert found.ask(members(1, 2, 3))
    assert found.all == members(1, 2, 3)
    assert found.least_count == 2
    assert found.have(50) == 2
    assert not found.all_have(50)
    found.refused()
    assert found.all_have(50)
    assert found.ask(members(1, 2, 3))
    assert found.adopt(members(1, 2, 3), 8)
    assert (found.members, found.version, found.wanted) == (members(1, 2, 3), 8, None)
    assert found.least_count == 3
    assert found.all_have(30)
    assert not found.all_have(31)


def test_a_removed_member_counts_until_the_answer() -> None:
    found = in_sync(1, 2, confirmed_to=20)
    assert found.disconnected(2) == members(1)
    assert found.ask(members(1))
    assert found.least_count == 1
    assert found.written(50) == 20
    assert not found.all_have(50)
    found.adopt(members(1), 8)
    assert found.written(50) == 50
    assert found.all_have(50)


def test_one_request_is_under_way_at_a_time() -> None:
    found = in_sync(1, 2)
    assert not found.ask(members(1, 2))
    assert not found.ask(members(2))
    assert found.ask(members(1))
    assert not found.ask(members(1, 2, 3))


def test_a_request_without_an_answer_counts_until_a_newer_set_is_known() -> None:
    found = in_sync(1)
    found.ask(members(1, 2))
    found.lost()
    assert found.wanted is None
    assert found.all == members(1, 2)
    assert found.written(50) == 0
    assert found.ask(members(1, 3))
    found.refused()
    assert found.all == members(1, 2)
    assert found.least_count == 1
    assert not found.adopt(members(1), 7)
    assert not found.adopt(members(1), 6)
    assert found.all == members(1, 2)
    assert found.adopt(members(1), 8)
    assert found.all == members(1)


def test_the_confirm_offset_is_what_all_members_have() -> None:
    found = in_sync(1, 2, 3, confirmed_to=10)
    found.reported(2, 50, 60, 100.0)
    assert found.confirmed_to == 10  # 3 has not reported: RocketMQ would confirm 50
    found.reported(3, 30, 60, 100.0)
    assert found.confirmed_to == found.written(60) == 30
    found.reported(4, 20, 60, 100.0)  # no member
    found.reported(3, 60, 60, 100.0)
    assert found.confirmed_to == 50
    found.disconnected(3)
    found.reported(2, 60, 60, 100.0)
    assert found.confirmed_to == 50


def test_the_confirm_offset_does_not_go_back() -> None:
    found = in_sync(1, 2, confirmed_to=40)
    found.reported(2, 30, 60, 100.0)
    assert found.confirmed_to == 40


@pytest.mark.parametrize("connects", [False, True])
def test_members_that_were_left_behind_are_removed(connects: bool) -> None:
    found = in_sync(1, 2)
    if connects:
        found.reported(2, 10, 50, 100.0)
        found.reported(2, 20, 90, 114.0)
    assert found.without_slow(115.0, 15.0) is None
    assert found.without_slow(115.1, 15.0) == members(1)


def test_a_member_that_follows_a_growing_log_stays() -> None:
    found = in_sync(1, 2)
    end = 0
    for second in range(100, 200):
        end += 50
        found.reported(2, end - 40, end, float(second))  # always a little behind
        assert found.without_slow(second + 0.5, 5.0) is None


def test_a_member_that_has_all_of_an_idle_log_stays() -> None:
    found = in_sync(1, 2)
    found.reported(2, 50, 50, 100.0)
    found.idle(50, 130.0)
    assert found.without_slow(140.0, 15.0) is None
    found.idle(60, 150.0)
    assert found.without_slow(150.0, 15.0) == members(1)


def test_a_slave_that_connects_again_begins_anew() -> None:
    found = in_sync(1)
    found.reported(2, 50, 50, 100.0)
    assert found.disconnected(2) is None
    assert found.with_slave(2, 0) is None
    assert found.have(50) == 1
