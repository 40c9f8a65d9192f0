"""Check points: the table of what is in flight, and the wheel of what is due."""

from __future__ import annotations

from cometmq.broker.pop.check_points import HORIZON_MS, TICK_MS, CheckPoint, CheckPoints

NOW_MS = 1_700_000_000_000


def point(start: int = 0, count: int = 3, invisible_ms: int = 1_000, **fields: int) -> CheckPoint:
    offsets = range(start, start + count)
    pop_ms = fields.get("pop_ms", NOW_MS)
    return CheckPoint("g", "T", fields.get("queue_id", 0), start, offsets, pop_ms, invisible_ms, 0)


def added(*points: CheckPoint) -> CheckPoints:
    table = CheckPoints()
    for each in points:
        table.add(each, NOW_MS)
    return table


def test_a_check_point_is_found_by_its_receipt_until_its_last_message_is_acknowledged() -> None:
    first = point()
    table = added(first, point(3))
    assert table.find("g", "T", 0, 0, NOW_MS) is first
    assert (len(table), table.in_flight) == (2, 6)

    assert not table.acknowledge(first, first.bit_of(1))
    assert not table.acknowledge(first, first.bit_of(1))  # a second time it counts for nothing
    assert (first.left(), table.in_flight) == (2, 5)
    assert table.acknowledge(first, first.bit_of(0) | first.bit_of(2))

    assert table.find("g", "T", 0, 0, NOW_MS) is None
    assert (len(table), table.in_flight) == (1, 3)


def test_other_receipts_find_nothing() -> None:
    table = added(point())
    assert table.find("g", "T", 0, 1, NOW_MS) is None
    assert table.find("g", "T", 0, 0, NOW_MS + 1) is None
    assert table.find("h", "T", 0, 0, NOW_MS) is None
    assert table.find("g", "T", 1, 0, NOW_MS) is None


def test_a_bit_is_that_of_a_message_of_the_check_point() -> None:
    scattered = CheckPoint("g", "T", 0, 5, (5, 7, 11), NOW_MS, 0, 0)
    assert [scattered.bit_of(offset) for offset in (5, 6, 7, 11, 12)] == [1, 0, 2, 4, 0]
    assert scattered.offsets_of(0b101) == [5, 11]
    assert scattered.end == 12
    assert [point(5).bit_of(offset) for offset in (4, 5, 7, 8)] == [0, 1, 4, 0]


def test_two_pops_of_one_millisecond_have_different_times() -> None:
    table = added(point(), point(pop_ms=NOW_MS + 1))
    assert table.free_pop_ms("g", "T", 0, 0, NOW_MS) == NOW_MS + 2
    assert table.free_pop_ms("g", "T", 0, 1, NOW_MS) == NOW_MS


def test_check_points_are_due_in_the_order_of_their_times_whatever_their_order_was() -> None:
    slow, quick, next_one = point(0, 3, 60_000), point(3, 3, 500), point(6, 3, 900)
    table = added(slow, quick, next_one)
    assert table.next_due_ms() == NOW_MS + 500
    assert table.take_due(NOW_MS + 499, 9) == []
    assert table.take_due(NOW_MS + 900, 9) == [quick, next_one]
    assert table.next_due_ms() == NOW_MS + 60_000


def test_what_is_acknowledged_is_not_due() -> None:
    first, second = point(), point(3)
    table = added(first, second)
    table.acknowledge(first, first.all_bits())
    assert table.take_due(NOW_MS + 1_000, 9) == [second]
    assert table.next_due_ms() is None


def test_what_is_due_beyond_the_wheel_is_not_due_earlier() -> None:
    late = point(invisible_ms=3 * HORIZON_MS)
    table = added(late)
    now_ms = NOW_MS
    while now_ms < NOW_MS + 3 * HORIZON_MS:
        assert table.take_due(now_ms, 9) == []
        due_ms = table.next_due_ms()
        assert due_ms is not None
        assert now_ms < due_ms <= now_ms + HORIZON_MS + TICK_MS
        now_ms = due_ms
    assert table.take_due(now_ms, 9) == [late]


def test_a_check_point_that_is_delayed_is_due_once_and_later() -> None:
    first = point()
    table = added(first)
    table.delay(first, NOW_MS + 5_000, NOW_MS)
    assert table.take_due(NOW_MS + 4_999, 9) == []
    assert table.take_due(NOW_MS + 5_000, 9) == [first]
    assert table.take_due(NOW_MS + 9_000, 9) == []


def test_the_table_holds_nothing_of_what_was_acknowledged() -> None:
    table = CheckPoints()
    for number in range(1_000):
        each = point(number, 1, invisible_ms=number)
        table.add(each, NOW_MS)
        table.acknowledge(each, 1)
    assert (len(table), table.in_flight, table.queues()) == (0, 0, {})
    assert table.next_due_ms() is None
    assert not table._wheel
