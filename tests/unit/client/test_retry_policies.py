"""Delays of retries, and handlers that keep to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cometmq.client import ConsumeLater, Message, StoredMessage
from cometmq.client.retry_policies import (
    ConstantRetry,
    ExponentialRetry,
    LinearRetry,
    NoRetry,
    Retrying,
)


def test_retries_end() -> None:
    assert NoRetry().delay_s(1) is None
    assert [ConstantRetry(5, attempts_max=3).delay_s(n) for n in (1, 2, 3)] == [5, 5, None]
    assert [LinearRetry(5, 2, attempts_max=3).delay_s(n) for n in (1, 2, 3)] == [5, 7, None]
    retry = ExponentialRetry(1, delay_max=5, attempts_max=10_000)
    assert [retry.delay_s(n) for n in (1, 2, 3, 4, 9_999)] == [1, 2, 4, 5, 5]
    jitter = ExponentialRetry(10, jitter=0.5).delay_s(1)
    assert jitter is not None
    assert 5 <= jitter <= 15


async def test_a_handler_keeps_to_its_policy() -> None:
    errors: list[Exception] = [ValueError("first"), ConsumeLater(delay=7), ValueError("last")]

    async def bill(message: StoredMessage) -> None:
        if message.reconsume_times < len(errors):
            raise errors[message.reconsume_times]

    handler = Retrying(bill, ConstantRetry(5, attempts_max=3))
    message = StoredMessage.of(Message("orders", b"42"))
    for reconsume_times, delay_s, level in [(0, 5, 2), (1, 7, 3), (2, None, -1)]:
        with pytest.raises(ConsumeLater) as raised:
            await handler(replace(message, reconsume_times=reconsume_times))
        assert (raised.value.delay_s, raised.value.delay_level) == (delay_s, level)
        assert raised.value.__cause__ in (None, errors[reconsume_times])
    await handler(replace(message, reconsume_times=3))
