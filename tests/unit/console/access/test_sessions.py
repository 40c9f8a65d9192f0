"""Sessions end, and attempts to sign in have a limit."""

from __future__ import annotations

from cometmq.console.access.sessions import (
    AGE_S,
    ATTEMPTS_MAX,
    IDLE_S,
    KEYS_MAX,
    SESSIONS_MAX,
    SESSIONS_OF_USER_MAX,
    WINDOW_S,
    AttemptLimit,
    Sessions,
)
from support.checks.manual_clock import ManualClock


def test_a_session_ends_when_it_is_idle_too_old_or_ended() -> None:
    clock = ManualClock()
    sessions = Sessions(clock)
    idle, _ = sessions.add("ada")
    used, session = sessions.add("bob")
    ended, _ = sessions.add("eve")

    sessions.end(ended)
    assert sessions.find(ended) is None
    clock.advance(IDLE_S * 1000)
    assert sessions.find(used) is session
    clock.advance(1000)
    assert sessions.find(idle) is None
    assert sessions.find(used) is session
    for _ in range(int(AGE_S // IDLE_S)):
        clock.advance((IDLE_S - 1) * 1000)
        sessions.find(used)
    assert sessions.find(used) is None
    assert len(sessions) == 0
    assert sessions.find("") is None


def test_sessions_have_a_bound_for_each_user_and_over_all() -> None:
    sessions = Sessions(ManualClock())
    first, _ = sessions.add("ada")
    for _ in range(SESSIONS_OF_USER_MAX):
        sessions.add("ada")
    assert len(sessions) == SESSIONS_OF_USER_MAX
    assert sessions.find(first) is None

    for number in range(SESSIONS_MAX):
        token, _ = sessions.add(f"user-{number}")
    assert len(sessions) == SESSIONS_MAX
    assert sessions.find(token) is not None


def test_too_many_attempts_wait_for_the_end_of_their_minute() -> None:
    clock = ManualClock()
    limit = AttemptLimit(clock)
    assert [limit.wait_s("address a") for _ in range(ATTEMPTS_MAX)] == [0] * ATTEMPTS_MAX

    clock.advance(WINDOW_S * 500)
    assert limit.wait_s("address a") == WINDOW_S / 2
    assert limit.first_refusal("address a")
    assert limit.wait_s("address a") == WINDOW_S / 2
    assert not limit.first_refusal("address a")
    assert limit.wait_s("address b") == 0
    clock.advance(WINDOW_S * 500)
    assert limit.wait_s("address a") == 0


def test_counts_of_attempts_have_a_bound() -> None:
    limit = AttemptLimit(ManualClock())
    for number in range(KEYS_MAX + 10):
        limit.wait_s(f"address {number}")
    assert len(limit) == KEYS_MAX
