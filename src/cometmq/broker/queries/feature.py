"""Request handlers for queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.life import BrokerFeature
from cometmq.broker.prerequisites import with_prerequisites
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Deferred, Feature

if TYPE_CHECKING:
    from cometmq.broker.queries.handler import QueryHandler


class QueriesFeature(BrokerFeature):
    """Finds stored messages."""

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers of queries for stored messages."""

        @Deferred
        def query() -> QueryHandler:
            from cometmq.broker.queries.handler import QueryHandler

            return QueryHandler(self._core)

        return Feature(
            {
                RequestCode.QUERY_MESSAGE: query.exclusive(lambda h: h.by_key),
                RequestCode.VIEW_MESSAGE_BY_ID: query.handler(
                    lambda h: with_prerequisites(h.by_offset)
                ),
                RequestCode.QUERY_CONSUME_QUEUE: query.exclusive(lambda h: h.queue_entries),
            }
        )
