"""Flow control: refuses sends while the store cannot keep up.

RocketMQ queues requests before its threads and refuses those that wait there for too long. Here one
loop serves all requests and an append is as cheap as a refusal, so three other measurements show
that the store is overloaded:

    waiting   sends that are stored and wait for the disk or a replica: more than the capacity of
              the send queue                                      -> [OVERLOAD]
    append    one append took longer than the page cache may stall; until the next measurement
                                                                  -> [PCBUSY_CLEAN_QUEUE]
    lag       the loop was late in three measurements in a row, by more than a request may wait
                                                                  -> [TIMEOUT_CLEAN_QUEUE]

The response has code 2: nothing was stored, and the client may try another broker. A single late
measurement is ignored: after a pause of the machine the backlog is served. A slave and a broker
that stops refuse all sends, with code 14. A master that a controller elected refuses them while it
has too few replicas, with code 1.

Source: BrokerFastFailure and SendMessageProcessor.rejectRequest, RocketMQ 5.3 (codes, texts,
limits).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.broker.checks import broker_stopping, sent_to_slave
from cometmq.broker.config import BrokerSettings
from cometmq.broker.role import Role
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.system.clock import Clock
from cometmq.system.failure_log import RateLimitedLog

log = logging.getLogger(__name__)

MEASURE_INTERVAL_S: Final = 0.1
"""How often :meth:`FlowControl.measure` is called."""
LATE_MEASUREMENTS_MAX: Final = 3
"""The number of late measurements in a row that means that the loop is overloaded."""


class FlowLimits(msgspec.Struct, frozen=True):
    """The limits beyond which sends are refused."""

    waiting_max: int
    """Sends that may wait for the disk at a time."""
    append_ms_max: int
    """The time one append may take."""
    lag_ms_max: int
    """How late the loop may be."""
    enabled: bool = True
    """Whether slowness refuses sends; the limit of waiting sends holds in any case."""


class FlowControl:
    """Measures the load of the store and of the event loop, for the send handler.

    Args:
        limits: returns the current limits.
        clock: measures how late the loop is.
        role: a slave stores no sends.
    """

    def __init__(self, limits: Callable[[], FlowLimits], *, clock: Clock, role: Role) -> None:
        self._read_limits = limits
        self._limits = limits()
        self._clock = clock
        self._role = role
        self._is_stopping = False
        self.lack_of_replicas: ResponseError | None = None
        """Why sends that wait for replicas are refused; others are not."""
        self._measured_s: float | None = None
        """When it was measured last; None before the first time, at the end of the start."""
        self._late_measurements = 0
        self._closed: ResponseError | None = None
        """The reason why all sends are refused under any load."""
        self._slow: ResponseError | None = None
        self._slowest_ms = 0
        self.late_ms_logged = 0
        """From which lateness of the loop on it is logged; 0 for never."""
        self._late = RateLimitedLog(log, "times the event loop was blocked")
        self.waiting = 0
        """Sends that are stored and wait for the disk or a replica; their handler counts them."""
        self.role_changed()

    def refusal(self) -> ResponseError | None:
        """Return why a send must be refused now, or None; called for each send."""
        if self._slow is None and self.waiting < self._limits.waiting_max:
            return None
        return self._slow or ResponseError(
            ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while"
        )

    def stop(self) -> None:
        """Refuse all sends from now on: the broker stops. Code 14 sends them to another broker."""
        self._is_stopping = True
        self._close(broker_stopping())

    def role_changed(self) -> None:
        """Refuse all sends of a slave; call it after each change of the role."""
        if not self._is_stopping:
            self._close(sent_to_slave() if self._role.is_slave else self.lack_of_replicas)

    def replicas_changed(self, lack: ResponseError | None) -> None:
        """Refuse sends that wait for replicas for a reason, or accept them again."""
        self.lack_of_replicas = lack
        self.role_changed()

    def _close(self, reason: ResponseError | None) -> None:
        self._closed = self._slow = reason

    def append_took(self, took_ms: int) -> None:
        """Note how long an append took; calls for quick ones may be left out."""
        if self._closed is not None:
            return
        self._slowest_ms = max(self._slowest_ms, took_ms)
        if self._limits.enabled and took_ms > self._limits.append_ms_max:
            self._refuse("PCBUSY_CLEAN_QUEUE", took_ms)

    def measure(self) -> None:
        """Measure how late the loop is and how slow appends are; ten times a second.

        While all sends are refused, as on a slave, the loop is measured all the same: the other
        requests wait for it, too, and the first measurement afterwards begins at the last one.
        """
        limits = self._limits = self._read_limits()
        now_s = self._clock.monotonic()
        due_s = now_s if self._measured_s is None else self._measured_s + MEASURE_INTERVAL_S
        lag_ms = round((now_s - due_s) * 1000)
        self._measured_s = now_s
        if 0 < self.late_ms_logged <= lag_ms:
            self._late.add("the event loop was blocked: all requests waited ms=%d", lag_ms)
        if self._closed is not None:
            self._late_measurements = self._slowest_ms = 0
            return
        self._late_measurements = self._late_measurements + 1 if lag_ms > limits.lag_ms_max else 0
        if limits.enabled and self._slowest_ms > limits.append_ms_max:
            self._refuse("PCBUSY_CLEAN_QUEUE", self._slowest_ms)
        elif limits.enabled and self._late_measurements >= LATE_MEASUREMENTS_MAX:
            self._refuse("TIMEOUT_CLEAN_QUEUE", lag_ms)
        else:
            self._accept()
        self._slowest_ms = 0

    def _refuse(self, reason: str, period_ms: int) -> None:
        if self._slow is None:
            log.warning(
                "refusing sends reason=%s period_ms=%d waiting=%d",
                reason,
                period_ms,
                self.waiting,
            )
        self._slow = ResponseError(
            ResponseCode.SYSTEM_BUSY,
            f"[{reason}]broker busy, start flow control for a while,"
            f" period in queue: {period_ms}ms, size of queue: {self.waiting}",
        )

    def _accept(self) -> None:
        if self._slow is not None:
            log.info("accepting sends again waiting=%d", self.waiting)
        self._slow = None


def flow_limits(settings: BrokerSettings) -> FlowLimits:
    """Return the limits that the settings give."""
    return FlowLimits(
        waiting_max=settings.send_queue_capacity,
        append_ms_max=1000,
        lag_ms_max=settings.wait_time_in_send_queue_ms,
        enabled=settings.broker_fast_failure_enable,
    )
