"""The checker of groups finds each anomaly, and says it in words."""

from __future__ import annotations

from support.clients.delivery_check import (
    Assigned,
    Committed,
    Overlaps,
    Seen,
    Stored,
    Tenures,
    badly_shared,
    behind_commits,
    lost,
    most_at_once,
    out_of_order,
    repeats,
    repeats_of_each,
    skipped,
    without_reason,
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


def test_a_repeat_names_who_saw_the_message_before() -> None:
    rows = seen(("A", 0, 1), ("A", 1, 2), ("B", 1, 5), ("B", 2, 6), ("A", 1, 9))

    assert [(one.member, again.member) for one, again in repeats(rows)] == [("A", "B"), ("B", "A")]
    assert without_reason(repeats(rows), lambda before, _: before.member == "B") == [
        "q 1 was seen by B 3 ms after it was by A"
    ]
    assert without_reason(repeats_of_each(rows), lambda *_: False) == [
        "q 1 was seen by A 7 ms after it was by A"
    ]


def test_a_member_has_a_queue_anew_once_it_did_not_have_it() -> None:
    tenures = Tenures(
        Assigned("A", frozenset(queues), at)
        for queues, at in [("q", 0), ("qr", 3), ("r", 5), ("q", 7)]
    )

    numbers = [tenures.number(one) for one in seen(("A", 0, 1), ("A", 0, 6), ("A", 0, 7))]
    assert numbers == [1, 1, 2]
    assert [tenures.number(one) for one in seen(("B", 0, 1), ("B", 0, 9))] == [0, 0]


def test_repeats_are_counted_for_each_time_a_member_got_the_queue() -> None:
    rows = seen(("A", 0, 1), ("A", 1, 2), ("B", 0, 5), ("B", 1, 6), ("A", 1, 9))
    tenures = Tenures([Assigned("A", frozenset("q"), 0), Assigned("B", frozenset("q"), 4)])

    assert most_at_once(repeats(rows), tenures) == 2
    assert most_at_once([], tenures) == 0


def test_what_is_committed_is_not_seen_again() -> None:
    commits = [Committed("q", 2, 5), Committed("q", 1, 7)]
    rows = seen(("A", 1, 5), ("A", 2, 6), ("B", 1, 8))
    problem = "q 1 was seen by B after 2 was committed"

    assert behind_commits(rows, commits, lambda _: False) == [problem]
    assert behind_commits(rows, commits, lambda one: one.member == "B") == []
    assert behind_commits(rows, [Committed("r", 9, 0)], lambda _: False) == []
