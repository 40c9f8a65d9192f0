"""Nouns with their counts."""

from __future__ import annotations

import pytest

from cometmq.model.nouns import counted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "dead letter", "1 dead letter"),
        (0, "dead letter", "0 dead letters"),
        (2, "dead letter", "2 dead letters"),
        (1, "delivery", "1 delivery"),
        (2, "delivery", "2 deliveries"),
        (2, "key", "2 keys"),
    ],
)
def test_a_noun_has_the_form_of_its_count(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text
