# cython: annotation_typing=False
"""Handles acknowledgements of popped messages, and changes of their invisible time.

ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053).

An acknowledgement that is answered 0 is as durable as a message that is sent: it waits for the disk
and for slaves as the settings say. All acknowledgements that one iteration of the event loop
receives are stored with one write, one record for each check point.

A receipt that no pop gave, and one of a message that was acknowledged or redelivered, is answered 0
and changes nothing. Source: AckMessageProcessor and ChangeInvisibleTimeProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from cometmq.broker.checks import check_number, sent_to_slave
from cometmq.broker.pop.check_points import CheckPoint, CheckPoints
from cometmq.broker.pop.orders import UNKNOWN
from cometmq.broker.pop.part import PopPart, PopState
from cometmq.broker.pop.pops import INVISIBLE_MS_MAX
from cometmq.broker.pop.receipts import (
    ORDERED,
    RETRY_V1,
    RETRY_V2,
    Receipt,
    read_receipt,
    retry_topic_of,
)
from cometmq.broker.pop.records import MESSAGES_MAX, AckOf
from cometmq.broker.prerequisites import (
    PrerequisiteError,
    after_prerequisites,
    run_and_repeat,
    with_prerequisites,
)
from cometmq.model.errors import ResponseError, StoreError
from cometmq.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.pop import (
    AckMessageRequest,
    ChangeMessageInvisibletimeRequest,
    ChangeMessageInvisibletimeResponse,
)
from cometmq.remoting import Supervisor
from cometmq.remoting.connection import respond_with_failure
from cometmq.remoting.requests import Request, Response
from cometmq.remoting.slices import Slices, batched, decode, decode_at_once

RECORDS_MAX: Final = 256
"""Check points whose acknowledgements are stored with one write."""
EARLY_MS: Final = 5_000
BITS_MAX: Final = 4_096
"""Bits that are read of one item of a batch; RocketMQ's pops deliver at most 32 messages."""
ITEMS_MAX: Final = 10_000
ITEMS_AT_ONCE: Final = 64
"""Items of a batch that are looked at together; the next ones follow when these are stored."""
ATTEMPTS_MAX: Final = 8


class _Write:
    """Acknowledgements that are stored with one write."""

    __slots__ = ("attempts", "bits", "ends", "points", "requests")

    def __init__(self, points: CheckPoints) -> None:
        self.points = points
        self.bits: dict[CheckPoint, int] = {}
        self.requests: list[Request] = []
        """What gets a response."""
        self.ends: list[asyncio.Future[int]] = []
        """What gets the end of the log that a later response is to wait for."""
        self.attempts = 0


class AckHandler(PopPart):
    """Handles acknowledgements, and changes of invisible times."""

    def __init__(self, state: PopState) -> None:
        super().__init__(state)
        self._settings = state.settings
        self._write: Any = None
        self.ack = with_prerequisites(self._ack)
        """Handles ACK_MESSAGE."""
        self.change = with_prerequisites(self._change)
        """Handles CHANGE_MESSAGE_INVISIBLETIME."""
        self._tasks = Supervisor("acknowledge")
        self.acked = 0
        """Messages acknowledged since the start."""

    # --- one message ----------------------------------------------------------------------------

    def _ack(self, request: Request) -> Response | None:
        header = request.header(AckMessageRequest)
        topic, queue_id, offset = header.topic, header.queue_id, header.offset
        self._check_queue(topic, queue_id)
        low, high = self._reader.bounds(topic, queue_id)
        if not low <= offset <= high:
            raise ResponseError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}",
            )
        receipt = read_receipt(header.extra_info)
        self._prepare()
        if receipt.revive_queue == ORDERED:
            return self._ack_ordered(request, header, receipt)
        point = self._find(header.consumer_group, topic, queue_id, receipt)
        if point is not None:
            self._note(point, point.bit_of(offset))
            self._respond_when_stored(request)
            return None
        if self._may_be_early(receipt):
            return self._ack_apart(
                request,
                AckOf(
                    header.consumer_group,
                    topic,
                    queue_id,
                    receipt.start,
                    receipt.pop_ms,
                    receipt.broker_name,
                    (offset,),
                    receipt.invisible_ms,
                ),
                receipt.revive_queue,
            )
        return Response()

    def _prepare(self) -> None:
        if self._role.is_slave:
            raise sent_to_slave()
        self._log.require_loaded()

    def _check_queue(self, topic: str, queue_id: int) -> None:
        config = self._topics.require(topic)
        if not 0 <= queue_id < config.read_queue_nums:
            raise ResponseError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]",
            )

    def _find(self, group: str, topic: str, queue_id: int, receipt: Receipt) -> CheckPoint | None:
        if receipt.broker_name != self._log.broker_name:
            return None
        points: CheckPoints = self._log.points
        return points.find(group, topic, queue_id, receipt.start, receipt.pop_ms)

    def _may_be_early(self, receipt: Receipt) -> bool:
        """Return whether a receipt may be one of a master before this one, and still count."""
        return (
            receipt.broker_name == self._log.broker_name
            and receipt.pop_ms <= self._log.loaded_ms
            and 0 <= receipt.invisible_ms <= INVISIBLE_MS_MAX
            and receipt.pop_ms + receipt.invisible_ms + EARLY_MS > self._clock.now_ms()
            and 0 <= receipt.revive_queue < self._log.queue_count
        )

    def _ack_apart(self, request: Request, ack: AckOf, revive_queue: int) -> Response | None:
        return self._durability.respond(request, self._acknowledge_apart(ack, revive_queue))

    def _acknowledge_apart(self, ack: AckOf, revive_queue: int) -> int:
        try:
            return self._log.acknowledge_apart(ack, revive_queue)
        except StoreError as problem:
            raise _refused(problem) from problem

    def _ack_ordered(
        self, request: Request, header: AckMessageRequest, receipt: Receipt
    ) -> Response | None:
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offsets = (header.offset,)
        log_end = self._acknowledge_ordered(group, topic, queue_id, offsets, receipt)
        if log_end == UNKNOWN:
            raise ResponseError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{topic}@{group}@{queue_id},"
                f" old:{self._offsets.committed(group, topic, queue_id) or 0},"
                f" commit:{header.offset}, next:{UNKNOWN}",
            )
        return self._durability.respond(request, log_end) if log_end else Response()

    def _acknowledge_ordered(
        self, group: str, topic: str, queue_id: int, offsets: Sequence[int], receipt: Receipt
    ) -> int:
        """Acknowledge ordered messages.

        Returns:
            The end of the log that the response waits for; 0 if nothing was stored; `UNKNOWN` if
            none of them was popped.
        """
        committed = self._offsets.committed(group, topic, queue_id) or 0
        reached, count, unknown = committed, 0, 0
        for offset in offsets:
            if offset < reached:
                continue
            found = self._orders.acknowledge(
                group, topic, queue_id, offset, receipt.pop_ms, reached
            )
            unknown += found == UNKNOWN
            if found >= 0:
                reached, count = max(reached, found), count + 1
        if not count:
            return UNKNOWN if unknown else 0
        log_end = 0
        if reached > committed and not self._offsets.is_reset_pending(group, topic, queue_id):
            ack = AckOf(
                group,
                topic,
                queue_id,
                receipt.start,
                receipt.pop_ms,
                self._log.broker_name,
                offsets,
                next_offset=reached,
            )
            log_end = self._acknowledge_apart(ack, queue_id % self._log.queue_count)
            self._offsets.commit(group, topic, queue_id, reached)
        self.acked += count
        self._held.notify(group, topic, queue_id)
        return log_end

    # --- batches --------------------------------------------------------------------------------

    def ack_batch(self, request: Request) -> Response | Awaitable[Response | None] | None:
        """Handle BATCH_ACK_MESSAGE."""
        body = decode_at_once(BatchAckMessageRequestBody, request.body) if request.body else None
        if body is None and request.body:
            request.is_exclusive = True
            return self._ack_large(request)
        if body is None or not body.acks:
            raise ResponseError(ResponseCode.NO_MESSAGE, "no acknowledgement in the request")
        if len(body.acks) > ITEMS_AT_ONCE:
            request.is_exclusive = True
            return self._ack_many(request, body)
        try:
            return self._ack_few(request, body)
        except PrerequisiteError as needed:
            request.is_exclusive = True
            return run_and_repeat(needed, partial(self._ack_few, request, body), request)

    async def _ack_large(self, request: Request) -> Response | None:
        body = await decode(BatchAckMessageRequestBody, request.body)
        if len(body.acks) > ITEMS_MAX:
            raise ResponseError(
                ResponseCode.NO_MESSAGE,
                f"{len(body.acks)} items in a batch of acknowledgements, expected at most"
                f" {ITEMS_MAX}",
            )
        return await self._ack_many(request, body)

    async def _ack_many(
        self, request: Request, body: BatchAckMessageRequestBody
    ) -> Response | None:
        """Acknowledge many items in parts; each is stored before the next one is looked at."""
        slices, log_end = Slices(), 0
        for part in batched(body.acks if self._is_own(body) else (), ITEMS_AT_ONCE):
            acks, end = await after_prerequisites(partial(self._acks_of, part))
            log_end = max(log_end, end)
            if acks:
                stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                self._note_all(acks)
                self._write.ends.append(stored)
                self._end_full_write()
                log_end = max(log_end, await stored)
            await slices.pause()
        return self._durability.respond(request, log_end) if log_end else Response()

    def _ack_few(self, request: Request, body: BatchAckMessageRequestBody) -> Response | None:
        acks, log_end = self._acks_of(body.acks if self._is_own(body) else ())
        if acks:
            self._note_all(acks)
            self._respond_when_stored(request)
            return None
        return self._durability.respond(request, log_end) if log_end else Response()

    def _is_own(self, body: BatchAckMessageRequestBody) -> bool:
        return body.broker_name in ("", self._log.broker_name)

    def _acks_of(self, items: Iterable[BatchAck]) -> tuple[dict[CheckPoint, int], int]:
        """Return what is to be acknowledged, and the end of what was stored already."""
        self._prepare()
        acks: dict[CheckPoint, int] = {}
        log_end = 0
        for item in items:
            bits = int.from_bytes(item.bit_set[: BITS_MAX // 8], "little")
            topic = _topic_of(item)
            config = self._topics.get(topic)
            if not bits or config is None or not 0 <= item.queue_id < config.read_queue_nums:
                continue
            receipt = Receipt(
                item.start_offset,
                item.pop_time,
                item.invisible_time,
                item.revive_queue_id,
                self._log.broker_name,
            )
            if receipt.revive_queue == ORDERED:
                end = self._acknowledge_ordered(
                    item.consumer_group,
                    topic,
                    item.queue_id,
                    _offsets_in(item.start_offset, bits),
                    receipt,
                )
                log_end = max(log_end, end)
                continue
            point = self._find(item.consumer_group, topic, item.queue_id, receipt)
            if point is not None:
                acks[point] = acks.get(point, 0) | _bits_in(point, bits)
            elif self._may_be_early(receipt):
                ack = AckOf(
                    item.consumer_group,
                    topic,
                    item.queue_id,
                    receipt.start,
                    receipt.pop_ms,
                    receipt.broker_name,
                    _offsets_in(item.start_offset, bits),
                    receipt.invisible_ms,
                )
                log_end = max(log_end, self._acknowledge_apart(ack, receipt.revive_queue))
        return acks, log_end

    # --- invisible times ------------------------------------------------------------------------

    def _change(self, request: Request) -> Response | None:
        header = request.header(ChangeMessageInvisibletimeRequest)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offset = header.offset
        self._check_queue(topic, queue_id)
        low, high = self._reader.bounds(topic, queue_id)
        if not low <= offset < high:
            raise ResponseError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}",
            )
        receipt = read_receipt(header.extra_info)
        check_number("invisibleTime", header.invisible_time, 0, INVISIBLE_MS_MAX)
        self._prepare()
        now_ms = self._clock.now_ms()
        if receipt.revive_queue == ORDERED:
            return self._change_ordered(header, receipt, now_ms)
        points = self._log.points
        pop_ms = points.free_pop_ms(group, topic, queue_id, offset, now_ms)
        response = Response(
            header=ChangeMessageInvisibletimeResponse(
                pop_time=pop_ms,
                invisible_time=header.invisible_time,
                revive_qid=receipt.revive_queue,
            )
        )
        point = self._find(group, topic, queue_id, receipt)
        is_early = (
            point is None
            and self._may_be_early(receipt)
            and not self._log.has_early(
                group, topic, queue_id, receipt.start, receipt.pop_ms, offset
            )
        )
        if is_early and len(points) >= self._settings().pop_check_points_max:
            raise ResponseError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the invisible time was not changed: {len(points)} check points are in flight",
            )
        bit = 0 if point is None else point.bit_of(offset) & ~(point.acked | point.acking)
        if not bit and not is_early:
            return response
        queue = receipt.revive_queue if point is None else point.revive_queue
        renewed = CheckPoint(
            group,
            topic,
            queue_id,
            offset,
            range(offset, offset + 1),
            pop_ms,
            header.invisible_time,
            queue,
        )
        try:
            if point is not None:
                log_end = self._log.replace(point, bit, renewed, now_ms)
            else:
                self._log.add([renewed], now_ms)
                ack = AckOf(
                    group,
                    topic,
                    queue_id,
                    receipt.start,
                    receipt.pop_ms,
                    receipt.broker_name,
                    (offset,),
                    receipt.invisible_ms,
                )
                log_end = self._log.acknowledge_apart(ack, queue)
        except StoreError as problem:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"the invisible time was not changed: {problem}"
            ) from problem
        self._changed()
        return self._durability.respond(request, log_end, response)

    def _change_ordered(
        self, header: ChangeMessageInvisibletimeRequest, receipt: Receipt, now_ms: int
    ) -> Response:
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        committed = self._offsets.committed(group, topic, queue_id) or 0
        if header.offset < committed:
            zero = ChangeMessageInvisibletimeResponse(pop_time=0, invisible_time=0, revive_qid=0)
            return Response(header=zero)
        visible_ms = now_ms + header.invisible_time
        self._orders.change_invisible(
            group, topic, queue_id, header.offset, receipt.pop_ms, visible_ms
        )
        self._held.notify(group, topic, queue_id)
        return Response(
            header=ChangeMessageInvisibletimeResponse(
                pop_time=receipt.pop_ms,
                invisible_time=visible_ms - receipt.pop_ms,
                revive_qid=ORDERED,
            )
        )

    # --- storing --------------------------------------------------------------------------------

    def _note(self, point: CheckPoint, bits: int) -> None:
        """Note acknowledgements, which the end of this iteration of the event loop stores."""
        if self._write is None:
            self._write = _Write(self._log.points)
            asyncio.get_running_loop().call_soon(self._end_write, self._write)
        new = bits & ~point.acked
        if new:
            point.acking |= new
            self._write.bits[point] = self._write.bits.get(point, 0) | new

    def _note_all(self, acks: dict[CheckPoint, int]) -> None:
        for point, bits in acks.items():
            self._note(point, bits)

    def _respond_when_stored(self, request: Request) -> None:
        self._write.requests.append(request)
        self._end_full_write()

    def _end_full_write(self) -> None:
        if len(self._write.bits) >= RECORDS_MAX:
            self._end_write(self._write)

    def _end_write(self, write: _Write) -> None:
        if write is self._write:  # else it was stored before, because there were many
            self._write = None
            self._finish(write)

    def _finish(self, write: _Write) -> None:
        try:
            log_end = self._append(write)
        except PrerequisiteError as needed:
            write.attempts += 1
            if write.attempts > ATTEMPTS_MAX:
                self._fail(write, StoreError("the next file of the log is not there"))
            else:
                self._tasks.spawn(self._finish_later(write, needed), "acknowledge")
        except Exception as problem:
            self._fail(write, problem)
        else:
            self._durability.respond_to_all(write.requests, log_end)
            for end in write.ends:
                if not end.done():
                    end.set_result(log_end)

    def _append(self, write: _Write) -> int:
        """Store acknowledgements; return the end of the log that responses wait for."""
        if self._log.points is not write.points or not self._log.is_loaded:
            raise sent_to_slave()
        bits: dict[CheckPoint, int] = {}
        count = log_end = 0
        for point, each in write.bits.items():
            left = each & ~point.acked
            if left:
                bits[point] = left
                count += left.bit_count()
        if bits:
            log_end = self._log.acknowledge(bits, self._clock.now_ms())
            if self._settings().enable_pop_message_threshold:
                for point in bits:
                    self._held.notify(point.group, point.topic, point.queue_id)
        for point in write.bits:
            point.acking = 0
        self.acked += count
        return log_end

    async def _finish_later(self, write: _Write, needed: PrerequisiteError) -> None:
        try:
            await needed.run()
        except Exception as problem:
            self._fail(write, problem)
        else:
            self._finish(write)

    def _fail(self, write: _Write, problem: Exception) -> None:
        for point in write.bits:
            point.acking = 0
        if isinstance(problem, StoreError):
            problem = _refused(problem)
        for request in write.requests:
            respond_with_failure(request, problem)
        for end in write.ends:
            if not end.done():
                end.set_exception(problem)

    async def stop(self) -> None:
        """End the acknowledgements that wait for a file of the log."""
        await self._tasks.cancel()


def _refused(problem: StoreError) -> ResponseError:
    return ResponseError(
        ResponseCode.SERVICE_NOT_AVAILABLE, f"the acknowledgement was not stored: {problem}"
    )


def _topic_of(item: BatchAck) -> str:
    """Return the topic that was popped: an item for redelivered messages names the original one."""
    if item.retry not in (RETRY_V1, RETRY_V2):
        return item.topic
    second = item.retry == RETRY_V2
    return retry_topic_of(item.consumer_group, item.topic, is_second_form=second)


def _offsets_in(start: int, bits: int) -> list[int]:
    """Return the offsets that a bit set names, as many as a check point has."""
    offsets: list[int] = []
    while bits and len(offsets) < MESSAGES_MAX:
        lowest = bits & -bits
        offsets.append(start + lowest.bit_length() - 1)
        bits ^= lowest
    return offsets


def _bits_in(point: CheckPoint, bits: int) -> int:
    """Return the bits of a check point for those of a batch, which count from its start."""
    offsets = point.offsets
    if isinstance(offsets, range) and offsets.start == point.start:
        return bits & point.all_bits()
    found = 0
    for n, offset in enumerate(offsets):
        found |= (bits >> offset - point.start & 1) << n
    return found
