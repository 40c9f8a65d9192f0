"""The in-sync set as its master sees it: who counts, who is added, who is removed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cometmq.broker.failover.epochs.in_sync import BrokerIds, InSyncSet


def ids(*numbers: int) -> BrokerIds:
    return frozenset(numbers)


def in_sync(*numbers: int, confirmed_to: int = 0) -> InSyncSet:
    return InSyncSet(1, ids(*numbers), 7, confirmed_to=confirmed_to, now_s=100.0)


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
    assert found.with_slave(2, 40) == ids(1, 2)
    assert found.with_slave(3, 0) is None


def test_both_sets_count_until_the_response() -> None:
    found = in_sync(1, 2)
    found.reported(2, 50, 50, 100.0)
    found.reported(3, 30, 50, 100.0)
    assert found.confirmed_to == 50
    assert found.request(ids(1, 2, 3))
    assert found.all == ids(1, 2, 3)
    assert found.certain == ids(1, 2)
    assert found.least_count == 2
    found.reported(2, 70, 80, 100.0)
    assert found.written(80) == 50
    found.refused(7)
    assert found.written(80) == 70
    assert found.request(ids(1, 2, 3))
    assert found.adopt(ids(1, 2, 3), 8)
    assert (found.members, found.in_sync_epoch, found.requested) == (ids(1, 2, 3), 8, None)
    assert found.least_count == 3
    found.reported(2, 90, 90, 100.0)
    assert found.written(90) == 70
    found.reported(3, 80, 90, 100.0)
    assert found.written(90) == 80


def test_a_removed_replica_counts_until_the_response() -> None:
    found = in_sync(1, 2, confirmed_to=20)
    found.disconnected(2)
    assert found.request(ids(1))
    assert not found.is_alone
    assert found.least_count == 1
    assert found.written(50) == 20
    found.adopt(ids(1), 8)
    assert found.is_alone
    assert found.written(50) == 50


def test_one_request_is_under_way_at_a_time() -> None:
    found = in_sync(1, 2)
    assert not found.request(ids(1, 2))
    assert not found.request(ids(2))
    assert found.request(ids(1))
    assert not found.request(ids(1, 2, 3))


def test_a_request_without_a_response_counts_until_a_newer_set_is_known() -> None:
    found = in_sync(1)
    found.request(ids(1, 2))
    found.unanswered(7)
    assert found.requested is None
    assert found.all == ids(1, 2)
    assert found.written(50) == 0
    assert found.request(ids(1, 3))
    found.refused(7)
    assert found.all == ids(1, 2)
    assert found.least_count == 1
    assert not found.adopt(ids(1), 7)
    assert not found.adopt(ids(1), 6)
    assert found.all == ids(1, 2)
    assert found.adopt(ids(1), 8)
    assert found.all == ids(1)


@pytest.mark.parametrize("ends", [InSyncSet.refused, InSyncSet.unanswered])
def test_the_end_of_an_older_request_says_nothing_of_the_one_under_way(
    ends: Callable[[InSyncSet, int], bool],
) -> None:
    found = in_sync(1)
    found.request(ids(1, 2))
    found.unanswered(7)
    found.request(ids(1, 2))
    found.adopt(ids(1, 2), 8)  # the first request has taken effect
    assert found.request(ids(1, 2, 3))
    assert not ends(found, 7)
    assert found.all == ids(1, 2, 3)
    assert found.requested == ids(1, 2, 3)


def test_after_a_request_without_a_response_the_set_is_renewed() -> None:
    found = in_sync(1, 2, 3)
    assert found.renewal() is None
    assert not found.request(ids(1, 2, 3))
    found.request(ids(1))
    found.unanswered(7)
    assert found.least_count == 1
    assert found.renewal() == ids(1, 2, 3)
    assert found.request(ids(1, 2, 3))
    found.adopt(ids(1, 2, 3), 8)
    assert found.least_count == 3
    assert found.renewal() is None


def test_a_controller_that_renews_no_set_is_asked_for_another_one() -> None:
    found = in_sync(1, 2, 3)
    found.request(ids(1))
    found.unanswered(7)
    for instead in (ids(1, 2, 3), ids(1, 2), ids(1, 2, 3)):
        for was_sent in (False, True):
            assert found.renewal() == instead
            assert found.request(instead)
            found.refused(7, was_sent=was_sent)
    alone = in_sync(1)
    alone.request(ids(1, 2))
    alone.unanswered(7)
    for _ in range(2):
        assert alone.renewal() == ids(1)
        assert alone.request(ids(1))
        alone.refused(7)


def test_the_confirm_offset_is_what_all_in_sync_replicas_have() -> None:
    found = in_sync(1, 2, 3, confirmed_to=10)
    found.reported(2, 50, 60, 100.0)
    assert found.confirmed_to == 10  # 3 has not reported: RocketMQ would confirm 50
    found.reported(3, 30, 60, 100.0)
    assert found.confirmed_to == found.written(60) == 30
    found.reported(4, 20, 60, 100.0)  # not in sync
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
def test_in_sync_replicas_that_were_left_behind_are_removed(connects: bool) -> None:
    found = in_sync(1, 2)
    if connects:
        found.reported(2, 10, 50, 100.0)
        found.reported(2, 20, 90, 114.0)
    assert found.without_slow(115.0, 15.0) is None
    assert found.without_slow(115.1, 15.0) == ids(1)


def test_in_sync_replicas_that_report_less_than_is_confirmed_lack_it() -> None:
    found = in_sync(1, 2, 3, confirmed_to=40)
    assert found.lacking() == set()  # they may have it
    found.reported(2, 40, 60, 100.0)
    found.reported(3, 39, 60, 100.0)
    found.reported(4, 0, 60, 100.0)
    assert found.lacking() == {3}
    found.reported(3, 60, 60, 100.0)
    assert found.lacking() == set()


def test_an_in_sync_replica_that_follows_a_growing_log_stays() -> None:
    found = in_sync(1, 2)
    end = 0
    for second in range(100, 200):
        end += 50
        found.reported(2, end - 40, end, float(second))  # always a little behind
        assert found.without_slow(second + 0.5, 5.0) is None


def test_an_in_sync_replica_that_has_all_of_an_idle_log_stays() -> None:
    found = in_sync(1, 2)
    found.reported(2, 50, 50, 100.0)
    found.idle(50, 130.0)
    assert found.without_slow(140.0, 15.0) is None
    found.idle(60, 150.0)
    assert found.without_slow(150.0, 15.0) == ids(1)


def test_a_slave_that_connects_again_begins_anew() -> None:
    found = in_sync(1)
    found.reported(2, 50, 50, 100.0)
    found.disconnected(2)
    assert found.with_slave(2, 0) is None
    assert found.offset_at(2, 50) == -1


def test_a_slave_joins_before_it_becomes_an_in_sync_replica() -> None:
    found = in_sync(1)
    found.reported(2, 90, 100, 100.0)
    assert not found.join(2, 100, 9)  # it lacks too much
    assert not found.join(3, 100, 100)  # it has not reported
    assert found.join(2, 100, 10)
    assert not found.join(2, 100, 10)
    assert (found.all, found.certain, found.least_count) == (ids(1, 2), ids(1), 1)
    assert found.written(120) == 100  # what it was alone with is confirmed, and nothing more
    assert found.with_slave(2, 0) is None
    found.reported(2, 99, 120, 100.0)
    assert found.with_slave(2, 0) is None
    found.reported(2, 110, 120, 100.0)
    assert found.written(120) == 110
    wanted = found.with_slave(2, 0)
    assert wanted == ids(1, 2)
    assert found.request(wanted)
    assert found.joining is None
    assert found.adopt(wanted, 8)
    assert found.certain == ids(1, 2)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_slave_that_does_not_become_an_in_sync_replica_counts_no_more(leaves: bool) -> None:
    found = in_sync(1)
    found.reported(2, 100, 100, 100.0)
    assert found.join(2, 100, 10)
    if leaves:
        found.disconnected(2)
    else:
        found.end_joining()
    assert found.is_alone
    assert found.written(120) == 120


def test_in_sync_replicas_count_for_what_they_have_and_only_if_they_are_certain() -> None:
    found = in_sync(1, 2, 3)
    found.reported(2, 50, 90, 100.0)
    found.reported(3, 70, 90, 100.0)
    found.reported(4, 90, 90, 100.0)
    assert [found.offset_at(count, 90) for count in (0, 1, 2, 3, 4)] == [90, 90, 70, 50, -1]
    assert found.request(ids(1, 2))
    assert found.offset_at(2, 90) == 50
