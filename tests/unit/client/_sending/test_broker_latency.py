"""Which brokers are left alone because they were slow or failed."""

from __future__ import annotations

import pytest

from cometmq.client._sending.broker_latency import LatencyTable
from cometmq.client._sending.queue_picker import QueuePicker
from cometmq.model.queue import MessageQueue

PAUSES = {
    4: [
        (49, 0), (50, 0), (99, 0), (100, 0), (549, 0), (550, 30_000), (999, 30_000),
        (1_000, 60_000), (2_000, 120_000), (3_000, 180_000), (14_999, 180_000), (15_000, 600_000),
        (30_000, 600_000),
    ],
    5: [
        (49, 0), (549, 0), (550, 2_000), (1_799, 2_000), (1_800, 5_000), (3_000, 6_000),
        (5_000, 10_000), (10_000, 10_000), (14_999, 10_000), (15_000, 30_000),
    ],
}  # fmt: skip

QUEUES = [MessageQueue("t", broker, number) for broker in "abc" for number in range(2)]


def table(line: int, **latencies_ms: float) -> LatencyTable:
    """A table in which each broker's last try, at time 0, took this long; None for a failure."""
    made = LatencyTable.of_line(line)
    for broker, latency_ms in latencies_ms.items():
        made.record(broker, latency_ms, isolated=False, reachable=True, now_s=0.0)
    return made


def fail(made: LatencyTable, broker: str, *, now_s: float = 0.0, reachable: bool = True) -> None:
    made.record(broker, 5.0, isolated=True, reachable=reachable, now_s=now_s)


def picked(made: LatencyTable, *, now_s: float = 0.0, avoid: str | None = None) -> set[str]:
    turn = QueuePicker(made)
    picks = [turn.pick(QUEUES, avoid={avoid} if avoid else (), now_s=now_s) for _ in range(24)]
    return {queue.broker_name for queue in picks}


@pytest.mark.parametrize(
    ("line", "latency_ms", "pause_ms"),
    [(line, *row) for line, rows in PAUSES.items() for row in rows],
)
def test_the_highest_limit_that_the_latency_reaches_decides_the_pause(
    line: int, latency_ms: int, pause_ms: int
) -> None:
    assert LatencyTable.of_line(line).pause_ms(latency_ms) == pause_ms


@pytest.mark.parametrize(("line", "pause_s"), [(4, 600.0), (5, 10.0)])
def test_a_failed_try_counts_as_very_slow(line: int, pause_s: float) -> None:
    made = LatencyTable.of_line(line)

    fail(made, "a", now_s=7.0)

    assert not made.available("a", 7.0 + pause_s - 0.001)
    assert made.available("a", 7.0 + pause_s)


def test_a_broker_that_was_never_tried_is_available_and_reachable() -> None:
    made = LatencyTable.of_line(5)

    assert made.available("a", 0.0)
    assert made.reachable("a")


@pytest.mark.parametrize(("line", "available"), [(4, True), (5, False)])
def test_only_in_4_does_a_quick_try_end_a_pause_early(line: int, *, available: bool) -> None:
    made = LatencyTable.of_line(line)
    fail(made, "a")

    made.record("a", 1.0, isolated=False, reachable=True, now_s=1.0)

    assert made.available("a", 1.0) is available


@pytest.mark.parametrize("line", [4, 5])
def test_queues_of_brokers_that_are_avoided_are_not_picked(line: int) -> None:
    made = table(line, a=600.0, b=10.0)
    fail(made, "c")

    assert picked(made) == {"b"}


@pytest.mark.parametrize(("line", "brokers"), [(4, {"b", "c"}), (5, {"c"})])
def test_a_retry_leaves_the_last_broker_only_in_5(line: int, brokers: set[str]) -> None:
    assert picked(table(line, a=600.0), avoid="b") == brokers


def test_in_5_a_reachable_broker_is_picked_when_none_is_available() -> None:
    made = table(5, a=600.0)
    fail(made, "b", reachable=False)
    fail(made, "c", reachable=False)

    assert picked(made) == {"a"}


def test_in_5_any_broker_is_picked_when_none_is_reachable() -> None:
    made = LatencyTable.of_line(5)
    for broker in "abc":
        fail(made, broker, reachable=False)

    assert picked(made) == {"a", "b", "c"}


def test_in_4_the_least_bad_broker_is_picked_when_none_is_available() -> None:
    made = table(4, a=3_000.0, b=600.0, c=2_000.0)

    assert picked(made) == {"b"}


def test_in_4_a_least_bad_broker_without_queues_is_forgotten() -> None:
    made = table(4, a=3_000.0, b=3_000.0, c=3_000.0, gone=600.0)

    assert picked(made) >= {"a"}
    assert made.available("gone", 0.0)


def test_pick_at_least_takes_turns_in_the_better_half() -> None:
    """Available ones come first, then fast ones, then those that are available again soon."""
    made = table(4, a=600.0, b=10.0, c=3_000.0, d=700.0)
    picks = [made.pick_least(0.0) for _ in range(8)]

    assert set(picks) == {"b", "a"}
    assert picks[0] != picks[1]


def test_pick_at_least_prefers_who_is_available_again_soon() -> None:
    made = LatencyTable.of_line(4)
    made.record("late", 600.0, isolated=False, reachable=True, now_s=5.0)
    made.record("soon", 600.0, isolated=False, reachable=True, now_s=1.0)

    assert made.pick_least(6.0) == "soon"


def test_pick_at_least_gives_the_only_broker_and_nothing_of_an_empty_table() -> None:
    assert table(4, a=3_000.0).pick_least(0.0) == "a"
    assert LatencyTable.of_line(4).pick_least(0.0) is None


def test_brokers_that_are_avoided_are_listed_until_they_are_forgotten() -> None:
    made = table(5, a=600.0, b=10.0)
    fail(made, "c", reachable=False)
    assert set(made.avoided(0.0)) == {"a", "c"}
    assert set(made.avoided(60.0)) == {"c"}

    made.forget("c")

    assert set(made.avoided(0.0)) == {"a"}
