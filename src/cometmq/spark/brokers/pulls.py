"""The pulls of one range of a queue.

Source: PullAPIWrapper, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.client.filters import Filter
from cometmq.client.library import ClientConnection, Pull, QueuePulls
from cometmq.spark.brokers.routes import queue_of
from cometmq.spark.offsets import QueueRange

HOLD_MS: Final = 1_000
"""How long a broker holds a pull until a message arrives."""
PULL_S: Final = 15.0
"""Timeout of one pull."""


@dataclass(frozen=True, slots=True)
class Read:
    """What to read, and how; see `BrokerSession.read`."""

    range: QueueRange
    filter: Filter
    batch_size: int
    timeout_s: float
    group: str
    skip_expired: bool = False
    away_s: float = 0.0

    @property
    def waits(self) -> bool:
        """Whether a broker that is away gets more time than one that responds."""
        return self.away_s > self.timeout_s


def pulls_of(connection: ClientConnection, read: Read) -> QueuePulls:
    """Return the pulls of a range's queue."""
    pull = Pull(
        group=read.group,
        queue=queue_of(read.range.key),
        wanted=read.filter,
        max_messages=read.batch_size,
        hold_ms=HOLD_MS,
    )
    return QueuePulls(connection, pull, timeout=PULL_S)
