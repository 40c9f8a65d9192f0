"""Handles REGISTER_MESSAGE_FILTER_CLASS (302) and PULL_MESSAGE (11) of a filter server.

A pull is forwarded to the broker as a pull without a filter of the group FILTERSRV_CONSUMER. What
the broker returns is matched by the group's filter, and the client gets the records that matched.

Source: DefaultRequestProcessor, RocketMQ 4.2, with its codes and texts. RocketMQ's server checks no
checksum, holds every pull for 19 seconds whatever the request says, and puts the queue's bounds
into every record.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable

from cometmq.filtersrv.config import FilterServerSettings
from cometmq.filtersrv.filters import Filters
from cometmq.filtersrv.worker import FilterBusyError, FilterError, Source, Worker
from cometmq.model.errors import RemotingError, ResponseError
from cometmq.model.flags import PullSysFlag, SysFlag, pull_sys_flag
from cometmq.model.message import StoredMessage
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.compression import compress_body
from cometmq.protocol.headers.consumer import RegisterMessageFilterClassRequest
from cometmq.protocol.headers.pull import PullMessageRequest, PullMessageResponse
from cometmq.protocol.record import (
    CRC_MASK,
    RecordError,
    RecordParts,
    decode_record,
    encode_record,
    split_record,
)
from cometmq.protocol.subscription import ALL_TAGS, TAG_KIND
from cometmq.remoting import Peer, RemotingClient, Request, Response

FILTER_GROUP = "FILTERSRV_CONSUMER"
HOLD_MS_MAX = 19_000
RESPONSE_MARGIN_S = 10.0
INLINE_BYTES_MAX = 64 * 1024
"""Responses up to this size are decoded on the event loop if no body is compressed."""

DECODED_BYTES_MAX = 64 * 1024 * 1024
"""The limit of the bodies of one pull, except that it has one message at least."""

WAITING_BYTES_MAX = 256 * 1024 * 1024
"""The limit of what the broker returned and filters have not matched yet."""

NOT_REGISTERED = "Find Filter class failed, not registered"
UPLOAD_DISABLED = "this filter server accepts no filters: clientUploadFilterClassEnable is false"

_UNFILTERED = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_ZLIB_BITS = (SysFlag.COMPRESSED, SysFlag.COMPRESSED | SysFlag.ZLIB)


class FilterHandler:
    """Handles uploads and pulls.

    Args:
        filters: the uploaded filters.
        client: reaches the broker.
        settings: returns the settings of the filter server.
    """

    def __init__(
        self,
        filters: Filters,
        client: RemotingClient,
        settings: Callable[[], FilterServerSettings],
    ) -> None:
        self._filters = filters
        self._client = client
        self._settings = settings
        self._pulls: Counter[Peer] = Counter()
        """Pulls in progress, by connection."""
        self._waiting_bytes = 0

    async def upload(self, request: Request) -> Response:
        """Load a filter.

        Raises:
            ResponseError: it is refused, or cannot be loaded.
        """
        header = request.header(RegisterMessageFilterClassRequest)
        settings = self._settings()
        if not settings.client_upload_filter_class_enable:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, UPLOAD_DISABLED)
        source = _source_of(header, request.body, settings.source_bytes_max)
        try:
            await self._filters.put(request.connection, header.topic, header.consumer_group, source)
        except FilterBusyError as problem:
            raise ResponseError(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{problem}") from None
        except FilterError as problem:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"FilterServer, registerFilterClass Exception, consumerGroup: "
                f"{header.consumer_group} topic: {header.topic} className: {header.class_name} "
                f"{problem}",
            ) from None
        return Response()

    async def pull(self, request: Request) -> Response:
        """Pull from the broker, and return what matches.

        Raises:
            ResponseError: the group has no filter, the broker refused, or the filter failed.
        """
        header = request.header(PullMessageRequest)
        self._filter_of(request, header)  # before the broker may hold the pull
        settings = self._settings()
        self._require_place(request.connection, settings.pulls_max)
        self._pulls[request.connection] += 1
        try:
            response = await self._pull_all(header, settings)
            if response.code in _UNFILTERED:
                return _response(response.code, response)
            records, next_offset = await self._matched(request, header, response.body, settings)
        finally:
            self._pulls[request.connection] -= 1
            if not self._pulls[request.connection]:
                del self._pulls[request.connection]
        code = ResponseCode.SUCCESS if records else ResponseCode.PULL_RETRY_IMMEDIATELY
        return _response(code, response, records, next_offset)

    def _require_place(self, connection: Peer, pulls_max: int) -> None:
        """Refuse a pull of a connection that has more of them than there are places left.

        So one client never has all places, and of several that want all each gets as many.
        """
        pulls = self._pulls.total()
        if self._pulls[connection] >= pulls_max - pulls:
            raise ResponseError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]{pulls} pulls are in progress already,"
                f" {self._pulls[connection]} of this client",
            )

    def _filter_of(self, request: Request, header: PullMessageRequest) -> Worker:
        found = self._filters.find(header.topic, header.consumer_group, request.connection)
        if found is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, NOT_REGISTERED)
        return found

    async def _pull_all(
        self, header: PullMessageRequest, settings: FilterServerSettings
    ) -> Command:
        """Return the broker's response to the pull, sent without a filter."""
        hold_ms = 0
        if header.sys_flag & PullSysFlag.SUSPEND:
            hold_ms = min(max(header.suspend_timeout_millis, 0), HOLD_MS_MAX)
        forwarded = PullMessageRequest(
            consumer_group=FILTER_GROUP,
            topic=header.topic,
            queue_id=header.queue_id,
            queue_offset=header.queue_offset,
            max_msg_nums=header.max_msg_nums,
            sys_flag=pull_sys_flag(suspend=hold_ms > 0, subscription=True),
            commit_offset=0,
            suspend_timeout_millis=hold_ms,
            subscription=ALL_TAGS,
            sub_version=0,
            expression_type=TAG_KIND,
            max_msg_bytes=header.max_msg_bytes,
        )
        try:
            response = await self._client.call(
                settings.connect_which_broker,
                RequestCode.PULL_MESSAGE,
                forwarded,
                timeout=hold_ms / 1000 + RESPONSE_MARGIN_S,
            )
        except RemotingError as problem:
            raise _broker_failed(f"{type(problem).__name__}: {problem}") from None
        if response.code != ResponseCode.SUCCESS and response.code not in _UNFILTERED:
            raise _broker_failed(f"CODE: {response.code}  DESC: {response.remark or ''}")
        return response

    async def _matched(
        self,
        request: Request,
        header: PullMessageRequest,
        body: bytes,
        settings: FilterServerSettings,
    ) -> tuple[bytes, int | None]:
        """Return the records that match, one behind the other; none if the client has gone.

        And where the next pull begins, if the bodies of all are too large for one. Of the pulls
        that wait for a filter only the bytes are kept: one pull of each filter is decoded.
        """
        if request.connection.closed:
            return b"", None
        failed = (
            f"do Message Filter Exception, ConsumerGroup: {header.consumer_group} "
            f"Topic: {header.topic} "
        )
        worker = self._filter_of(request, header)
        self._waiting_bytes += len(body)
        try:
            if self._waiting_bytes > max(WAITING_BYTES_MAX, len(body)):
                raise FilterBusyError(f"{WAITING_BYTES_MAX} bytes wait for filters already")
            async with worker.exclusive():
                if request.connection.closed:
                    return b"", None
                return await _match(worker, header.consumer_group, body, settings)
        except FilterBusyError as problem:
            raise ResponseError(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{problem}") from None
        except (FilterError, RecordError) as problem:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{failed}{problem}") from None
        finally:
            self._waiting_bytes -= len(body)


def _source_of(header: RegisterMessageFilterClassRequest, body: bytes, bytes_max: int) -> Source:
    """Return an uploaded filter; a checksum of 0 stands for none, as in RocketMQ."""
    if not header.class_name or not body:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "expected a class name and its source")
    if len(body) > bytes_max:
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            f"a source of {len(body)} bytes, expected at most {bytes_max}"
            " (filterClassSourceSizeMax)",
        )
    crc = zlib.crc32(body) & CRC_MASK
    if header.class_crc not in (0, crc):
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            f"classCRC {header.class_crc}, expected {crc} of the source that arrived",
        )
    try:
        text = body.decode()
    except UnicodeDecodeError as problem:
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR, f"the source is not UTF-8: {problem}"
        ) from None
    return Source(header.class_name, text, crc)


def _broker_failed(reason: str) -> ResponseError:
    return ResponseError(ResponseCode.SYSTEM_ERROR, f"Pull Callback Exception, {reason}")


def _response(
    code: int, broker_response: Command, records: bytes = b"", next_offset: int | None = None
) -> Response:
    found = broker_response.header(PullMessageResponse)
    header = PullMessageResponse(
        suggest_which_broker_id=0,
        next_begin_offset=found.next_begin_offset if next_offset is None else next_offset,
        min_offset=found.min_offset,
        max_offset=found.max_offset,
    )
    return Response(code, header=header, body=records)


def split_all(body: bytes) -> list[tuple[bytes, RecordParts]]:
    """Return each record of a response, with its parts.

    Raises:
        RecordError: one of them is not whole.
    """
    records = []
    position = 0
    while position < len(body):
        parts = split_record(body, position)
        records.append((body[position : position + parts.size_bytes], parts))
        position += parts.size_bytes
    return records


async def _match(
    worker: Worker, group: str, body: bytes, settings: FilterServerSettings
) -> tuple[bytes, int | None]:
    """Return the records that match, and where the next pull begins if not all were matched."""
    records = split_all(body)
    messages = await _decoded(body, records)
    matches = await worker.match(group, messages)
    left = records[len(messages) :]
    next_offset = left[0][1].queue_offset if left else None
    chosen = [
        (record, parts, message)
        for (record, parts), message, is_match in zip(records, messages, matches, strict=False)
        if is_match
    ]
    if any(_is_changed(parts, message, settings) for _, parts, message in chosen):
        return await asyncio.to_thread(_encoded, chosen, settings), next_offset
    return b"".join(record for record, _, _ in chosen), next_offset


async def _decoded(body: bytes, records: list[tuple[bytes, RecordParts]]) -> list[StoredMessage]:
    compressed = any(parts.sys_flag & SysFlag.COMPRESSED for _, parts in records)
    if not compressed and len(body) <= INLINE_BYTES_MAX:
        return _decode(body)
    return await asyncio.to_thread(_decode, body)


def _decode(body: bytes) -> list[StoredMessage]:
    """Return the messages of a response, up to the limit of their bodies."""
    messages: list[StoredMessage] = []
    position = bodies_bytes = 0
    while position < len(body):
        message = _decode_one(body, position)
        bodies_bytes += len(message.body)
        if messages and bodies_bytes > DECODED_BYTES_MAX:
            break
        messages.append(message)
        position += message.size_bytes
    return messages


def _decode_one(body: bytes, position: int) -> StoredMessage:
    """Return a message; like a client, with its body as it is if it cannot be decompressed."""
    try:
        return decode_record(body, position)
    except RecordError:
        return decode_record(body, position, decompress=False)


def _is_changed(parts: RecordParts, message: StoredMessage, settings: FilterServerSettings) -> bool:
    """Return whether a record is encoded again: clients with class filters read only zlib."""
    if message.sys_flag & SysFlag.COMPRESSED:  # it cannot be decompressed
        return False
    compression = parts.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
    if parts.sys_flag & SysFlag.COMPRESSED:
        return compression not in _ZLIB_BITS
    return len(parts.body) >= settings.compress_msg_body_over


def _encoded(
    chosen: list[tuple[bytes, RecordParts, StoredMessage]], settings: FilterServerSettings
) -> bytes:
    """Return the records, with large bodies compressed."""
    return b"".join(
        _encode(parts, message.body, settings) if _is_changed(parts, message, settings) else record
        for record, parts, message in chosen
    )


def _encode(parts: RecordParts, body: bytes, settings: FilterServerSettings) -> bytes:
    sys_flag = parts.sys_flag & ~(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
    if len(body) >= settings.compress_msg_body_over:
        body = compress_body(body, SysFlag.ZLIB, settings.zip_compress_level)
        sys_flag |= SysFlag.COMPRESSED
    return encode_record(
        parts.topic.encode(),
        body,
        parts.properties,
        queue_id=parts.queue_id,
        queue_offset=parts.queue_offset,
        log_offset=parts.log_offset,
        born_time_ms=parts.born_time_ms,
        born_host=parts.born_host,
        store_time_ms=parts.store_time_ms,
        store_host=parts.store_host,
        flag=parts.flag,
        sys_flag=sys_flag,
        reconsume_times=parts.reconsume_times,
        prepared_offset=parts.prepared_offset,
    )
