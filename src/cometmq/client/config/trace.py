"""What can be set on the sending of traces; the defaults are RocketMQ's.

Source: AsyncTraceDispatcher, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cometmq.client.config.base import Checked
from cometmq.system.settings import setting


@dataclass(frozen=True)
class TraceSettings(Checked):
    """Settings of the trace dispatcher, which batches and sends trace records."""

    section: ClassVar[str] = "trace"

    waiting_max: int = setting(2_048, low=1)
    """Limit on waiting records; further records are dropped and counted."""

    flush_ms: int = setting(5_000, unit="ms", low=1)
    """How long a record may wait for other records."""

    body_bytes_max: int = setting(118_000, unit="bytes", low=1_000, high=4 * 1024 * 1024)
    """Size at which a message of records is sent at once."""

    timeout_ms: int = setting(5_000, unit="ms", low=1)
    """Timeout of one message of records."""
