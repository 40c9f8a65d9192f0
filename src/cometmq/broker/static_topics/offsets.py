"""Handles requests about the offsets of logical queues: bounds, times, committed offsets.

    bounds, times        the item that has the answer says it, translated
    committed offsets    a commit goes to the broker of the item that has the offset, as a physical
                         offset of its queue; a query looks at the items from the newest to the
                         oldest, and the first offset counts

A group that goes back to an older item has offsets in newer ones, which would hide the older. They
are set to the first offset of their item, which hides nothing: a query that meets it goes on, and
returns it only if the group has consumed the items before.

Source: AdminBrokerProcessor and ConsumerManageProcessor, RocketMQ 5.3, where a reset to an older
item has no effect, and a search by time is right about the newest item only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar, cast

import msgspec

from cometmq.broker.core import Core
from cometmq.broker.static_topics.brokers import ItemBrokers
from cometmq.broker.static_topics.refusals import elsewhere_failed, not_leader, undecided
from cometmq.broker.static_topics.table import items_of
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.route import LogicQueueMappingItem, TopicQueueMappingDetail
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import encode_fields
from cometmq.protocol.headers.offset import (
    GetEarliestMsgStoretimeRequest,
    GetEarliestMsgStoretimeResponse,
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
    SearchOffsetByTimestampRequest,
    SearchOffsetByTimestampResponse,
    UpdateConsumerOffsetRequest,
)
from cometmq.protocol.logical_queues import (
    end_of,
    index_for,
    is_decided,
    last_decided,
    logical_offset,
    physical_offset,
    stored_offset,
)
from cometmq.remoting import Request, RequestHandler, Response
from cometmq.remoting.wire import Wire

HIDDEN_MAX: Final = 10_000
"""Groups and queues of which it is known that no newer item elsewhere hides their offset."""

RESPONSE_S_MAX: Final = 10.0
"""How long the requests to the brokers of the items of one queue take at most."""

Commit = Callable[[str, str, int, int], Response]
"""Commits a physical offset here: group, topic, queue, offset."""

_Header = (
    GetMaxOffsetRequest
    | GetMinOffsetRequest
    | SearchOffsetByTimestampRequest
    | GetEarliestMsgStoretimeRequest
    | QueryConsumerOffsetRequest
    | UpdateConsumerOffsetRequest
)
H = TypeVar("H", bound=_Header)


class LogicalQueue(NamedTuple):
    """A logical queue that this broker leads."""

    topic: str
    queue_id: int
    items: list[LogicQueueMappingItem]


def led_queue(
    detail: TopicQueueMappingDetail, queue_id: int, code: int
) -> list[LogicQueueMappingItem]:
    """Return the items of a logical queue that the broker of a part leads.

    Raises:
        ResponseError: 501, it does not lead the queue.
    """
    items = items_of(detail, queue_id)
    if not items or items[-1].bname != detail.bname:
        raise not_leader(detail.topic, queue_id, detail.bname, code)
    return items


class OffsetRequests:
    """Handles the requests about offsets that name a logical queue.

    Args:
        core: of the broker.
        brokers: the brokers of items.
        commit: commits a physical offset here.
    """

    def __init__(self, core: Core, brokers: ItemBrokers, commit: Commit) -> None:
        self._mappings = core.static_topics.all()
        self._name = core.static_topics.broker_name
        self._store = core.store
        self._cold_reads = core.cold_reads
        self._offsets = core.offsets
        self._brokers = brokers
        self._commit_here = commit
        self._hidden: dict[tuple[str, str, int], tuple[int, int]] = {}
        """By group, topic and queue: the generations of its newest item, and of the item behind
        which no newer item elsewhere has an offset of the group that counts."""

    # --- handlers ---------------------------------------------------------------------------------

    def max_offset(self, handler: RequestHandler) -> RequestHandler:
        """Return a handler of GET_MAX_OFFSET (30); it leaves physical queues to another one."""
        return self._wrap(GetMaxOffsetRequest, handler, self._max)

    def min_offset(self, handler: RequestHandler) -> RequestHandler:
        """Return a handler of GET_MIN_OFFSET (31)."""
        return self._wrap(GetMinOffsetRequest, handler, self._min)

    def search(self, handler: RequestHandler) -> RequestHandler:
        """Return a handler of SEARCH_OFFSET_BY_TIMESTAMP (29)."""
        return self._wrap(SearchOffsetByTimestampRequest, handler, self._search)

    def earliest_time(self, handler: RequestHandler) -> RequestHandler:
        """Return a handler of GET_EARLIEST_MSG_STORETIME (32)."""
        return self._wrap(GetEarliestMsgStoretimeRequest, handler, self._earliest_time)

    def query(self, handler: RequestHandler) -> RequestHandler:
        """Return a handler of QUERY_CONSUMER_OFFSET (14)."""

        def query(
            queue: LogicalQueue, header: QueryConsumerOffsetRequest, request: Request
        ) -> Response | Awaitable[Response | None] | None:
            (first, *others) = queue.items
            if not others and first.logic_offset == 0:
                return handler(_with_queue(request, header, first.queue_id))
            return self._query(queue, header)

        return self._wrap(QueryConsumerOffsetRequest, handler, query)

    def commit(self, handler: RequestHandler) -> RequestHandler:
        """Return a handler of UPDATE_CONSUMER_OFFSET (15)."""

        def commit(
            queue: LogicalQueue, header: UpdateConsumerOffsetRequest, _: Request
        ) -> Response | Awaitable[Response]:
            return self.commit_offset(queue, header.consumer_group, header.commit_offset)

        return self._wrap(UpdateConsumerOffsetRequest, handler, commit)

    def _wrap(
        self,
        kind: type[H],
        handler: RequestHandler,
        logical: Callable[[LogicalQueue, H, Request], Response | Awaitable[Response | None] | None],
    ) -> RequestHandler:
        """Return a handler that calls ``logical`` for the queues of static topics."""
        mappings = self._mappings

        def handle(request: Request) -> Response | Awaitable[Response | None] | None:
            if not mappings:
                return handler(request)
            header = request.header(kind)
            detail = mappings.get(header.topic)
            if detail is None or header.lo is False:
                return handler(request)
            items = led_queue(detail, header.queue_id, request.code)
            found = logical(LogicalQueue(header.topic, header.queue_id, items), header, request)
            return found if found is None or isinstance(found, Response) else _in_time(found)

        return handle

    # --- bounds and times -------------------------------------------------------------------------

    async def _max(self, queue: LogicalQueue, _: GetMaxOffsetRequest, __: Request) -> Response:
        index = last_decided(queue.items)
        if index is None:
            raise undecided(queue.topic, queue.queue_id)
        item = queue.items[index]
        _low, high = await self._bounds(queue, index, low=False)
        return Response(header=GetMaxOffsetResponse(offset=logical_offset(item, high)))

    async def _min(self, queue: LogicalQueue, _: GetMinOffsetRequest, __: Request) -> Response:
        index = _first(queue)
        low, _high = await self._bounds(queue, index, high=False)
        offset = stored_offset(queue.items[index], low)
        return Response(header=GetMinOffsetResponse(offset=offset))

    async def _earliest_time(
        self, queue: LogicalQueue, _: GetEarliestMsgStoretimeRequest, __: Request
    ) -> Response:
        item = queue.items[_first(queue)]
        if item.bname == self._name:
            low, _high = self._store.bounds(queue.topic, item.queue_id)
            oldest = (queue.topic, item.queue_id, low)
            await self._cold_reads.run(self._store.cold_store_time(*oldest))
            time_ms = self._store.store_time_at(*oldest)
        else:
            header = GetEarliestMsgStoretimeRequest(
                topic=queue.topic, queue_id=item.queue_id, lo=False, bname=item.bname
            )
            found = await self._call(item, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
            time_ms = found.header(GetEarliestMsgStoretimeResponse).timestamp
        return Response(header=GetEarliestMsgStoretimeResponse(timestamp=time_ms))

    async def _search(
        self, queue: LogicalQueue, header: SearchOffsetByTimestampRequest, _: Request
    ) -> Response:
        """Return the first offset whose message is not before a time, in whichever item."""
        newest = last_decided(queue.items)
        if newest is None:
            raise undecided(queue.topic, queue.queue_id)
        for index in range(newest + 1):
            low, high = await self._bounds(queue, index)
            if low < high:
                found = await self._search_item(queue, index, header, low, high)
                if found is not None:
                    break
        else:
            found = logical_offset(queue.items[newest], high)
        return Response(header=SearchOffsetByTimestampResponse(offset=found))

    async def _search_item(
        self,
        queue: LogicalQueue,
        index: int,
        header: SearchOffsetByTimestampRequest,
        low: int,
        high: int,
    ) -> int | None:
        """Return the offset of a time in an item; None if all its messages are older."""
        item = queue.items[index]
        if item.bname == self._name:
            upper = (header.boundary_type or "").lower() == "upper"
            searched = (queue.topic, item.queue_id, header.timestamp, "UPPER" if upper else "LOWER")
            await self._cold_reads.run(self._store.pages_for_time(*searched))
            offset = self._store.offset_at_time(*searched)
        else:
            wanted = SearchOffsetByTimestampRequest(
                topic=queue.topic,
                queue_id=item.queue_id,
                timestamp=header.timestamp,
                boundary_type=header.boundary_type,
                lo=False,
                bname=item.bname,
            )
            found = await self._call(item, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, wanted)
            offset = found.header(SearchOffsetByTimestampResponse).offset
        return logical_offset(item, max(offset, low)) if offset < high else None

    async def _bounds(
        self, queue: LogicalQueue, index: int, *, low: bool = True, high: bool = True
    ) -> tuple[int, int]:
        """Return the wanted bounds of an item, physical; those of an older item end with it."""
        item = queue.items[index]
        topic, number = queue.topic, item.queue_id
        if item.bname == self._name:
            least, most = self._store.bounds(topic, number)
        else:
            least = most = 0
            if low:
                wanted = GetMinOffsetRequest(
                    topic=topic, queue_id=number, lo=False, bname=item.bname
                )
                found = await self._call(item, RequestCode.GET_MIN_OFFSET, wanted)
                least = found.header(GetMinOffsetResponse).offset
            if high:
                asked = GetMaxOffsetRequest(
                    topic=topic, queue_id=number, lo=False, bname=item.bname
                )
                found = await self._call(item, RequestCode.GET_MAX_OFFSET, asked)
                most = found.header(GetMaxOffsetResponse).offset
        end = end_of(queue.items, index)
        return max(least, item.start_offset), most if end is None else min(most, end)

    async def _call(
        self,
        item: LogicQueueMappingItem,
        code: int,
        header: _Header,
        expected: tuple[int, ...] = (ResponseCode.SUCCESS,),
    ) -> Command:
        """Request something of the broker of an item.

        Raises:
            ResponseError: 1, it does not respond, or with another code than the expected ones.
        """
        response = await self._brokers.call(item.bname, code, header)
        if response.code not in expected:
            raise elsewhere_failed(
                item.bname, f"unknown remote error: {response.code} {response.remark or ''}"
            )
        return response

    # --- committed offsets ------------------------------------------------------------------------

    async def _query(self, queue: LogicalQueue, header: QueryConsumerOffsetRequest) -> Response:
        offset = await self._committed(queue, header.consumer_group)
        if offset is None:
            raise ResponseError(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, maybe this group consumer boot first",
            )
        return Response(header=QueryConsumerOffsetResponse(offset=offset))

    async def _committed(self, queue: LogicalQueue, group: str) -> int | None:
        """Return the logical offset of a group; None if it has none in any item."""
        behind: int | None = None
        """The begin of an item that the group has not consumed from; if it has all before."""
        for index in range(len(queue.items) - 1, -1, -1):
            item = queue.items[index]
            if not is_decided(item):
                continue
            offset = await self._committed_in(queue, item, group)
            if offset is None:
                continue
            if offset <= item.start_offset and index > 0:
                behind = item.logic_offset
                continue
            if behind is not None:
                _, end = await self._bounds(queue, index, low=False)
                if offset >= end:
                    return behind
            return logical_offset(item, offset)
        return behind

    async def _committed_in(
        self, queue: LogicalQueue, item: LogicQueueMappingItem, group: str
    ) -> int | None:
        """Return the physical offset of a group in an item; None if it has none."""
        if item.bname == self._name:
            return self._offsets.committed(group, queue.topic, item.queue_id)
        header = QueryConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=item.queue_id,
            set_zero_if_not_found=False,
            lo=False,
            bname=item.bname,
        )
        expected = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        found = await self._call(item, RequestCode.QUERY_CONSUMER_OFFSET, header, expected)
        if found.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        offset = found.header(QueryConsumerOffsetResponse).offset
        return offset if offset >= 0 else None

    def commit_offset(
        self, queue: LogicalQueue, group: str, offset: int
    ) -> Response | Awaitable[Response]:
        """Commit a logical offset at the broker of its item.

        Raises:
            ResponseError: it is refused.
        """
        index = index_for(queue.items, offset)
        if index is None:
            raise undecided(queue.topic, queue.queue_id)
        item = queue.items[index]
        if item.bname == self._name and index == last_decided(queue.items):
            return self._commit_here(
                group, queue.topic, item.queue_id, physical_offset(item, offset)
            )
        return self._commit_older(queue, group, index, offset)

    async def begin(self, queue: LogicalQueue, group: str) -> None:
        """Commit the first offset of a queue for a group that has no offset in any of its items.

        Raises:
            ResponseError: 1, a broker does not respond.
        """
        if await self._committed(queue, group) is None:
            await self._commit_in(queue, group, 0, queue.items[0].logic_offset)

    async def _commit_older(
        self, queue: LogicalQueue, group: str, index: int, offset: int
    ) -> Response:
        response = await self._commit_in(queue, group, index, offset)
        await self._go_back(queue, group, index)
        return response

    async def _commit_in(
        self, queue: LogicalQueue, group: str, index: int, offset: int
    ) -> Response:
        item = queue.items[index]
        physical = physical_offset(item, offset)
        if item.bname == self._name:
            return self._commit_here(group, queue.topic, item.queue_id, physical)
        header = UpdateConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=item.queue_id,
            commit_offset=physical,
            lo=False,
            bname=item.bname,
        )
        await self._call(item, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        return Response()

    async def _go_back(self, queue: LogicalQueue, group: str, index: int) -> None:
        """Let the offset in an item count, whatever the group has committed in newer ones."""
        key = group, queue.topic, queue.queue_id
        newest = queue.items[-1].gen
        known_newest, known_from = self._hidden.get(key, (-1, 0))
        for number in range(index + 1, len(queue.items)):
            item = queue.items[number]
            is_known = known_newest == newest and item.gen > known_from
            if not is_decided(item) or (is_known and item.bname != self._name):
                continue
            found = await self._committed_in(queue, item, group)
            if found is not None and found > item.start_offset:
                await self._commit_in(queue, group, number, item.logic_offset)
        while len(self._hidden) >= HIDDEN_MAX:
            del self._hidden[next(iter(self._hidden))]
        self._hidden[key] = newest, queue.items[index].gen


async def _in_time(response: Awaitable[Response | None]) -> Response | None:
    """Return a response that requests to the brokers of many items may precede.

    Raises:
        ResponseError: 1, they take too long.
    """
    try:
        async with asyncio.timeout(RESPONSE_S_MAX):
            return await response
    except TimeoutError:
        problem = f"the brokers of the items do not respond within {RESPONSE_S_MAX:g} s"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, problem) from None


def _first(queue: LogicalQueue) -> int:
    index = index_for(queue.items, 0)
    if index is None:
        raise undecided(queue.topic, queue.queue_id)
    return index


def _with_queue(request: Request, header: QueryConsumerOffsetRequest, queue_id: int) -> Request:
    """Return a request about a physical queue."""
    physical = msgspec.structs.replace(header, queue_id=queue_id, lo=False)
    command = Command(request.code, fields=encode_fields(physical))
    return Request(command, cast(Wire, request.connection))
