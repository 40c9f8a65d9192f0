"""Request handlers and jobs for committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.offsets.handler import OffsetHandler
from cometmq.broker.offsets.queue_bounds import QueueBoundsHandler
from cometmq.broker.prerequisites import with_prerequisites
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts
    from cometmq.broker.offsets.reset import ResetHandler


FIRST_PERSIST_S = 10.0


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers of committed offsets, resets and the bounds of queues."""
    offsets = OffsetHandler(
        parts.offsets,
        store=parts.store,
        cold_reads=parts.cold_reads,
        topics=parts.topics,
        groups=parts.groups,
    )
    bounds = QueueBoundsHandler(parts.store, parts.cold_reads)

    def make_reset() -> ResetHandler:
        from cometmq.broker.offsets.reset import ResetHandler

        return ResetHandler(
            parts.offsets,
            consumers=parts.consumers,
            store=parts.store,
            topics=parts.topics,
            groups=parts.groups,
            settings=parts.settings,
            role=parts.role,
        )

    reset = Deferred(make_reset)
    return Feature(
        {
            RequestCode.QUERY_CONSUMER_OFFSET: with_prerequisites(offsets.query),
            RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update,
            RequestCode.GET_ALL_CONSUMER_OFFSET: exclusive(offsets.all),
            RequestCode.CLONE_GROUP_OFFSET: exclusive(offsets.clone),
            RequestCode.QUERY_CORRECTION_OFFSET: exclusive(offsets.correction),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: exclusive(bounds.search),
            RequestCode.GET_MAX_OFFSET: bounds.max_offset,
            RequestCode.GET_MIN_OFFSET: bounds.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: exclusive(bounds.earliest_time),
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: exclusive(reset.handler(lambda h: h.reset)),
        },
        _jobs(parts),
    )


def _jobs(parts: Parts) -> list[Job]:
    """The write of committed offsets to their file."""
    return [
        Job(
            "persist-consumer-offsets",
            lambda: parts.settings().flush_consumer_offset_interval_ms / 1000,
            lambda: parts.offsets.persist(parts.store.flush),
            first_s=FIRST_PERSIST_S,
            blocking=True,
        )
    ]
