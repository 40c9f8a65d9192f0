"""Hands the offsets of delayed delivery to slaves and to tools that copy a broker.

The tables of topics, groups and consumer offsets are answered where they are kept.

Source: AdminBrokerProcessor.getAllDelayOffset, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.protocol.bodies import DataVersion, DelayOffsetSerializeWrapper
from cometmq.remoting import Request, Response


class DelayOffsetTable:
    """Answers GET_ALL_DELAY_OFFSET (45).

    Args:
        offsets: gives how far each delay level was delivered, and the version of that table.
    """

    def __init__(self, offsets: Callable[[], tuple[dict[int, int], DataVersion]]) -> None:
        self._offsets = offsets

    def all(self, request: Request) -> Response:
        """Answer the offset of each level that has one."""
        numbers, version = self._offsets()
        body = DelayOffsetSerializeWrapper(offset_table=numbers, data_version=version)
        return Response(body=body.encode())
