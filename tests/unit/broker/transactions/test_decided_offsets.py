"""The set of decided offsets says the same as a set of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.transactions.decided_offsets import DecidedOffsets


@given(
    base=st.integers(0, 40),
    steps=st.lists(st.tuples(st.sampled_from(["add", "advance"]), st.integers(0, 200))),
)
def test_it_has_what_was_added_and_all_before_its_base(
    base: int, steps: list[tuple[str, int]]
) -> None:
    met, expected = DecidedOffsets(base), set(range(base))
    for step, offset in steps:
        if step == "add":
            met.add(offset)
            expected.add(offset)
        else:
            met.advance(offset)
            expected |= set(range(offset))
            assert met.base >= offset
        assert met.count == len([at for at in expected if at >= met.base])
    assert [offset in met for offset in range(220)] == [at in expected for at in range(220)]
    for offset in range(220):
        assert met.first_open(offset) == next(at for at in range(offset, 999) if at not in expected)


def test_a_million_decisions_take_a_bit_each_and_are_passed_over() -> None:
    met = DecidedOffsets(7)
    for offset in range(7, 1_000_000):
        met.add(offset)
    assert met.size_bytes <= 1_000_000 // 8 * 9 // 8 + 1
    assert met.first_open(0) == 1_000_000
    met.advance(1_000_000)
    assert met.size_bytes <= 4096 + 1_000_000 // 64
    met.add(1_000_001)
    assert met.first_open(0) == 1_000_000
    assert 1_000_001 in met
