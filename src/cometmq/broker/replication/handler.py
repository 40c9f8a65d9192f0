"""Handles requests with which slaves of RocketMQ 5 copy tables that this broker does not have.

There are no timer messages and no pop consumption here, so those tables are empty. Without a
response a slave would log an error at every copy.

Source: AdminBrokerProcessor.getTimerCheckPoint and getTimerMetrics, TimerCheckpoint, and
QueryAssignmentProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import struct

from cometmq.protocol.bodies import (
    DataVersion,
    MessageRequestModeSerializeWrapper,
    TimerMetricsSerializeWrapper,
)
from cometmq.remoting import Request, Response
from cometmq.system.clock import Clock

_CHECKPOINT = struct.Struct(">7q")
"""Last read time, flushed position, queue offset, queue offset of the master, and the version:
state, time, counter."""


class SlaveTablesHandler:
    """Shows the tables that only brokers of RocketMQ 5 fill.

    Args:
        clock: the time up to which the timer messages, of which there are none, were read.
        started_ms: when the broker started, which is the version of the tables.
    """

    def __init__(self, clock: Clock, started_ms: int) -> None:
        self._clock = clock
        self._version = DataVersion(timestamp=started_ms)

    def timer_checkpoint(self, request: Request) -> Response:
        """GET_TIMER_CHECK_POINT (60)."""
        version = self._version
        return Response(
            body=_CHECKPOINT.pack(
                *(self._clock.now_ms(), 0, 0, 0),
                *(version.state_version, version.timestamp, version.counter),
            )
        )

    def timer_metrics(self, request: Request) -> Response:
        """GET_TIMER_METRICS (61)."""
        return Response(body=TimerMetricsSerializeWrapper(data_version=self._version).encode())

    def request_modes(self, request: Request) -> Response:
        """GET_ALL_MESSAGE_REQUEST_MODE (402)."""
        return Response(body=MessageRequestModeSerializeWrapper().encode())
