"""Says when sends must be refused because the store cannot keep up.

RocketMQ queues requests in front of its threads and refuses those that wait there for too long.
Here one loop serves all requests and an append is as cheap as a refusal, so three other signs
tell that the store is behind:

    waiting   sends that are stored and wait for the disk or a replica: more than the capacity of
              the send queue                                      -> [OVERLOAD]
    append    one append took longer than the page cache may stall; until the next look
                                                                  -> [PCBUSY_CLEAN_QUEUE]
    lag       the loop came late three looks in a row, each time by more than a request may wait
                                                                  -> [TIMEOUT_CLEAN_QUEUE]

All are answered with code 2: nothing was stored, and the client may try another broker. A single
late look is no sign: after a pause of the machine it is best to serve what has piled up. A broker
that stops refuses sends too, with code 14.

Source: BrokerFastFailure and SendMessageProcessor.rejectRequest, RocketMQ 5.3 (codes, texts,
limits); the signs are ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.broker.config import BrokerSettings
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 0.1
"""How often :meth:`FlowControl.look` is meant to be called."""
LATE_LOOKS_MAX: Final = 3
"""So many late looks in a row mean that the loop is overloaded."""


class FlowLimits(msgspec.Struct, frozen=True):
    """What the store may take before sends are refused."""

    waiting_max: int
    """Sends that may wait for the disk at a time."""
    append_ms_max: int
    """The time one append may take."""
    lag_ms_max: int
    """How late the loop may be."""
    enabled: bool = True
    """Whether slowness refuses sends; the limit of waiting sends holds in any case."""


class FlowControl:
    """Watches the store and the loop on behalf of the send processor.

    Args:
        limits: gives the limits as they are now; they may change while the broker runs.
        clock: measures how late the loop is.
    """

    def __init__(self, limits: Callable[[], FlowLimits], *, clock: Clock) -> None:
        self._read_limits = limits
        self._limits = limits()
        self._clock = clock
        self._looked_s = clock.monotonic()
        self._late_looks = 0
        self._slow: ResponseError | None = None
        self._is_stopping = False
        self._slowest_ms = 0
        self.waiting = 0
        """Sends that are stored and wait for the disk or a replica."""

    def refusal(self) -> ResponseError | None:
        """Why a send must be refused now, or None; asked once for each send."""
        if self._slow is None and self.waiting < self._limits.waiting_max:
            return None
        return self._slow or _overload()

    def stop(self) -> None:
        """Refuse all sends from now on, for the broker stops: code 14, for another to take them."""
        self._is_stopping = True
        self._slow = ResponseError(
            ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: the broker is stopping"
        )

    def wait_began(self, sends: int = 1) -> None:
        """Sends are stored and wait for the disk or a replica."""
        self.waiting += sends

    def wait_ended(self, sends: int = 1) -> None:
        """Sends that waited were answered."""
        self.waiting -= sends

    def append_took(self, took_ms: int) -> None:
        """An append ended; report only those that took noticeably long."""
        self._slowest_ms = max(self._slowest_ms, took_ms)
        if self._limits.enabled and took_ms > self._limits.append_ms_max and not self._is_stopping:
            self._refuse("PCBUSY_CLEAN_QUEUE", took_ms)

    def look(self) -> None:
        """See whether the loop is late and the last append slow; ten times a second."""
        if self._is_stopping:
            return
        limits = self._limits = self._read_limits()
        now_s = self._clock.monotonic()
        lag_ms = round((now_s - self._looked_s - LOOK_INTERVAL_S) * 1000)
        self._looked_s = now_s
        self._late_looks = self._late_looks + 1 if lag_ms > limits.lag_ms_max else 0
        if limits.enabled and self._slowest_ms > limits.append_ms_max:
            self._refuse("PCBUSY_CLEAN_QUEUE", self._slowest_ms)
        elif limits.enabled and self._late_looks >= LATE_LOOKS_MAX:
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


def _overload() -> ResponseError:
    return ResponseError(
        ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while"
    )


def flow_limits(settings: BrokerSettings) -> FlowLimits:
    """The limits that the settings give."""
    return FlowLimits(
        waiting_max=settings.send_queue_capacity,
        append_ms_max=1000,
        lag_ms_max=settings.wait_time_in_send_queue_ms,
        enabled=settings.broker_fast_failure_enable,
    )
