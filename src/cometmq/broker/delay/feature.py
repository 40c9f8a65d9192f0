"""Request handlers and jobs for messages with a delay level."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.broker.delay.handler import DelayOffsetsHandler
from cometmq.model.delay import UNITS_MS, DelayLevels
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import Job
from cometmq.store import StoreSettings

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts


log = logging.getLogger(__name__)

PERSIST_S = 1.0
"""RocketMQ's is 10 s (``flushDelayOffsetInterval``). What was delivered since is found in the log
at the next start, which is quicker the less there is."""


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handler that shows the schedule offsets, and their write to the file."""
    warn_of_retention(parts.levels, parts.store.settings)
    delayed = DelayOffsetsHandler(lambda: (parts.delay.confirmed_offsets(), parts.delay.version))
    persist = Job("persist-delay-offsets", lambda: PERSIST_S, parts.delay.persist, blocking=True)
    return Feature({RequestCode.GET_ALL_DELAY_OFFSET: delayed.all}, [persist])


def warn_of_retention(levels: DelayLevels, store: StoreSettings) -> None:
    """Log that messages may be deleted before they are due."""
    longest_h = levels.longest_ms / UNITS_MS["h"]
    if longest_h > store.file_reserved_hours:
        log.warning(
            "messageDelayLevel has a delay of %g hours, and files of the log are deleted after"
            " fileReservedTime=%d: messages that wait longer are lost",
            *(longest_h, store.file_reserved_hours),
        )
