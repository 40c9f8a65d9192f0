"""Hands the offsets of delayed delivery to slaves and to tools that copy a broker.

The tables of topics, groups and consumer offsets are answered where they are kept.

Source: AdminBrokerProcessor.getAllDelayOffset, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.broker.services.delay import DelayedDelivery
from cometmq.protocol.bodies import DelayOffsetSerializeWrapper
from cometmq.remoting import Request, Response


class DelayOffsetTable:
    """Answers GET_ALL_DELAY_OFFSET (45).

    Args:
        delivery: knows how far each delay level was delivered.
    """

    def __init__(self, delivery: DelayedDelivery) -> None:
        self._delivery = delivery

    def all(self, request: Request) -> Response:
        """Answer the offset of each level that has one."""
        body = DelayOffsetSerializeWrapper(
            offset_table=self._delivery.offsets(), data_version=self._delivery.version
        )
        return Response(body=body.encode())
