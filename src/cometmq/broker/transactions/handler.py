"""Handles END_TRANSACTION (37) and RESUME_CHECK_HALF_MESSAGE (323).

A producer decides once about each half message; if it decides again, nothing is delivered a second
time. A commit of a half message that was put back counts for its newest copy; one that was
discarded is put back first. Producers mostly send the decision one-way; without one, the check
service (``check_service.py``) requests it.

Source: EndTransactionProcessor and AdminBrokerProcessor.resumeCheckHalfMessage, RocketMQ 4.9 and
5.3 (codes, remarks and the order of the checks). RocketMQ delivers again if the producer repeats
the decision, and commits any record that a request names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from cometmq.broker.checks import sent_to_slave
from cometmq.broker.core import Core
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.prerequisites import PrerequisiteError, after_prerequisites
from cometmq.broker.thread_calls import SharedCall
from cometmq.broker.transactions.half_message import HalfMessage, read_half
from cometmq.broker.transactions.half_queue import HalfQueue
from cometmq.model import property_names as names
from cometmq.model.errors import (
    InvalidMessageError,
    InvalidMessageIdError,
    ResponseError,
    StoreError,
)
from cometmq.model.flags import SysFlag
from cometmq.model.topic import HALF_TOPIC, TRANSACTION_DISCARD_TOPIC
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.transaction import (
    EndTransactionRequest,
    ResumeCheckHalfMessageRequest,
)
from cometmq.protocol.message_id import decode_offset_id
from cometmq.remoting import Request, Response
from cometmq.store import SegmentCreateError, SegmentNotReadyError
from cometmq.system.failure_log import RateLimitedLog

if TYPE_CHECKING:
    from cometmq.broker.durability.group_commit import GroupCommit

log = logging.getLogger(__name__)

_UNKNOWN = SysFlag.TRANSACTION_NONE
_COMMIT = SysFlag.TRANSACTION_COMMIT
_ROLLBACK = SysFlag.TRANSACTION_ROLLBACK


class _DecidedError(Exception):
    """A half message is decided already, or was stored again."""


class TransactionHandler:
    """Applies the decisions of producers, and puts half messages back for operators.

    Args:
        core: of the broker; a slave decides nothing.
        halves: the half messages.
        durability: what responses wait for.
        commit: syncs decisions to the disk; None with asynchronous flush.
    """

    def __init__(
        self,
        core: Core,
        halves: HalfQueue,
        durability: DurabilityWait,
        commit: GroupCommit | None = None,
    ) -> None:
        self._halves = halves
        self._store = core.store
        self._segment = SharedCall(core.store.wait_for_segment)
        self._topics = core.topics
        self._stats = core.stats
        self._settings = core.settings
        self._role = core.role
        self._clock = core.clock
        self._cold_reads = core.cold_reads
        self._durability = durability
        self._commit = commit
        self._timings = core.measures.timings
        self._resuming = asyncio.Lock()
        self._refused = RateLimitedLog(log, "decisions were refused")
        self._moved = RateLimitedLog(log, "messages were committed to another queue")

    # --- END_TRANSACTION ------------------------------------------------------------------------

    def end(self, request: Request) -> Response | Awaitable[Response | None] | None:
        """Commit or roll back a half message."""
        header = request.header(EndTransactionRequest)
        try:
            return self._end(request, header)
        except ResponseError as problem:
            self._log_refusal(header, problem)
            raise

    def log_refusals(self) -> None:
        """Log how many refusals, and commits to other queues, were only counted."""
        self._refused.settle()
        self._moved.settle()

    def _log_refusal(self, header: EndTransactionRequest, problem: ResponseError) -> None:
        """Log a refusal: producers send most decisions one-way, and get no response."""
        self._refused.add(
            "decision refused decision=%d group=%.80r id=%.80r offset=%d code=%d: %s",
            header.commit_or_rollback,
            header.producer_group,
            header.msg_id,
            header.commit_log_offset,
            problem.code,
            problem.remark,
        )

    def _end(
        self, request: Request, header: EndTransactionRequest
    ) -> Response | Awaitable[Response | None] | None:
        if header.commit_or_rollback not in (_UNKNOWN, _COMMIT, _ROLLBACK):
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback field wrong: met {header.commit_or_rollback},"
                " expected 0, 8 or 12",
            )
        if self._role.is_slave:
            raise ResponseError(
                ResponseCode.SLAVE_NOT_AVAILABLE, "a slave ends no transactions, its master does"
            )
        if header.commit_or_rollback == _UNKNOWN:
            return None
        if self._durability.refusal is not None:
            raise self._durability.refusal
        self._require_loaded()
        try:
            return self._decide(request, header, self._half_of(header))
        except (PrerequisiteError, _DecidedError):
            pass
        request.is_exclusive = True  # the decisions of a connection keep their order
        return self._end_later(request, header)

    async def _end_later(self, request: Request, header: EndTransactionRequest) -> Response | None:
        """End a transaction after something was read or created, or looked up in the index."""
        try:
            return await self._decide_later(request, header)
        except ResponseError as problem:
            self._log_refusal(header, problem)
            raise

    async def _decide_later(
        self, request: Request, header: EndTransactionRequest
    ) -> Response | None:
        term = self._halves.term

        def require_term() -> None:
            if self._halves.term != term:  # what was read may not be in the log any more
                raise _not_available(StoreError("the role of this broker has changed"))

        def decide() -> Response | None:
            require_term()
            return self._decide(request, header, half)

        half = await after_prerequisites(lambda: self._half_of(header))
        while True:
            try:
                return await after_prerequisites(decide)
            except _DecidedError:  # perhaps just now: a check put it back meanwhile
                copy = await self._undecided_copy(header, half)
            if copy is None:  # that decision may still wait for the disk or for slaves
                require_term()
                return self._durability.respond(request, self._store.written_to)
            half = copy

    async def _undecided_copy(
        self, header: EndTransactionRequest, half: HalfMessage
    ) -> HalfMessage | None:
        """Return the copy that a decision about a decided half message counts for, if any.

        For a commit of one that was discarded, that is put back for it.
        """
        last = await self._last_copy(half)
        if not self._is_decided(last):
            return last
        if header.commit_or_rollback == _ROLLBACK:
            return None
        async with self._resuming:
            last = await self._last_copy(last)  # another request may have resumed it
            if not self._is_decided(last):
                return last
            discarded = await self._newest_copy(last, TRANSACTION_DISCARD_TOPIC)
            if discarded is None or discarded.record.log_offset < last.record.log_offset:
                return None
            return await after_prerequisites(lambda: self._resumed(discarded))

    async def _last_copy(self, half: HalfMessage) -> HalfMessage:
        """Return the copy of a decided half message that is undecided, or decided for good."""
        while True:
            newest = await self._newest_copy(half)
            if newest is None:
                raise ResponseError(
                    ResponseCode.ILLEGAL_OPERATION,
                    "the half message is decided or was stored again, and the index does not have"
                    " it: if it is undecided, a check decides about it",
                )
            if not self._is_decided(newest) or newest.queue_offset == half.queue_offset:
                return newest
            half = newest  # a check may have put it back after it was found

    def _require_loaded(self) -> None:
        if not self._halves.is_loaded:
            raise ResponseError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "Service not available now: the disk was full or cannot be read, and it is not"
                " known yet which transactions are decided",
            )

    def _is_decided(self, half: HalfMessage) -> bool:
        return self._halves.is_decided(half.queue_offset)

    async def _newest_copy(self, half: HalfMessage, topic: str = HALF_TOPIC) -> HalfMessage | None:
        """Look a copy up as `HalfQueue.newest_copy` does; all that is stored before is found."""
        if self._commit is not None:  # with synchronous flush the index shows what is on the disk
            problem = await self._commit.sync_error(self._store.written_to)
            if problem is not None:
                raise _not_available(problem)
        return await self._halves.newest_copy(half, topic)

    def _resumed(self, discarded: HalfMessage) -> HalfMessage:
        """Put a half message that was discarded back, so that it can be decided."""
        try:
            return self._halves.resume(discarded)[0]
        except SegmentNotReadyError:
            raise PrerequisiteError(self._segment) from None
        except (StoreError, InvalidMessageError) as problem:
            raise _not_put_back(str(problem)) from problem

    def _half_of(self, header: EndTransactionRequest) -> HalfMessage:
        """Return the half message that a request names, if it may decide about it."""
        log_offset = header.commit_log_offset
        half = self._message_at(log_offset)
        if half is None or half.record.topic != HALF_TOPIC:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"
            )
        if not header.from_transaction_check and self._is_too_late(half):
            raise ResponseError(
                ResponseCode.ILLEGAL_OPERATION,
                "the immunity time of the half message is over, a check decides about it",
            )
        if half.group != header.producer_group:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong"
            )
        if half.record.log_offset != log_offset:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        return half

    def _message_at(self, log_offset: int) -> HalfMessage | None:
        """Return the message with a physical offset, of any topic; None for none.

        Raises:
            PrerequisiteError: it has to be read from the disk first.
        """
        self._cold_reads.require_in_memory(self._store.cold_record(log_offset))
        data = self._store.record_at(log_offset) if log_offset >= 0 else None
        return None if data is None else read_half(data)

    def _is_too_late(self, half: HalfMessage) -> bool:
        """Return whether the time is over in which a producer decides without a check."""
        immunity_ms = half.immunity_ms(self._settings().transaction_timeout_ms)
        age_ms = self._clock.now_ms() - half.record.born_time_ms
        return immunity_ms is not None and age_ms > immunity_ms

    def _decide(
        self, request: Request, header: EndTransactionRequest, half: HalfMessage
    ) -> Response | None:
        """Store the decision about an undecided half message.

        Raises:
            _DecidedError: it is decided, put back or discarded.
        """
        if self._is_decided(half):
            raise _DecidedError
        try:
            if header.commit_or_rollback == _COMMIT:
                topic, sent_to = half.target()
                queue_id = self._queue_of(topic, sent_to, half.record.log_offset)
                message, (final, stored) = self._halves.commit(half, topic, queue_id)
                if queue_id != sent_to:
                    self._moved.add(
                        "message committed to another queue, its topic has fewer by now"
                        " topic=%.80s id=%.80r sent_to=%d queue=%d",
                        *(topic, half.unique_key, sent_to, queue_id),
                    )
                self._stats.put(message.topic, message.queue_id, 1, final.size_bytes)
                self._timings.committed(topic, self._clock.now_ms() - half.record.born_time_ms)
            else:
                stored = self._halves.roll_back(half)
                self._timings.rolled_back(half.properties.get(names.REAL_TOPIC, ""))
        except SegmentNotReadyError:
            raise PrerequisiteError(self._segment) from None
        except SegmentCreateError as problem:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"Create mapped file failed. {problem}"
            ) from problem
        except InvalidMessageError as problem:
            raise ResponseError(
                ResponseCode.MESSAGE_ILLEGAL,
                "The message is illegal, maybe msg body or properties length not matched."
                f" {problem}",
            ) from problem
        except StoreError as problem:
            raise _not_available(problem) from problem
        return self._durability.respond(request, stored.log_offset_end)

    def _queue_of(self, topic: str, queue_id: int, log_offset: int) -> int:
        """Return the queue of a topic to which a half message at a log offset is committed.

        Raises:
            ResponseError: the topic was deleted; RocketMQ stores the message where no consumer
                reads it.
        """
        found = self._topics.queue_for(topic, queue_id, log_offset)
        if found is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic[:300]}] was deleted: the transaction stays undecided until the topic"
                " is created again",
            )
        return found

    # --- RESUME_CHECK_HALF_MESSAGE --------------------------------------------------------------

    async def resume(self, request: Request) -> Response | None:
        """Put a half message, mostly one that was discarded, back into the half queue."""
        header = request.header(ResumeCheckHalfMessageRequest)
        if self._role.is_slave:
            raise sent_to_slave()
        if self._durability.refusal is not None:
            raise self._durability.refusal
        self._require_loaded()
        try:
            log_offset = decode_offset_id(header.msg_id or "").log_offset
        except InvalidMessageIdError as problem:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(problem)) from problem
        async with self._resuming:  # else two requests might put back the same message
            named = await after_prerequisites(lambda: self._undelivered_at(log_offset))
            newest = await self._newest_copy(named)
            return await after_prerequisites(lambda: self._put_back(request, named, newest))

    def _undelivered_at(self, log_offset: int) -> HalfMessage:
        """Return the record that a request names, if it is a half message or one discarded."""
        half = self._message_at(log_offset)
        if half is None or half.record.topic not in (HALF_TOPIC, TRANSACTION_DISCARD_TOPIC):
            raise _not_put_back(f"no half message has the physical offset {log_offset}")
        return half

    def _put_back(
        self, request: Request, named: HalfMessage, newest: HalfMessage | None
    ) -> Response | None:
        """Store a half message again, as one that was never checked.

        Args:
            request: the request.
            named: the record that it names.
            newest: the newest half message that is a copy of it; None if none is known.
        """
        half = named if newest is None else newest
        is_half = half.record.topic == HALF_TOPIC
        try:
            if is_half and not self._is_decided(half):
                copy = half.put_back(0)
                (stored,) = self._halves.replace([(half, copy.waiting())])
            elif is_half and half.record.log_offset >= named.record.log_offset:
                raise _not_put_back(
                    "it is decided or was discarded; expected an undecided half message, or one"
                    f" in {TRANSACTION_DISCARD_TOPIC} that was not put back before"
                )
            else:
                stored = self._halves.resume(named)[1]
        except SegmentNotReadyError:
            raise PrerequisiteError(self._segment) from None
        except (StoreError, InvalidMessageError) as problem:
            raise _not_put_back(str(problem)) from problem
        return self._durability.respond(request, stored.log_offset_end)


def _not_available(problem: StoreError) -> ResponseError:
    return ResponseError(
        ResponseCode.SERVICE_NOT_AVAILABLE, f"Service not available now. {problem}"
    )


def _not_put_back(why: str) -> ResponseError:
    return ResponseError(
        ResponseCode.SYSTEM_ERROR, f"Put message back to {HALF_TOPIC} failed. {why}"
    )
