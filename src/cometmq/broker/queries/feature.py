"""Request handlers for queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.prerequisites import with_prerequisites
from cometmq.broker.queries.handler import QueryHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Feature

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers of queries for stored messages."""
    query = QueryHandler(
        parts.store, parts.topics, parts.consumers, parts.filters, parts.cold_reads
    )
    return Feature(
        {
            RequestCode.QUERY_MESSAGE: exclusive(query.by_key),
            RequestCode.VIEW_MESSAGE_BY_ID: with_prerequisites(query.by_offset),
            RequestCode.QUERY_CONSUME_QUEUE: exclusive(query.queue_entries),
        }
    )
