"""Request handlers for queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.prerequisites import with_prerequisites
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Deferred, Feature

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts
    from cometmq.broker.queries.handler import QueryHandler


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers of queries for stored messages."""

    def make() -> QueryHandler:
        from cometmq.broker.queries.handler import QueryHandler

        return QueryHandler(
            parts.store, parts.topics, parts.consumers, parts.filters, parts.cold_reads
        )

    query = Deferred(make)
    return Feature(
        {
            RequestCode.QUERY_MESSAGE: exclusive(query.handler(lambda h: h.by_key)),
            RequestCode.VIEW_MESSAGE_BY_ID: query.handler(
                lambda h: with_prerequisites(h.by_offset)
            ),
            RequestCode.QUERY_CONSUME_QUEUE: exclusive(query.handler(lambda h: h.queue_entries)),
        }
    )
