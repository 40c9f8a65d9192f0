"""Handles requests for the bounds of a queue: offsets, store times, an offset by time.

SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET (30), GET_MIN_OFFSET (31) and
GET_EARLIEST_MSG_STORETIME (32). A queue that does not exist counts as an empty one, as
RocketMQ does: clients of both kinds rely on it.

Source: AdminBrokerProcessor, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from cometmq.broker.core import Core
from cometmq.protocol.headers.offset import (
    GetEarliestMsgStoretimeRequest,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    SearchOffsetByTimestampRequest,
    SearchOffsetByTimestampResponse,
)
from cometmq.remoting import Request, Response


class QueueBoundsHandler:
    """Returns the bounds of queues.

    Args:
        core: of the broker.
    """

    def __init__(self, core: Core) -> None:
        self._store = core.store
        self._cold_reads = core.cold_reads

    async def search(self, request: Request) -> Response:
        """Return the offset of a store time; 0 for a queue that does not exist."""
        header = request.header(SearchOffsetByTimestampRequest)
        boundary = "UPPER" if (header.boundary_type or "").lower() == "upper" else "LOWER"
        searched = (header.topic, header.queue_id, header.timestamp, boundary)
        await self._cold_reads.run(self._store.pages_for_time(*searched))
        offset = self._store.offset_at_time(*searched)
        return Response(header=SearchOffsetByTimestampResponse(offset=offset))

    def max_offset(self, request: Request) -> Response:
        """Return the offset of the next message; 0 for a queue that does not exist.

        With ``committed=false`` messages count that readers do not see yet.
        """
        header = request.header(GetMaxOffsetRequest)
        if header.committed is False:
            high = self._store.next_offset(header.topic, header.queue_id)
        else:
            _, high = self._store.bounds(header.topic, header.queue_id)
        return Response(header=GetMaxOffsetResponse(offset=high))

    def min_offset(self, request: Request) -> Response:
        """Return the offset of the oldest message; 0 for a queue that does not exist."""
        header = request.header(GetMinOffsetRequest)
        low, _ = self._store.bounds(header.topic, header.queue_id)
        return Response(header=GetMinOffsetResponse(offset=low))

    async def earliest_time(self, request: Request) -> Response:
        """Return the store time of the oldest message; -1 if there is none."""
        header = request.header(GetEarliestMsgStoretimeRequest)
        low, _ = self._store.bounds(header.topic, header.queue_id)
        oldest = (header.topic, header.queue_id, low)
        await self._cold_reads.run(self._store.cold_store_time(*oldest))
        timestamp = self._store.store_time_at(*oldest)
        return Response(header=GetEarliestMsgStoretimeResponse(timestamp=timestamp))
