"""Bodies of batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.model.errors import InvalidMessageError
from cometmq.protocol.batch import BatchItem, decode_batch, encode_batch

items = st.lists(
    st.builds(
        BatchItem,
        st.integers(-(2**31), 2**31 - 1),
        st.binary(max_size=20),
        st.binary(max_size=20),
    ),
    max_size=5,
)


@given(items)
def test_a_batch_comes_back(batch: list[BatchItem]) -> None:
    assert decode_batch(encode_batch(batch)) == batch


def test_a_batch_cut_within_an_item_is_refused() -> None:
    data = encode_batch([BatchItem(1, b"one", b"a\x01b\x02"), BatchItem(2, b"two", b"")])
    whole_sizes = {0, 29, len(data)}

    for size in range(len(data)):
        if size in whole_sizes:
            assert len(decode_batch(data[:size])) == (size > 0)
        else:
            with pytest.raises(InvalidMessageError, match="do not fit each other"):
                decode_batch(data[:size])


@given(st.data())
def test_a_damaged_batch_is_refused_or_read_within_its_bounds(data: st.DataObject) -> None:
    good = encode_batch([BatchItem(1, b"one", b"a\x01b\x02"), BatchItem(2, b"two", b"")])
    at = data.draw(st.integers(0, len(good) - 4))
    bad = good[:at] + data.draw(st.binary(min_size=4, max_size=4)) + good[at + 4 :]

    try:
        found = decode_batch(bad)
    except InvalidMessageError:
        return
    assert sum(22 + len(item.body) + len(item.properties) for item in found) == len(bad)


@pytest.mark.parametrize("size", [0, 1, 21, 23, 2**31 - 1, -1])
def test_a_size_that_cannot_be_is_refused(size: int) -> None:
    data = size.to_bytes(4, "big", signed=True) + bytes(18)
    with pytest.raises(InvalidMessageError):
        decode_batch(data)


def test_properties_that_are_too_long_are_refused() -> None:
    with pytest.raises(InvalidMessageError, match="at most 32767"):
        encode_batch([BatchItem(0, b"", b"p" * 32768)])
