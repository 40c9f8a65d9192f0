"""The in-sync set as its master sees it: who counts, who is added, who is removed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cometmq.broker.failover.in_sync import InSyncSet, Members


def members(*ids: int) -> Members:
    return frozenset(ids)


def in_sync(*ids: int, confirmed_to: int = 0) -> InSyncSet:
    return InSyncSet(1, members(*ids), 7, confirmed_to=confirmed_to, now_s=100.0)


def test_a_master_alone_confirms_what_it_writes() -> None:
    alone = in_sync(1)
    assert alone.written(50) == 50
    assert alone.is_alone
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
    assert found.confirmed_to == 50
    assert found.ask(members(1, 2, 3))
    assert found.all == members(1, 2, 3)
    assert found.certain == members(1, 2)
    assert found.least_count == 2
    found.reported(2, 70, 80, 100.0)
    assert found.written(80) == 50
    found.refused(7)
    assert found.written(80) == 70
    assert found.ask(members(1, 2, 3))
    assert found.adopt(members(1, 2, 3), 8)
    assert (found.members, found.version, found.wanted) == (members(1, 2, 3), 8, None)
    assert found.least_count == 3
    found.reported(2, 90, 90, 100.0)
    assert found.written(90) == 70
    found.reported(3, 80, 90, 100.0)
    assert found.written(90) == 80


def test_a_removed_member_counts_until_the_answer() -> None:
    found = in_sync(1, 2, confirmed_to=20)
    found.disconnected(2)
    assert found.ask(members(1))
    assert not found.is_alone
    assert found.least_count == 1
    assert found.written(50) == 20
    found.adopt(members(1), 8)
    assert found.is_alone
    assert found.written(50) == 50


def test_one_request_is_under_way_at_a_time() -> None:
    found = in_sync(1, 2)
    assert not found.ask(members(1, 2))
    assert not found.ask(members(2))
    assert found.ask(members(1))
    assert not found.ask(members(1, 2, 3))


def test_a_request_without_an_answer_counts_until_a_newer_set_is_known() -> None:
    found = in_sync(1)
    found.ask(members(1, 2))
    found.lost(7)
    assert found.wanted is None
    assert found.all == members(1, 2)
    assert found.written(50) == 0
    assert found.ask(members(1, 3))
    found.refused(7)
    assert found.all == members(1, 2)
    assert found.least_count == 1
    assert not found.adopt(members(1), 7)
    assert not found.adopt(members(1), 6)
    assert found.all == members(1, 2)
    assert found.adopt(members(1), 8)
    assert found.all == members(1)


@pytest.mark.parametrize("ends", [InSyncSet.refused, InSyncSet.lost])
def test_the_end_of_an_older_request_says_nothing_of_the_one_under_way(
    ends: Callable[[InSyncSet, int], bool],
) -> None:
    found = in_sync(1)
    found.ask(members(1, 2))
    found.lost(7)
    found.ask(members(1, 2))
    found.adopt(members(1, 2), 8)  # the first request has taken effect
    assert found.ask(members(1, 2, 3))
    assert not ends(found, 7)
    assert found.all == members(1, 2, 3)
    assert found.wanted == members(1, 2, 3)


def test_after_a_lost_request_the_set_is_renewed() -> None:
    found = in_sync(1, 2, 3)
    assert found.instead_of_lost() is None
    assert not found.ask(members(1, 2, 3))
    found.ask(members(1))
    found.lost(7)
    assert found.least_count == 1
    assert found.instead_of_lost() == members(1, 2, 3)
    assert found.ask(members(1, 2, 3))
    found.adopt(members(1, 2, 3), 8)
    assert found.least_count == 3
    assert found.instead_of_lost() is None


def test_a_controller_that_renews_no_set_is_asked_for_another_one() -> None:
    found = in_sync(1, 2, 3)
    found.ask(members(1))
    found.lost(7)
    for instead in (members(1, 2, 3), members(1, 2), members(1, 2, 3)):
        assert found.instead_of_lost() == instead
        assert found.ask(instead)
        found.refused(7)
    alone = in_sync(1)
    alone.ask(members(1, 2))
    alone.lost(7)
    for _ in range(2):
        assert alone.instead_of_lost() == members(1)
        assert alone.ask(members(1))
        alone.refused(7)


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


def test_members_that_report_less_than_is_confirmed_lack_it() -> None:
    found = in_sync(1, 2, 3, confirmed_to=40)
    assert found.lacking() == set()  # they may have it
    found.reported(2, 40, 60, 100.0)
    found.reported(3, 39, 60, 100.0)
    found.reported(4, 0, 60, 100.0)
    assert found.lacking() == {3}
    found.reported(3, 60, 60, 100.0)
    assert found.lacking() == set()


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
    found.disconnected(2)
    assert found.with_slave(2, 0) is None
    assert found.offset_at(2, 50) == -1


def test_a_slave_joins_before_it_becomes_a_member() -> None:
    found = in_sync(1)
    found.reported(2, 90, 100, 100.0)
    assert not found.join(2, 100, 9)  # it lacks too much
    assert not found.join(3, 100, 100)  # it has not reported
    assert found.join(2, 100, 10)
    assert not found.join(2, 100, 10)
    assert (found.all, found.certain, found.least_count) == (members(1, 2), members(1), 1)
    assert found.written(120) == 100  # what it was alone with is confirmed, and nothing more
    assert found.with_slave(2, 0) is None
    found.reported(2, 99, 120, 100.0)
    assert found.with_slave(2, 0) is None
    found.reported(2, 110, 120, 100.0)
    assert found.written(120) == 110
    wanted = found.with_slave(2, 0)
    assert wanted == members(1, 2)
    assert found.ask(wanted)
    assert found.joining is None
    assert found.adopt(wanted, 8)
    assert found.certain == members(1, 2)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_slave_that_does_not_become_a_member_counts_no_more(leaves: bool) -> None:
    found = in_sync(1)
    found.reported(2, 100, 100, 100.0)
    assert found.join(2, 100, 10)
    if leaves:
        found.disconnected(2)
    else:
        found.end_joining()
    assert found.is_alone
    assert found.written(120) == 120


def test_members_count_for_what_they_have_and_only_if_they_are_certain() -> None:
    found = in_sync(1, 2, 3)
    found.reported(2, 50, 90, 100.0)
    found.reported(3, 70, 90, 100.0)
    found.reported(4, 90, 90, 100.0)
    assert [found.offset_at(count, 90) for count in (0, 1, 2, 3, 4)] == [90, 90, 70, 50, -1]
    assert found.ask(members(1, 2))
    assert found.offset_at(2, 90) == 50
