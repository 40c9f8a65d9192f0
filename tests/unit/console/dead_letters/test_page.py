"""Reasons of dead letters, without what differs in each of them."""

from __future__ import annotations

import pytest

from cometmq.console.dead_letters.page import NOT_RECORDED, common_reason


@pytest.mark.parametrize(
    ("reason", "common"),
    [
        ("builtins.KeyError: 'order-17'", "builtins.KeyError: 'order-#'"),
        ("app.Refused: 7F000001000054E3 at 12:30", "app.Refused: # at #:#"),
        ("timeout after 5s\nTraceback", "timeout after #s"),
        ("decade", "decade"),
        ("  ", NOT_RECORDED),
    ],
)
def test_numbers_and_ids_are_left_out(reason: str, common: str) -> None:
    assert common_reason(reason) == common
