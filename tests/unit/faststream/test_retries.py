"""Delays of retries."""

from __future__ import annotations

from cometmq.faststream.retries import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry


def test_retries_end() -> None:
    assert NoRetry().delay_s(1) is None
    assert [ConstantRetry(5, attempts_max=3).delay_s(n) for n in (1, 2, 3)] == [5, 5, None]
    assert [LinearRetry(5, 2, attempts_max=3).delay_s(n) for n in (1, 2, 3)] == [5, 7, None]
    retry = ExponentialRetry(1, delay_max=5, attempts_max=10_000)
    assert [retry.delay_s(n) for n in (1, 2, 3, 4, 9_999)] == [1, 2, 4, 5, 5]
    jitter = ExponentialRetry(10, jitter=0.5).delay_s(1)
    assert jitter is not None
    assert 5 <= jitter <= 15
