"""Checks undecided half messages: requests the decision from a producer of their group.

A round begins every transactionCheckInterval. It goes through the undecided half messages in their
order. One that is old enough is stored again at the end of the half queue, counted once more, and
then the check is sent to a producer of its group, with the new offsets. One that was checked
transactionCheckMax times, or is older than the log's files may become, is discarded: it is moved to
``TRANS_CHECK_MAX_TIME_TOPIC``. A round ends at the first one that is younger than
transactionTimeOut, because those behind it are younger.

A half message with an immunity time of its own is not stored again before that time is over, and
the committed offset stays before it; the round continues behind it. RocketMQ stores it again, and
then may deliver it twice.

With synchronous flush or replication, a check is sent when the put-back message is on the disk and
on the slaves that the rule of sends asks for. If slaves are missing or late, the check is sent
anyway, and the rest of the round does not wait for them. A check that is held back would count, and
after transactionCheckMax such checks the message would be discarded. Nothing is lost: the log of a
slave is a beginning of this log, so a slave without the copy has the original undecided. While the
broker refuses decisions because the in-sync set has too few members, nothing is checked.

The work is divided into slices, so that a million half messages never keep the event loop busy.
Source: TransactionalMessageServiceImpl.check, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from cometmq.broker.clients.members import Member
from cometmq.broker.core import Core
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.thread_calls import SharedCall
from cometmq.broker.topics.table import internal_topic
from cometmq.broker.transactions.half_message import HALF_QUEUE, HalfMessage, read_half
from cometmq.broker.transactions.half_queue import (
    GROUP,
    LATEST_MS,
    HalfQueue,
    queue_offset_of,
    records_of,
)
from cometmq.model.errors import CometError, InvalidMessageError, RemotingError
from cometmq.model.flags import SysFlag
from cometmq.model.topic import HALF_TOPIC, TRANSACTION_DISCARD_TOPIC
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.compression import (
    CompressionError,
    InflatedTooLargeError,
    decompress_body,
)
from cometmq.protocol.headers.transaction import CheckTransactionStateRequest
from cometmq.protocol.message_id import encode_offset_id
from cometmq.protocol.record import RecordError, encode_record
from cometmq.remoting.slices import Slices, off_loop
from cometmq.store import Appended, NewRecord, SegmentNotReadyError, StoreSettings
from cometmq.system.failure_log import FailureLog, RateLimitedLog

log = logging.getLogger(__name__)

ROUND_S_MAX = 60.0
"""A round that takes longer ends; the next one continues."""
WRITABLE_S_MAX = 1.0
"""How long a round waits until a group reads its requests; then it sends the group none."""
WAITS_S_MAX = 10.0
"""How long a round waits for all groups together."""
MEMBERS_MAX = 3
"""Members of a group that are considered for one request."""
NAME_CHARS_MAX = 255
"""The characters of a name in the log: producers set any group in a half message."""
IMMUNE_MAX = 2_000_000
"""Half messages that may wait for the end of their immunity time; 16 bytes each."""
IMMUNE_AT_ONCE = 1_000
"""Immune half messages that are examined before other requests are handled."""
UNSTORABLE_MAX = 10_000
"""Half messages that cannot be stored again, of which each is logged once."""
UNSENT_MAX = 256
UNSENT_BYTES = 4 * 1024 * 1024
"""Requests that wait together until their half messages are on the disk and on slaves."""
INFLATED_AT_ONCE_BYTES = 2 * 1024
"""Compressed bodies up to this size are decompressed in the event loop: they may become a thousand
times as large."""
INFLATED_BYTES_MAX = 8 * 1024 * 1024
"""A body that would become larger is sent compressed: clients close a connection with a frame of
more than 16 MiB."""
_MS_PER_HOUR = 3_600_000


class _Plan(NamedTuple):
    """The changes that a round makes to some half messages; they are applied without a pause."""

    to_check: list[tuple[HalfMessage, HalfMessage]]
    """Half messages to check, each with its copy, which is stored."""
    to_discard: list[HalfMessage]
    immune: list[tuple[int, int]]
    """Queue offsets of half messages with an immunity time, and when it ends."""
    decided: list[int]
    """Queue offsets of half messages that are decided under another offset."""
    stop: int
    """The first offset that the plan does not cover."""
    is_last: bool
    """Whether the half message there is too young, so that the round ends."""


class _Check(NamedTuple):
    """A half message that was put back, and is to be checked."""

    half: HalfMessage
    stored: Appended


class _RoleChangedError(CometError):
    """The role has changed during a round: what the round has read may not be in the log now."""


class CheckService:
    """Checks the undecided half messages of a broker.

    Args:
        core: of the broker; a slave checks nothing.
        halves: the half messages.
        durability: what the check of a half message that was put back waits for.
        may_send: returns whether a member may send to a topic; a check shows it the half message,
            so it must be allowed to. None if every member may.
    """

    def __init__(
        self,
        core: Core,
        halves: HalfQueue,
        durability: DurabilityWait,
        may_send: Callable[[Member, str], bool] | None = None,
    ) -> None:
        self._may_send = may_send
        self._halves = halves
        self._store = core.store
        self._producers = core.producers
        self._topics = core.topics
        self._role = core.role
        self._settings = core.settings
        self._stored = core.configuration.reader_of(StoreSettings)
        self._clock = core.clock
        self._durability = durability
        self._asks_slaves = True
        """Whether checks wait for slaves; not in the rest of a round in which they were late."""
        self._scanned_to = 0
        """The first half message that no round has examined."""
        self._immune = array("q")
        """Undecided half messages before it that wait: for the end of their immunity time, or
        because the store never takes their copies."""
        self._immune_until = array("q")
        """When each of those may be checked."""
        self._term = halves.term
        """The term of the half queue in which the round began."""
        self._last_member = 0
        self._unsent: list[_Check] = []
        self._unsent_bytes = 0
        self._unstorable: set[int] = set()
        """Queue offsets of half messages that the store never takes again, and that are logged."""
        self._segment = SharedCall(core.store.wait_for_segment)
        self._unresponsive: set[str] = set()
        """Groups that do not read their requests, in this round."""
        self._waits_s = 0.0
        """How long this round may still wait for groups."""
        self._strangers = RateLimitedLog(log, "checks were not sent, no member may send")
        self._failures = FailureLog(
            log,
            fails="transaction checks failed, retrying",
            works="transaction checks work again",
            name="group",
        )

    def role_changed(self) -> None:
        """Begin again with the first half message; call it after each change of the role."""
        self._scanned_to = 0
        self._immune, self._immune_until = array("q"), array("q")

    async def run(self) -> None:
        """Make one round, once it is known which half messages are decided."""
        if self._role.is_slave:
            return
        try:
            if await self._halves.load():
                await self._round()
            self._failures.succeeded(GROUP)
        except _RoleChangedError:
            log.info("transaction checks ended: the role has changed")
        except CometError as problem:
            self._failures.failed(GROUP, problem)

    async def _round(self) -> None:
        self._strangers.settle()
        self._unresponsive.clear()
        self._waits_s = WAITS_S_MAX
        self._asks_slaves = True
        self._term = self._halves.term
        slices = Slices()
        failure = None
        try:
            async with asyncio.timeout(ROUND_S_MAX):
                await self._check_all(slices)
        except TimeoutError:
            log.info("transaction checks continue in the next round offset=%d", self._scanned_to)
        except CometError as problem:
            failure = problem
        await self._send_requests()
        self._require_same_role()
        await self._halves.commit_offsets(self._first_undecided(), slices)
        if failure is not None:
            raise failure

    def _require_same_role(self) -> None:
        """Check this after each wait that comes before a change of what rounds know.

        Raises:
            _RoleChangedError: this broker has become a slave since, and perhaps a master again.
        """
        if self._term != self._halves.term:
            raise _RoleChangedError("the role has changed during a round of transaction checks")

    def _first_undecided(self) -> int:
        return self._immune[0] if self._immune else self._halves.first_open(self._scanned_to)

    # --- a round --------------------------------------------------------------------------------

    async def _check_all(self, slices: Slices) -> None:
        end = self._store.bounds(HALF_TOPIC, HALF_QUEUE)[1]
        await self._check_immune(slices)
        self._require_same_role()
        is_last = False
        while not is_last and len(self._immune) < IMMUNE_MAX:
            offset = self._halves.first_open(self._scanned_to)
            if offset >= end:
                self._scanned_to = max(end, self._scanned_to)
                return
            is_last = not await self._check_from(offset, end, slices)

    async def _check_immune(self, slices: Slices) -> None:
        """Check those whose immunity time is over."""
        immune, until = self._immune, self._immune_until
        self._immune, self._immune_until = array("q"), array("q")
        now_ms = self._clock.now_ms()
        done = 0
        try:
            while done < len(immune):
                offset, until_ms = immune[done], until[done]
                if done % IMMUNE_AT_ONCE == 0:
                    await slices.pause()
                    self._require_same_role()
                if self._halves.is_decided(offset):
                    pass
                elif until_ms >= now_ms:
                    self._immune.append(offset)
                    self._immune_until.append(until_ms)
                else:
                    await self._check_from(offset, offset + 1, slices)
                done += 1
        finally:  # the rest waits for the next round if the store refuses
            if self._term == self._halves.term:
                self._immune.extend(immune[done:])
                self._immune_until.extend(until[done:])

    async def _check_from(self, offset: int, end: int, slices: Slices) -> bool:
        """Check some half messages from an offset on; return False at one that is too young."""
        found = await self._halves.read(offset, end - offset)
        self._require_same_role()
        if found is None:
            self._scanned_to = max(self._scanned_to, offset + 1)
            return True
        stop = min(found.next_begin_offset, end)
        try:
            halves = [
                read_half(data)
                for data in records_of(found)
                if not self._halves.is_decided(queue_offset_of(data))
            ]
        except RecordError as problem:
            return await self._pass_over_damaged(offset, stop, slices, problem)
        while True:
            await slices.pause()
            self._require_same_role()
            plan = self._plan(halves, end, stop)
            if plan.to_discard and self._topics.get(TRANSACTION_DISCARD_TOPIC) is None:
                await self._topics.create_all([internal_topic(TRANSACTION_DISCARD_TOPIC, 1)])
                continue
            waiting = self._unready_members(plan)
            if waiting is not None:
                await self._until_ready(*waiting)
                continue
            if (plan.to_check or plan.to_discard) and self._durability.refusal is not None:
                raise self._durability.refusal
            if self._topics.gap is not None:  # the offset of a copy does not name the gap any more
                for half, _ in plan.to_check:
                    self._topics.gap.restore(*half.named_target(), half.record.log_offset)
            try:
                self._apply(plan)
            except SegmentNotReadyError:
                await self._segment()
                continue
            await self._send_requests(all_of_them=False)
            return not plan.is_last

    async def _pass_over_damaged(
        self, offset: int, stop: int, slices: Slices, problem: RecordError
    ) -> bool:
        """Check half messages one by one of which the disk has damaged some."""
        if stop - offset <= 1:
            log.error("a half message cannot be read offset=%d: %s", offset, problem)
            self._halves.skip(offset)
            self._scanned_to = max(self._scanned_to, offset + 1)
            return True
        for at in range(offset, stop):
            if not self._halves.is_decided(at) and not await self._check_from(at, at + 1, slices):
                return False
        return True

    def _plan(self, halves: list[HalfMessage], end: int, stop: int) -> _Plan:
        now_ms = self._clock.now_ms()
        settings = self._settings()
        life_ms = self._stored().file_reserved_hours * _MS_PER_HOUR
        to_check: list[tuple[HalfMessage, HalfMessage]] = []
        to_discard: list[HalfMessage] = []
        immune: list[tuple[int, int]] = []
        decided: list[int] = []
        for half in halves:
            at, born_ms = half.queue_offset, half.record.born_time_ms
            if at >= end or self._halves.is_decided(at):
                continue
            if self._halves.is_decided_copy(half):
                decided.append(at)
                continue
            times = half.times_checked
            if times >= settings.transaction_check_max or now_ms - born_ms > life_ms:
                to_discard.append(half)
                continue
            immunity_ms = half.immunity_ms(settings.transaction_timeout_ms)
            if immunity_ms is None:
                if 0 <= now_ms - born_ms <= settings.transaction_timeout_ms:
                    return _Plan(to_check, to_discard, immune, decided, at, True)
            elif now_ms - born_ms <= immunity_ms:
                until_ms = born_ms + min(immunity_ms, life_ms)
                immune.append((at, min(until_ms, LATEST_MS)))  # producers send any number
                continue
            to_check.append((half, half.put_back(max(times, 0) + 1)))
        return _Plan(to_check, to_discard, immune, decided, stop, False)

    def _apply(self, plan: _Plan) -> None:
        """Store what is put back and discarded with one write.

        Raises:
            StoreError: the store does not take it.
        """
        pairs: list[tuple[HalfMessage, NewRecord]] = [
            *((half, copy.waiting()) for half, copy in plan.to_check),
            *((half, half.discarded()) for half in plan.to_discard),
        ]
        stored = self._store_again(pairs)
        immune = list(plan.immune)
        for (half, copy), appended in zip(plan.to_check, stored, strict=False):
            if appended is None:
                immune.append((half.queue_offset, 0))  # it waits, and so does the committed offset
            else:
                self._unsent.append(_Check(copy, appended))
                self._unsent_bytes += appended.size_bytes
        discarded: list[str] = []
        for half, appended in zip(plan.to_discard, stored[len(plan.to_check) :], strict=True):
            if appended is None:
                immune.append((half.queue_offset, 0))
            else:
                discarded.append(f"{half.group}/{half.unique_key}")
        if discarded:
            log.warning(
                "half messages discarded count=%d group/id=%s",
                len(discarded),
                ", ".join(discarded),
            )
        for at in plan.decided:
            self._halves.skip(at)
        for at, until_ms in sorted(immune):
            self._immune.append(at)
            self._immune_until.append(until_ms)
        self._scanned_to = max(self._scanned_to, plan.stop)

    def _store_again(self, pairs: list[tuple[HalfMessage, NewRecord]]) -> Sequence[Appended | None]:
        """Store half messages again; the result is None for one that the store never takes."""
        if not pairs:
            return []
        try:
            return self._halves.replace(pairs)
        except InvalidMessageError as problem:
            if len(pairs) == 1:
                self._log_unstorable(pairs[0][0], problem)
                return [None]
            return [stored for pair in pairs for stored in self._store_again([pair])]

    def _log_unstorable(self, half: HalfMessage, problem: InvalidMessageError) -> None:
        """Log once that a half message cannot be stored again: each round finds it."""
        if half.queue_offset in self._unstorable:
            return
        if len(self._unstorable) >= UNSTORABLE_MAX:
            self._unstorable.clear()
        self._unstorable.add(half.queue_offset)
        log.error(
            "a half message cannot be stored again, it waits for a decision id=%s offset=%d: %s",
            *(half.unique_key, half.queue_offset, problem),
        )

    # --- requests -------------------------------------------------------------------------------

    def _unready_members(self, plan: _Plan) -> tuple[str, list[Member]] | None:
        """Return a group that has members, but none that reads its requests."""
        for group in {half.group for half, _ in plan.to_check} - self._unresponsive:
            members = self._producers.members(group)
            if members and not any(member.connection.ready for member in members):
                return group, members
        return None

    async def _until_ready(self, group: str, members: list[Member]) -> None:
        clock = asyncio.get_running_loop().time
        limit_s, began_s = max(min(WRITABLE_S_MAX, self._waits_s), 0.0), clock()
        try:
            await members[self._last_member % len(members)].connection.until_writable(limit_s)
        except RemotingError as problem:
            self._unresponsive.add(group)
            log.warning(
                "a producer group gets no checks in this round, it reads no requests group=%s: %s",
                *(group, problem),
            )
        finally:
            self._waits_s -= clock() - began_s

    async def _send_requests(self, *, all_of_them: bool = True) -> None:
        """Send the checks of what was put back.

        Args:
            all_of_them: else, if they are to be confirmed, they wait until that serves many.
        """
        if not self._unsent:
            return
        is_synced = True
        if self._durability.waits():
            is_few = len(self._unsent) < UNSENT_MAX and self._unsent_bytes < UNSENT_BYTES
            if is_few and not all_of_them:
                return
            last = self._unsent[-1].stored  # decisions find what is on the disk
            is_synced, self._asks_slaves = await self._durability.confirmed_by(
                last.log_offset_end, asks_slaves=self._asks_slaves
            )
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        members: dict[tuple[str, str], list[Member]] = {}  # a group may have ten thousand
        slices = Slices()
        for check in unsent if is_synced else ():
            group, topic = check.half.group, check.half.named_target()[0]
            if (group, topic) not in members:
                members[group, topic] = await self._allowed_members(group, topic, slices)
            member = self._next_member(members[group, topic])
            if member is not None:
                await self._send_request(check, member)

    async def _allowed_members(self, group: str, topic: str, slices: Slices) -> list[Member]:
        """Return the members of a group that may send to a topic; all if that is not checked."""
        members = self._producers.members(group)
        if self._may_send is None:
            return members
        decided: dict[object, bool] = {}
        allowed: list[Member] = []
        async for member in slices.each(members):
            sender = member.sender
            if sender not in decided:
                decided[sender] = self._may_send(member, topic)
            if decided[sender]:
                allowed.append(member)
        if members and not allowed:
            self._strangers.add(
                "no check is sent, no member of the group may send to the topic group=%s topic=%s",
                *(group[:NAME_CHARS_MAX], topic[:NAME_CHARS_MAX]),
            )
        return allowed

    async def _send_request(self, check: _Check, member: Member) -> None:
        half, stored = check
        topic, queue_id = half.named_target()
        record = half.record
        body, sys_flag = record.body, record.sys_flag
        if sys_flag & SysFlag.COMPRESSED:
            body, sys_flag = await _decompressed(body, sys_flag, half.unique_key)
        header = CheckTransactionStateRequest(
            tran_state_table_offset=stored.queue_offset,
            commit_log_offset=stored.log_offset,
            msg_id=half.unique_key,
            transaction_id=half.unique_key,
            offset_msg_id=encode_offset_id(record.store_host, stored.log_offset),
            topic=HALF_TOPIC,
            bname=self._settings().broker_name,
        )
        data = encode_record(
            topic.encode(),
            body,
            record.properties,
            queue_id=queue_id,
            queue_offset=stored.queue_offset,
            log_offset=stored.log_offset,
            born_time_ms=record.born_time_ms,
            born_host=record.born_host,
            store_time_ms=stored.store_time_ms,
            store_host=record.store_host,
            flag=record.flag,
            sys_flag=sys_flag,
            reconsume_times=record.reconsume_times,
            prepared_offset=record.prepared_offset,
            crc=record.body_crc,
        )
        member.connection.oneway(RequestCode.CHECK_TRANSACTION_STATE, header, data)

    def _next_member(self, members: list[Member]) -> Member | None:
        """Return the next member of a group, in turn, that reads its requests; None for none."""
        for _ in range(min(MEMBERS_MAX, len(members))):
            self._last_member += 1
            member = members[self._last_member % len(members)]
            if member.connection.ready:
                return member
        return None


async def _decompressed(body: bytes, sys_flag: int, message_id: str) -> tuple[bytes, int]:
    """Return a body as its producer made it, and its flag.

    The producer sees a body that cannot be decompressed as it is, and decompresses a large one.
    """
    inflate = partial(decompress_body, body, sys_flag, inflated_bytes_max=INFLATED_BYTES_MAX)
    try:
        body = inflate() if len(body) <= INFLATED_AT_ONCE_BYTES else await off_loop(inflate)
    except InflatedTooLargeError:
        return body, sys_flag
    except CompressionError as problem:
        log.warning("cannot decompress a half message id=%s: %s", message_id, problem)
    return body, sys_flag & ~SysFlag.COMPRESSED
