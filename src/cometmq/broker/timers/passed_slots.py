"""Requests from another broker which slots of timers it has passed."""

from __future__ import annotations

from typing import NamedTuple

from cometmq.model.errors import ProtocolError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.broker_admin import GetTimerCheckPointResponse
from cometmq.remoting import RemotingClient
from cometmq.store.timers.checkpoint import NUMBERS, Passed


class PassedSlots(NamedTuple):
    """What a broker has passed."""

    passed: Passed
    is_rocketmq: bool
    """Whether it is RocketMQ's, which does not say where in the log it delivered."""


async def fetch_passed(client: RemotingClient, address: str, *, timeout: float) -> PassedSlots:
    """Return which slots a broker has passed; none if it has no timers.

    Raises:
        CometError: it does not respond, or responds with something else.
    """
    response = await client.call(address, RequestCode.GET_TIMER_CHECK_POINT, timeout=timeout)
    if response.code != ResponseCode.SUCCESS:
        return PassedSlots(Passed(), is_rocketmq=True)
    if len(response.body) < NUMBERS.size:
        raise ProtocolError(
            f"met {len(response.body)} bytes of a timer checkpoint, expected {NUMBERS.size}"
        )
    header = response.header(GetTimerCheckPointResponse)
    read_ms, _, queue_offset, *_ = NUMBERS.unpack_from(response.body)
    if header.read_ms is None or header.log_offset is None or header.passed_offset is None:
        return PassedSlots(Passed(read_ms, 0, queue_offset), is_rocketmq=True)
    return PassedSlots(
        Passed(header.read_ms, header.log_offset, header.passed_offset), is_rocketmq=False
    )
