"""Where a page of messages begins, as a parameter of its address."""

from __future__ import annotations

import pytest

from cometmq.console.stored_messages import QUEUES_MAX, ranges_of, text_of
from cometmq.model.errors import ConfigError
from cometmq.model.queue import MessageQueue

TOPIC = "%DLQ%billing"


def test_ranges_are_the_same_after_they_were_a_parameter() -> None:
    ranges = {
        MessageQueue(TOPIC, "broker-a", 0): range(5, 90),
        MessageQueue(TOPIC, "broker-b", 1): range(0, 1),
    }
    assert text_of(ranges) == "broker-a/0/5-90;broker-b/1/0-1"
    assert ranges_of(text_of(ranges), TOPIC) == ranges
    assert text_of({}) == ""


@pytest.mark.parametrize(
    "text",
    [
        *("a/0/1", "a/0/-1-2", "a/x/1-2", "a/0/1-2;", "/0/1-2", "a/0/1-" + "9" * 19),
        ";".join(f"b{number}/0/0-1" for number in range(QUEUES_MAX + 1)),
    ],
)
def test_a_parameter_that_is_none_of_ours_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="rest: expected"):
        ranges_of(text, TOPIC)
