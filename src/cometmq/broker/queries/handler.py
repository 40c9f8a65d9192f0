"""Handles queries for stored messages: by physical offset, by key, by entries of a queue.

Source: QueryMessageProcessor and AdminBrokerProcessor.queryConsumeQueue, RocketMQ 5.3.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from cometmq.broker.core import Core
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.broker_admin import ConsumeQueueData, QueryConsumeQueueResponseBody
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.query import (
    QueryMessageRequest,
    QueryMessageResponse,
    ViewMessageByIdRequest,
)
from cometmq.protocol.headers.topic import QueryConsumeQueueRequest
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import Slices, encode
from cometmq.store import Matcher
from cometmq.store.index.key_search import KeySearch
from cometmq.store.message_store import bring_in
from cometmq.store.queues.consume_queue_ext import ExtUnit

UNIQUE_KEY_COUNT_MAX: Final = 32
"""Number of messages in the response for a unique key; the requested number is ignored."""
RESPONSE_BYTES_MAX: Final = 15 * 1024 * 1024
"""Clients refuse frames over 16 MiB; further messages are left out."""
UNITS_MAX: Final = 10_000
"""Queue entries in one response."""
UNITS_PER_STEP: Final = 500
"""Queue entries that are read before other requests are handled."""


class QueryHandler:
    """Handles QUERY_MESSAGE (12), VIEW_MESSAGE_BY_ID (33) and QUERY_CONSUME_QUEUE (321).

    Args:
        core: of the broker.
    """

    def __init__(self, core: Core) -> None:
        self._store = core.store
        self._cold_reads = core.cold_reads
        self._topics = core.topics
        self._consumers = core.consumers
        self._filters = core.filters

    async def by_key(self, request: Request) -> Response | None:
        """Return the messages with a key as they are stored; the client checks them again."""
        header = request.header(QueryMessageRequest)
        count = UNIQUE_KEY_COUNT_MAX if header.unique_key_query else header.max_num
        search = self._store.search(
            header.topic, header.key, count, header.begin_timestamp, header.end_timestamp
        )
        if not await self._cold_reads.search(search, request, RESPONSE_BYTES_MAX):
            return None
        return _found(search)

    def by_offset(self, request: Request) -> Response:
        """Return the record at a physical offset."""
        offset = request.header(ViewMessageByIdRequest).offset
        self._cold_reads.require_in_memory(self._store.cold_record(offset))
        record = self._store.record_at(offset) if offset >= 0 else None
        if record is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
            )
        return Response(body=bytes(record))

    async def queue_entries(self, request: Request) -> Response:
        """Return entries of a consume queue, and the subscription of a group."""
        header = request.header(QueryConsumeQueueRequest)
        topic, queue_id = header.topic or "", header.queue_id
        if not self._exists(topic, queue_id):
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        low, high = self._store.bounds(topic, queue_id)
        if not low <= header.index < high:
            return Response(remark=f"Index {header.index} of {queue_id}@{topic} is not exist!")
        body = QueryConsumeQueueResponseBody(min_queue_index=low, max_queue_index=high)
        is_known, matcher = self._describe_group(body, header.consumer_group, topic)
        count = max(0, min(header.count, UNITS_MAX))
        slices = Slices()
        index = header.index
        while count > 0:
            step = min(count, UNITS_PER_STEP)
            cold = self._store.reader.cold_units(topic, queue_id, index, step, None)
            await self._cold_reads.run(partial(bring_in, cold))
            units = self._store.consume_queue_units(topic, queue_id, index, step)
            ext_units = self._store.ext_units(topic, queue_id, index, len(units))
            body.queue_data += [
                _entry(*unit, ext, is_known, matcher)
                for unit, ext in zip(units, ext_units, strict=True)
            ]
            index = self._store.offset_behind(topic, queue_id, index, len(units))
            count -= step
            if len(units) < step:
                break
            await slices.pause()
        return Response(body=await encode(body, slices))

    def _exists(self, topic: str, queue_id: int) -> bool:
        config = self._topics.get(topic)
        if config is None:
            return False
        return 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def _describe_group(
        self, body: QueryConsumeQueueResponseBody, group: str | None, topic: str
    ) -> tuple[bool, Matcher | None]:
        """Show a group's subscription; return whether there is a valid one, and its matcher."""
        if group is None:
            return False, None
        online = self._consumers.group(group)
        subscription = None if online is None else online.subscriptions.get(topic)
        if subscription is None:
            body.filter_data = f"{group}@{topic} is not online!"
            return False, None
        body.subscription_data = subscription.data
        body.filter_data = self._filters.text_of(self._filters.find(topic, group))
        try:
            return True, self._filters.matcher(group, subscription, enabled=True)
        except ResponseError as problem:
            body.filter_data = problem.remark
            return False, None


def _entry(
    log_offset: int,
    size_bytes: int,
    tags_code: int,
    ext: ExtUnit | None,
    is_known: bool,
    matcher: Matcher | None,
) -> ConsumeQueueData:
    """Show one entry of a queue, and whether the filter of a known group lets it pass.

    Like RocketMQ, it says that only of an entry with a bit map: of others ``eval`` is false.
    """
    entry = ConsumeQueueData(
        physic_offset=log_offset, physic_size=size_bytes, tags_code=tags_code, eval=False
    )
    if ext is None:
        return entry
    entry.eval = is_known and (matcher is None or matcher.matches_tags(tags_code))
    entry.extend_data_json = _ext_json(ext)
    if ext.bitmap:
        entry.bit_map = _bits_text(ext.bitmap)
    if matcher is not None and matcher.needs_properties:
        entry.eval = entry.eval and matcher.matches_bitmap(ext.store_ms, ext.bitmap)
    return entry


def _ext_json(ext: ExtUnit) -> str:
    fields = {
        "filterBitMap": b64encode(ext.bitmap).decode() if ext.bitmap else None,
        "msgStoreTime": ext.store_ms,
        "size": len(ext.encode()),
        "tagsCode": ext.tags_code,
    }
    return msgspec.json.encode(
        {name: value for name, value in fields.items() if value is not None}
    ).decode()


def _bits_text(bitmap: bytes) -> str:
    """Show a bit map as RocketMQ does: the highest bit first, eight bytes a line."""
    text = ""
    for number in range(len(bitmap) - 1, -1, -1):
        text += f"{bitmap[number]:08b}"
        if number % 8 == 0:
            text += "\n"
    return text


def _found(search: KeySearch) -> Response:
    found = search.result()
    index = QueryMessageResponse(
        index_last_update_timestamp=found.index_last_update_timestamp,
        index_last_update_phyoffset=found.index_last_update_phyoffset,
    )
    if not found.records:
        return Response(
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct",
            header=index,
        )
    return Response(header=index, body=_fitting(found.records))


def _fitting(records: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """As many of the records as fit into one response, but at least one."""
    fitting: list[bytes | memoryview] = []
    size_bytes = 0
    for record in records:
        size_bytes += len(record)
        if fitting and size_bytes > RESPONSE_BYTES_MAX:
            break
        fitting.append(record)
    return fitting
