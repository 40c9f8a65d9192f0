"""The checks of runs with faults notice what they are for."""

from __future__ import annotations

import pytest

from support.network.fault_runs import (
    check_deliveries,
    check_order,
    check_places,
    first_after,
    longest_pause,
)
from support.network.machines import Stored
from support.network.network_clients import Delivery, Sent

STORED = {(0, 0): Stored(b"a", 0), (1, 0): Stored(b"b", 100), (0, 1): Stored(b"c", 200)}


def test_a_lost_or_moved_acknowledgement_is_noticed() -> None:
    check_places({(0, 0): Sent(b"a", 0.0, 1.0)}, STORED)
    with pytest.raises(AssertionError, match="1 acknowledged messages are lost"):
        check_places({(0, 2): Sent(b"d", 0.0, 1.0)}, STORED)
    with pytest.raises(AssertionError, match="1 acknowledged messages are lost"):
        check_places({(0, 1): Sent(b"a", 0.0, 1.0)}, STORED)


def test_a_master_that_acknowledges_beside_another_one_is_noticed() -> None:
    side_by_side = {
        (0, 0): Sent(b"a", 0.0, 3.0),
        (1, 0): Sent(b"b", 2.0, 2.5),
        (0, 1): Sent(b"c", 1.0, 4.0),
    }
    check_order(side_by_side, STORED)
    late = side_by_side | {(0, 1): Sent(b"c", 1.0, 1.5)}
    with pytest.raises(AssertionError, match="b'b' was sent after b'c' was acknowledged"):
        check_order(late, STORED)


def test_a_received_message_that_is_not_stored_is_noticed() -> None:
    check_deliveries([Delivery((0, 0), b"a", 1.0), Delivery((0, 0), b"a", 2.0)], STORED)
    with pytest.raises(AssertionError, match="1 messages were received and are not stored"):
        check_deliveries([Delivery((0, 2), b"d", 1.0)], STORED)
    with pytest.raises(AssertionError, match="1 messages were received and are not stored"):
        check_deliveries([Delivery((0, 1), b"x", 1.0)], STORED)


def test_pauses_count_from_the_begin_of_the_fault() -> None:
    times_s = [1.0, 2.0, 2.5, 9.0, 8.5]
    assert longest_pause(times_s, 1.5) == 6.0
    assert longest_pause([1.0, 9.0], 2.0) == 7.0
    assert first_after(times_s, 8.6) == 0.4
