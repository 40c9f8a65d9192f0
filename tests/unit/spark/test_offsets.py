"""Documents of a checkpoint: equal offsets are equal texts, and anything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark.errors import SourceError
from cometmq.spark.offsets import (
    QueueKey,
    QueueRange,
    from_json,
    log_from_json,
    log_to_json,
    to_json,
)

KEYS = st.builds(
    QueueKey,
    st.text(min_size=1, max_size=5),
    st.sampled_from(["broker-a", "broker-b", "z"]),
    st.integers(0, 300),
)
POSITIONS = st.dictionaries(KEYS, st.integers(0, 2**62), max_size=20)


@given(positions=POSITIONS, random=st.randoms())
def test_equal_places_are_equal_texts_whatever_their_order(positions: Any, random: Any) -> None:
    shuffled = list(positions.items())
    random.shuffle(shuffled)

    text = json.dumps(to_json(positions))

    assert json.dumps(to_json(dict(shuffled))) == text
    assert from_json(json.loads(text)) == positions


def test_queues_are_in_the_order_of_their_numbers() -> None:
    document = to_json({QueueKey("t", "b", number): number for number in (10, 9, 0, 100)})

    assert json.dumps(document) == '{"t": {"b": {"0": 0, "9": 9, "10": 10, "100": 100}}}'


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], "expected an object, met []"),
        ({"t": 1}, "here, t: expected an object, met 1"),
        ({"t": {"b": []}}, "here, t, b: expected an object"),
        ({"t": {"b": {"x": 1}}}, "here, t, b, x: expected the number of a queue"),
        ({"t": {"b": {"-1": 1}}}, "here, t, b, -1: expected the number of a queue"),
        ({"t": {"b": {"0": 1.0}}}, "here, t, b, 0: expected a whole number, met 1.0"),
        ({"t": {"b": {"0": True}}}, "expected a whole number, met True"),
        ({"t": {"b": {"0": "1"}}}, "expected a whole number, met '1'"),
    ],
)
def test_other_shapes_are_refused_by_place(document: Any, text: str) -> None:
    with pytest.raises(SourceError) as refused:
        from_json(document, "here")

    assert text in str(refused.value)


def test_places_in_logs_are_documents_too() -> None:
    assert log_to_json({"b": 7, "a": 1 << 40}) == {"a": {"phy": 1 << 40}, "b": {"phy": 7}}
    assert log_from_json({"a": {"phy": 5}}) == {"a": 5}
    with pytest.raises(SourceError, match="expected phy alone"):
        log_from_json({"a": {"phy": 5, "x": 1}})


def test_a_range_says_topic_queue_and_offsets() -> None:
    each = QueueRange(QueueKey("orders", "broker-a", 3), 5, 9)

    assert str(each) == "topic orders, queue 3 of broker-a, offsets 5 to 9"
    assert each.size == 4
    assert each._replace(end=2).size == 0
