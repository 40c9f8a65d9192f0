"""Request handlers and jobs for messages with a delay level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.delay.handler import DelayOffsetsHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import Job

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts


PERSIST_S = 1.0
"""RocketMQ's is 10 s (``flushDelayOffsetInterval``). What was delivered since is found in the log
at the next start, which is quicker the less there is."""


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handler that shows the schedule offsets, and their write to the file."""
    delayed = DelayOffsetsHandler(lambda: (parts.delay.confirmed_offsets(), parts.delay.version))
    persist = Job("persist-delay-offsets", lambda: PERSIST_S, parts.delay.persist, blocking=True)
    return Feature({RequestCode.GET_ALL_DELAY_OFFSET: delayed.all}, [persist])
