"""The rule by which a target is met: the worse quartile of five rounds."""

import pytest
from verdict import ROUNDS_MIN, verdict, worse_quartile


def test_the_worse_quartile_of_five_rounds_is_the_second_worst():
    rounds = [3.0, 1.0, 5.0, 2.0, 4.0]
    assert worse_quartile(rounds, more_is_better=True) == 2.0
    assert worse_quartile(rounds, more_is_better=False) == 4.0


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([1, 4, 5, 6, 7], "met"),  # one bad round of five is beyond the quartile
        ([1, 3.9, 5, 6, 7], "met by the median"),
        ([1, 1, 4, 9, 9], "met by the median"),
        ([1, 1, 3.9, 9, 9], "missed"),
        ([4, 4, 4, 4, 4], "met"),
    ],
)
def test_a_target_is_met_only_by_the_worse_quartile(rounds, expected):
    assert verdict(rounds, 4, more_is_better=True) == expected
    assert verdict([-value for value in rounds], -4, more_is_better=False) == expected


@pytest.mark.parametrize("count", range(ROUNDS_MIN))
def test_fewer_than_five_rounds_give_no_verdict(count):
    assert verdict([100.0] * count, 1, more_is_better=True) == ""
    assert verdict([0.0] * count, 1, more_is_better=True) == ""


def test_one_round_is_its_own_quartile():
    assert worse_quartile([7.0], more_is_better=True) == 7.0
