"""Pulls of logical queues: finds the item of an offset, and translates the response.

Behind the end of an item the response names the begin of the next one. While that is undecided, the
queue seems to end; the pull is held until the next change of the mapping, or is repeated after a
second if the item is elsewhere.

Source: PullMessageProcessor.rewriteRequestForStaticTopic and rewriteResponseForStaticTopic,
RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from cometmq.broker.static_topics.brokers import ItemBrokers
from cometmq.broker.static_topics.offsets import LogicalQueue, OffsetRequests, led_queue
from cometmq.broker.static_topics.refusals import elsewhere_failed, undecided
from cometmq.model.errors import CometError
from cometmq.model.flags import PullSysFlag
from cometmq.protocol.bodies.route import TopicQueueMappingDetail
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.pull import PullMessageRequest, PullMessageResponse
from cometmq.protocol.logical_queues import (
    UNDECIDED,
    end_of,
    first_free_offset,
    index_for,
    is_decided,
    logical_offset,
    next_decided,
    physical_offset,
)
from cometmq.remoting import Request, Response

log = logging.getLogger(__name__)

EXPECTED_BYTES: Final = 256 * 1024
"""What a pull finds at most with the default settings of its broker."""
POLL_MS: Final = 1_000
"""How long a pull waits at the end of an undecided item elsewhere before it is repeated."""

_FOUND = int(ResponseCode.SUCCESS)
_NOT_FOUND = int(ResponseCode.PULL_NOT_FOUND)
_RETRY = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)
_EXPECTED = (_FOUND, _NOT_FOUND, _RETRY, _MOVED)
_NOT_FORWARDED = int(PullSysFlag.SUSPEND | PullSysFlag.COMMIT_OFFSET)


class LogicalPull:
    """The item that a pull of a logical queue reads.

    Args:
        queue: the queue.
        offset: the logical offset of the pull.
        broker_name: of this broker.

    Raises:
        ResponseError: the queue has no logical offsets yet.
    """

    def __init__(self, queue: LogicalQueue, offset: int, broker_name: str) -> None:
        index = index_for(queue.items, offset)
        if index is None:
            raise undecided(queue.topic, queue.queue_id)
        self.queue = queue
        self.offset = offset
        """The logical offset."""
        self.index = index
        self.item = queue.items[index]
        self.end = end_of(queue.items, index)
        self.physical_queue = self.item.queue_id
        self.physical_offset = physical_offset(self.item, offset)
        self.is_elsewhere = self.item.bname != broker_name
        self.is_ended = self.end is not None and self.physical_offset >= self.end
        """Whether no message at the offset or behind it is one of the item."""
        self.next_offset = self.min_offset = self.max_offset = self.delta = 0

    def limit(self, count_max: int) -> int:
        """Return how many messages may be read."""
        return count_max if self.end is None else min(count_max, self.end - self.physical_offset)

    def settle(self, code: int, next_offset: int, low: int, high: int) -> int:
        """Set the offsets of the response from the physical ones; return its code."""
        item, items, offset = self.item, self.queue.items, self.physical_offset
        low = max(low, item.start_offset)
        if self.end is not None:
            high = min(high, self.end)
            next_offset = min(next_offset, self.end)
        if code != _FOUND:
            following = next_decided(items, self.index)
            if self.index < len(items) - 1 and offset >= high:
                if following is not None:
                    begin = items[following].logic_offset
                    self.next_offset = self.min_offset = self.max_offset = begin
                    self.delta = begin - items[following].start_offset
                    return _RETRY
                code, next_offset = _NOT_FOUND, high
            elif offset < low:
                code, next_offset = (_RETRY if self.index else _MOVED), low
        self.translate(next_offset, low, high)
        return code

    def translate(self, next_offset: int, low: int, high: int) -> None:
        """Set the offsets of the response from physical ones of the item."""
        item, items = self.item, self.queue.items
        free = first_free_offset(items) if is_decided(items[-1]) else UNDECIDED
        self.next_offset = logical_offset(item, next_offset)
        self.min_offset = logical_offset(item, max(low, item.start_offset))
        self.max_offset = max(logical_offset(item, high), free)
        self.delta = item.logic_offset - item.start_offset

    def numbers(self, suggested_broker: int, opaque: int) -> tuple[int, ...]:
        """Return the numbers of a response with messages, in the order of its fields."""
        bounds = self.next_offset, self.min_offset, self.max_offset
        return suggested_broker, *bounds, self.delta, opaque

    def fields(self, suggested_broker: int) -> dict[str, str]:
        """Return the fields of the response."""
        return {
            "suggestWhichBrokerId": str(suggested_broker),
            "nextBeginOffset": str(self.next_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(self.max_offset),
            "offsetDelta": str(self.delta),
        }


class PullOfClient(Protocol):
    """A pull as the handler of pulls has it."""

    topic: str
    group: str
    count_max: int
    bytes_max: int
    flags: int
    commit_offset: int
    suspend_ms: int
    is_bulk: bool
    is_short_poll: bool
    was_held: bool
    logical: Any

    def request(self) -> Request:
        """Return the request, to respond with a `Response`."""

    def fail(self, problem: Exception) -> None:
        """Respond with an error."""


class LogicalPulls:
    """Pulls of the logical queues that this broker leads.

    Args:
        offsets: commits the offsets that pulls carry.
        brokers: the brokers of items.
        broker_name: of this broker.
        hold: holds a pull for some milliseconds; returns False if it cannot be held.
    """

    def __init__(
        self,
        offsets: OffsetRequests,
        brokers: ItemBrokers,
        *,
        broker_name: str,
        hold: Callable[[Any, int], bool],
    ) -> None:
        self._offsets = offsets
        self._brokers = brokers
        self._name = broker_name
        self._hold = hold

    def locate(self, detail: TopicQueueMappingDetail, queue_id: int, offset: int) -> LogicalPull:
        """Return the item that a pull reads.

        Raises:
            ResponseError: 501, this broker does not lead the queue; 1, it has no offsets yet.
        """
        items = led_queue(detail, queue_id, RequestCode.PULL_MESSAGE)
        queue = LogicalQueue(detail.topic, queue_id, items)
        return LogicalPull(queue, offset, self._name)

    def commit(self, pull: PullOfClient) -> None:
        """Commit the offset that a pull carries; a failure is only logged, as there is no response.

        Consumers commit at intervals, too.
        """
        try:
            done = self._offsets.commit_offset(pull.logical.queue, pull.group, pull.commit_offset)
        except CometError as problem:
            _log_not_committed(pull, problem)
            return
        if isinstance(done, Awaitable):
            self._brokers.in_background(self._committed(pull, done), "commit")

    async def _committed(self, pull: PullOfClient, done: Awaitable[Response]) -> None:
        try:
            await done
        except CometError as problem:
            _log_not_committed(pull, problem)

    def read_elsewhere(
        self, pull: PullOfClient, expression: str | None, kind: str | None, version: int, hold: bool
    ) -> None:
        """Read from the broker of the item, and respond later.

        Args:
            pull: the pull.
            expression, kind, version: the subscription of its group.
            hold: whether it may be held.
        """
        item = pull.logical.item
        header = PullMessageRequest(
            consumer_group=pull.group,
            topic=pull.topic,
            queue_id=pull.logical.physical_queue,
            queue_offset=pull.logical.physical_offset,
            max_msg_nums=pull.logical.limit(max(pull.count_max, 1)),
            sys_flag=pull.flags & ~_NOT_FORWARDED | PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=expression,
            sub_version=version,
            expression_type=kind,
            max_msg_bytes=pull.bytes_max,
            bulk=pull.is_bulk or None,
            lo=False,
            bname=item.bname,
        )
        self._brokers.in_background(self._read(pull, header, hold), "pull")

    async def _read(self, pull: PullOfClient, header: PullMessageRequest, may_hold: bool) -> None:
        logical: LogicalPull = pull.logical
        broker = logical.item.bname
        messages, taken = self._brokers.messages, 0
        try:
            taken = await messages.take(min(pull.bytes_max, EXPECTED_BYTES))
            found = await self._brokers.call(broker, RequestCode.PULL_MESSAGE, header)
            taken = messages.correct(taken, len(found.body))
            if found.code not in _EXPECTED:
                remark = found.remark or ""
                raise elsewhere_failed(
                    broker, f"unexpected remote response code {found.code}: {remark}"
                )
            bounds = found.header(PullMessageResponse)
            code = logical.settle(
                found.code, bounds.next_begin_offset, bounds.min_offset, bounds.max_offset
            )
            if (
                code == _NOT_FOUND
                and may_hold
                and pull.flags & PullSysFlag.SUSPEND
                and pull.suspend_ms > 0
            ):
                pull.is_short_poll = pull.was_held = True
                if self._hold(pull, min(pull.suspend_ms, POLL_MS)):
                    return
            body = found.body if code == _FOUND else b""
            pull.request().reply(Response(code, found.remark, fields=logical.fields(0), body=body))
        except Exception as problem:
            pull.fail(problem)
        finally:
            messages.give(taken)


def _log_not_committed(pull: PullOfClient, problem: CometError) -> None:
    log.debug(
        "the offset of a pull is not committed group=%s topic=%s offset=%d: %s",
        *(pull.group, pull.topic, pull.commit_offset, problem),
    )
