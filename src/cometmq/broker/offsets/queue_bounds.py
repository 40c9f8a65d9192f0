"""What a queue holds: its first and last offset, its first message's time, an offset by time.

SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET (30), GET_MIN_OFFSET (31) and
GET_EARLIEST_MSG_STORETIME (32).

Source: AdminBrokerProcessor, RocketMQ 5.3, which answers for queues that do not exist, too.
"""

from __future__ import annotations

from cometmq.broker.checks import check_queue
from cometmq.broker.topics.table import TopicTable
from cometmq.protocol.headers import (
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
from cometmq.store import MessageStore


class QueueBoundsHandler:
    """Tells the bounds of queues.

    Args:
        store: what holds them.
        topics: what exists.
    """

    def __init__(self, store: MessageStore, *, topics: TopicTable) -> None:
        self._store = store
        self._topics = topics

    def search(self, request: Request) -> Response:
        """The offset that belongs to a time."""
        header = request.header(SearchOffsetByTimestampRequest)
        self._check(header.topic, header.queue_id)
        upper = (header.boundary_type or "").lower() == "upper"
        offset = self._store.offset_at_time(
            header.topic, header.queue_id, header.timestamp, "UPPER" if upper else "LOWER"
        )
        return Response(header=SearchOffsetByTimestampResponse(offset=offset))

    def max_offset(self, request: Request) -> Response:
        """The offset the next message will get."""
        header = request.header(GetMaxOffsetRequest)
        self._check(header.topic, header.queue_id)
        _, high = self._store.bounds(header.topic, header.queue_id)
        return Response(header=GetMaxOffsetResponse(offset=high))

    def min_offset(self, request: Request) -> Response:
        """The offset of the oldest message."""
        header = request.header(GetMinOffsetRequest)
        self._check(header.topic, header.queue_id)
        low, _ = self._store.bounds(header.topic, header.queue_id)
        return Response(header=GetMinOffsetResponse(offset=low))

    def earliest_time(self, request: Request) -> Response:
        """When the oldest message was stored; -1 when there is none."""
        header = request.header(GetEarliestMsgStoretimeRequest)
        self._check(header.topic, header.queue_id)
        low, _ = self._store.bounds(header.topic, header.queue_id)
        timestamp = self._store.store_time_at(header.topic, header.queue_id, low)
        return Response(header=GetEarliestMsgStoretimeResponse(timestamp=timestamp))

    def _check(self, topic: str, queue_id: int) -> None:
        check_queue(self._topics.require(topic), queue_id)
