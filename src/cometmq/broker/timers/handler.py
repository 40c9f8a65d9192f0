"""Handles GET_TIMER_CHECK_POINT (60) and GET_TIMER_METRICS (61), which slaves request.

Source: AdminBrokerProcessor.getTimerCheckPoint and getTimerMetrics, RocketMQ 5.3. The header fields
of the first response are CometMQ's.
"""

from __future__ import annotations

from cometmq.broker.timers.delivery import TimerDelivery
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.topic import TimerMetric, TimerMetricsSerializeWrapper
from cometmq.protocol.headers.broker_admin import GetTimerCheckPointResponse
from cometmq.remoting import Request, Response
from cometmq.system.clock import Clock


class TimerTablesHandler:
    """Shows which slots are passed, and how many messages wait.

    Args:
        delivery: of the timer messages.
        clock: the time of the tables.
    """

    def __init__(self, delivery: TimerDelivery, clock: Clock) -> None:
        self._delivery = delivery
        self._index = delivery.index
        self._clock = clock

    def checkpoint(self, request: Request) -> Response:
        """Return up to where queue and slots were read."""
        checkpoint = self._index.checkpoint(0, self._clock.now_ms())
        shown = checkpoint._replace(
            passed=checkpoint.passed._replace(read_ms=self._delivery.read_ms())
        )
        header = GetTimerCheckPointResponse(
            read_ms=checkpoint.passed.read_ms,
            log_offset=checkpoint.passed.log_offset,
            passed_offset=checkpoint.passed.queue_offset,
        )
        return Response(header=header, body=shown.numbers)

    def metrics(self, request: Request) -> Response:
        """Return how many messages of each topic wait."""
        state, timestamp, counter = self._index.checkpoint(0, self._clock.now_ms()).version
        body = TimerMetricsSerializeWrapper(
            timing_count={
                each.topic: TimerMetric(count=each.waiting, time_stamp=each.changed_ms)
                for each in self._index.counts()
            },
            data_version=DataVersion(state_version=state, timestamp=timestamp, counter=counter),
        )
        return Response(body=body.encode())
