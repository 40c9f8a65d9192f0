"""The set of unique ids that earlier attempts have stored."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cometmq.spark.errors import NotExactlyOnceError
from cometmq.spark.sink.stored_ids import StoredIds

HEX = [f"{number:032X}" for number in range(1_000)]


def test_exactly_the_ids_of_the_set_are_found() -> None:
    stored = StoredIds([pa.array(HEX[::2]), pa.array(["own id", "é", HEX[0]])])
    assert stored.contains(pa.array(HEX)).tolist() == [number % 2 == 0 for number in range(1_000)]
    others = pa.array([b"own id", "é".encode(), b"", HEX[10].lower().encode()])
    assert stored.contains(others).tolist() == [True, True, False, False]
    assert stored.contains(pa.array([], pa.binary())).tolist() == []


def test_an_empty_set_has_no_id() -> None:
    assert not StoredIds()
    assert (
        StoredIds([pa.array([], pa.string())]).contains(pa.array(HEX[:2])).tolist() == [False] * 2
    )


def test_the_number_of_ids_is_limited() -> None:
    assert len(StoredIds([pa.array(HEX[:10])], ids_max=10)) == 10
    with pytest.raises(NotExactlyOnceError, match="more than 10 messages were stored"):
        StoredIds([pa.array(HEX[:6]), pa.array(HEX[6:11])], ids_max=10)
