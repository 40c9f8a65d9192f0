"""The checker of groups finds each anomaly, and says it in words."""

from __future__ import annotations

from support.counting import (
    Overlaps,
    Seen,
    Stored,
    badly_shared,
    lost,
    out_of_order,
    skipped,
)


def seen(*rows: tuple[str, int, int]) -> list[Seen]:
    """Member, offset, time."""
    return [Seen(member, "q", offset, f"b{offset}", at) for member, offset, at in rows]


def test_a_message_nobody_saw_is_lost() -> None:
    stored = [Stored("q", 0, "b0"), Stored("q", 1, "b1")]

    assert lost(stored, seen(("A", 0, 1))) == ["b1 is lost: it is stored as q 1"]
    assert lost(stored, seen(("A", 0, 1), ("B", 1, 2))) == []


def test_going_back_is_in_order_and_running_ahead_is_not() -> None:
    assert out_of_order(seen(("A", 0, 1), ("A", 1, 2), ("B", 0, 3), ("B", 1, 4))) == []
    assert out_of_order(seen(("A", 0, 5), ("B", 1, 2))) == [
        "q 1 was seen by B 3 ms before 0 was by A"
    ]


def test_a_gap_is_found() -> None:
    assert skipped(seen(("A", 0, 1), ("A", 2, 2))) == ["q 1 was never seen"]
    assert skipped(seen(("A", 1, 1), ("A", 0, 2))) == []


def test_shares_without_overlap_and_gap_are_fair() -> None:
    queues = ["q0", "q1", "q2"]

    assert badly_shared(queues, {"A": ["q0", "q1"], "B": ["q2"]}) == []
    assert badly_shared(queues, {"A": ["q0", "q1"], "B": ["q1"]}) == [
        "q1 belongs to A and B",
        "q2 belongs to nobody",
    ]
    assert badly_shared(queues, {"A": queues, "B": []}) == [
        "A has 3 of 3 queues",
        "B has 0 of 3 queues",
    ]


def test_a_queue_may_be_two_members_for_the_time_of_a_rebalance() -> None:
    watch = Overlaps(limit_s=2.0)
    watch.look({"A": ["q"], "B": ["q"]}, 0.0)
    watch.look({"A": ["q"], "B": ["q"]}, 2.0)
    watch.look({"A": ["q"], "B": []}, 3.0)
    watch.look({"A": ["q"], "B": ["q"]}, 4.0)
    assert watch.problems == []

    watch.look({"A": ["q"], "B": ["q"]}, 6.5)
    assert watch.problems == ["q belongs to A and B for 2.5 s"]
