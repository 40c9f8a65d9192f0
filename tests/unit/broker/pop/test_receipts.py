"""Receipts, and lists of offsets."""

from __future__ import annotations

import pytest

from cometmq.broker.pop.receipts import offsets_text, read_receipt, receipt_text
from cometmq.model.errors import ResponseError


def test_a_receipt_comes_back() -> None:
    receipt = read_receipt(receipt_text(5, 1_700_000_000_000, 60_000, 7, "0", "broker-a", 2, 9))

    assert (receipt.start, receipt.pop_ms, receipt.invisible_ms) == (5, 1_700_000_000_000, 60_000)
    assert (receipt.revive_queue, receipt.broker_name) == (7, "broker-a")


@pytest.mark.parametrize(
    "text",
    ["", "1 2 3 4 0 b", "x 2 3 4 0 b 1 9", f"{2**63} 2 3 4 0 b 1 9", f"1 {-(2**64)} 3 4 0 b 1 9"],
    ids=["nothing", "too short", "no number", "a start of 64 bits", "a time of 65 bits"],
)
def test_a_receipt_that_no_pop_gives_is_refused(text: str) -> None:
    with pytest.raises(ResponseError, match="met the receipt"):
        read_receipt(text)


@pytest.mark.parametrize("first", [0, 8, 99_990, 2**63 - 40])
def test_offsets_are_listed_the_same_in_a_row_and_apart(first: int) -> None:
    offsets = range(first, first + 32)

    assert offsets_text(offsets) == offsets_text(tuple(offsets)) == ",".join(map(str, offsets))
    assert offsets_text((first, first + 3)) == f"{first},{first + 3}"
