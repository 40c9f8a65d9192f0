"""Changes to a topic's attributes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.topics.attributes import with_changes
from cometmq.model.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("", {}),
        (" , ", {}),
        ("+message.type=FIFO", {"message.type": "FIFO"}),
        (
            "+message.type=DELAY,+reserve.time=-1",
            {"message.type": "DELAY", "reserve.time": "-1"},
        ),
        ("+queue.type=SimpleCQ", {"queue.type": "SimpleCQ"}),
    ],
)
def test_new_topic_gets_attributes(text: str, attributes: dict[str, str]) -> None:
    assert with_changes({}, text, is_new=True) == attributes


def test_existing_topic_gets_changes_and_keeps_the_rest() -> None:
    before = {"message.type": "FIFO", "reserve.time": "5"}
    after = with_changes(before, "-message.type,+reserve.time=6", is_new=False)
    assert after == {"reserve.time": "6"}
    assert before == {"message.type": "FIFO", "reserve.time": "5"}


def test_what_holds_for_good_may_be_said_again() -> None:
    before = {"queue.type": "SimpleCQ"}
    assert with_changes(before, "+queue.type=SimpleCQ", is_new=False) == before


@pytest.mark.parametrize(
    ("text", "is_new", "said"),
    [
        ("message.type=FIFO", True, r"\+key=value or -key"),
        ("+message.type", True, r"\+key=value or -key"),
        ("-message.type=FIFO", False, r"\+key=value or -key"),
        ("+color=red", True, "unsupported attribute 'color'"),
        ("+message.type=fifo", True, "NORMAL"),
        ("+queue.type=batch", True, "SimpleCQ|BatchCQ"),
        ("+queue.type=BatchCQ", False, "cannot be changed"),
        ("+cleanup.policy=COMPACTION", True, "DELETE"),
        ("+reserve.time=soon", True, "expected"),
        ("-message.type", True, "does not have it"),
        ("-message.type", False, "does not have it"),
        ("+queue.type=SimpleCQ", False, "cannot be changed"),
        (",".join(["+reserve.time=1"] * 65), True, "at most 64"),
    ],
)
def test_other_changes_are_refused(text: str, is_new: bool, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        with_changes({}, text, is_new=is_new)


@given(st.text(max_size=60), st.booleans())
def test_any_text_is_a_change_or_refused(text: str, is_new: bool) -> None:
    try:
        changed = with_changes({}, text, is_new=is_new)
    except ConfigError:
        return
    assert all(value for value in changed.values())
