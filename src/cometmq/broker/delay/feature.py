"""What the broker serves and runs for messages with a delay level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.delay.handler import DelayOffsetsHandler
from cometmq.broker.jobs import Job
from cometmq.protocol.codes import RequestCode

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts, Routes


PERSIST_S = 10.0


def routes(parts: Parts, _endpoint: Endpoint) -> Routes:
    """The handler that shows the schedule offsets."""
    delayed = DelayOffsetsHandler(lambda: (parts.delay.offsets(), parts.delay.version))
    return {RequestCode.GET_ALL_DELAY_OFFSET: delayed.all}


def jobs(parts: Parts) -> list[Job]:
    """The write of the schedule offsets to their file."""
    return [Job("persist-delay-offsets", lambda: PERSIST_S, parts.delay.persist, blocking=True)]
