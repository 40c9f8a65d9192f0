"""The states of timer messages."""

from __future__ import annotations

import pytest

from cometmq.cli.admin.timer import state_of


@pytest.mark.parametrize(
    ("slot_ms", "state"), [(5_000, "waiting"), (4_999, "due"), (4_000, "due"), (3_999, "past")]
)
def test_a_message_is_past_when_the_second_of_its_slot_is_over(slot_ms: int, state: str) -> None:
    assert state_of(slot_ms, 5_000) == state
