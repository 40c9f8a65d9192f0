"""Names and values in lines of forms."""

from __future__ import annotations

import pytest

from cometmq.console.topics.changes import pairs_of
from cometmq.model.errors import ConfigError


def test_lines_are_names_and_values() -> None:
    assert pairs_of(["a = 1", "b=c=d"], "properties") == [("a", "1"), ("b", "c=d")]
    assert pairs_of(["a="], "attributes", may_be_empty=True) == [("a", "")]
    for line in ("a", "=1", "a="):
        with pytest.raises(ConfigError, match=r"properties: .*: expected name=value"):
            pairs_of([line], "properties")
