"""Numbers of releases."""

from __future__ import annotations

import pytest

from cometmq.protocol.version import CURRENT_VERSION, version_name


@pytest.mark.parametrize(
    ("release", "number"),
    [((4, 1, 0), 233), ((4, 9, 8), 409), ((5, 0, 0), 413), ((5, 3, 3), CURRENT_VERSION)],
)
def test_a_release_has_its_number_and_name(release: tuple[int, int, int], number: int) -> None:
    assert version_name(number) == "V{}_{}_{}".format(*release)
    assert version_name(number - 1) == "V{}_{}_{}_SNAPSHOT".format(*release)


def test_numbers_beyond_the_table_are_shown_as_such() -> None:
    assert version_name(612) == version_name(10_000) == "HIGHER_VERSION"
    assert version_name(37) == "V37"
