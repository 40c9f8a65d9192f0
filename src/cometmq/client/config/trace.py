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
    """Settings of the part that gathers traces and sends them."""

    section: ClassVar[str] = "trace"

    waiting_max: int = setting(2_048, low=1)
    """Records that may wait to be sent; further ones are dropped and counted."""

    flush_ms: int = setting(5_000, unit="ms", low=1)
    """How long a record may wait for others."""

    body_bytes_max: int = setting(118_000, unit="bytes", low=1_000, high=4 * 1024 * 1024)
    """Size of a message full of records, which then leaves at once."""

    timeout_ms: int = setting(5_000, unit="ms", low=1)
    """Time for sending one message full of records."""
