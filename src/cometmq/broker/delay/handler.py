"""Handles GET_ALL_DELAY_OFFSET (45), with which slaves copy the schedule offsets.

Source: AdminBrokerProcessor.getAllDelayOffset, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.group import DelayOffsetSerializeWrapper
from cometmq.remoting import Request, Response


class DelayOffsetsHandler:
    """Shows the schedule offsets.

    Args:
        offsets: returns the offset of each delay level, and the version of that table.
    """

    def __init__(self, offsets: Callable[[], tuple[dict[int, int], DataVersion]]) -> None:
        self._offsets = offsets

    def all(self, request: Request) -> Response:
        """Return the offset of each delay level that has one."""
        numbers, version = self._offsets()
        body = DelayOffsetSerializeWrapper(offset_table=numbers, data_version=version)
        return Response(body=body.encode())
