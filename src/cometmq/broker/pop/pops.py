# cython: annotation_typing=False
"""Handles POP_MESSAGE (200050) and PEEK_MESSAGE (200052): delivers messages of a topic to a group.

A pop reads at the committed offset of its group and moves it behind what it delivers; a check point
for each queue says what is in flight. Nothing is changed before all of it is read, so a pop that
has to wait for the disk simply runs again.

    retry topics    are read first in some of the pops, in the others if the topic has too little
    at the end      the pop is held, and runs again when a message arrives

Source: PopMessageProcessor and PeekMessageProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.checks import check_number, invalid, sent_to_slave
from cometmq.broker.filters.subscriptions import PARSE_FAILED, matcher_of
from cometmq.broker.pop.check_points import CheckPoint, CheckPoints
from cometmq.broker.pop.held_pops import POLL_MS_MAX, HeldPop
from cometmq.broker.pop.mixed_modes import MixedModes
from cometmq.broker.pop.part import PopPart, PopState
from cometmq.broker.pop.receipts import (
    NORMAL,
    ORDERED,
    RETRY_V1,
    RETRY_V2,
    offsets_text,
    receipt_text,
    retry_topic_of,
)
from cometmq.broker.pop.records import AckOf
from cometmq.broker.prerequisites import (
    CreationRequiredError,
    PrerequisiteError,
    after_prerequisites,
    run_and_repeat,
)
from cometmq.broker.topics.table import INTERNAL_NAME_CHARS_MAX
from cometmq.model import property_names as names
from cometmq.model.errors import ResponseError, StoreError
from cometmq.model.topic import RETRY_PREFIX, Perm, TopicConfig
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.frame import BINARY_HEADER
from cometmq.protocol.headers.pop import PeekMessageRequest, PopMessageRequest
from cometmq.protocol.properties import encode_properties, join_properties, marker, value_of
from cometmq.protocol.record import encode_record, split_record
from cometmq.protocol.subscription import ALL_TAGS
from cometmq.remoting import Supervisor
from cometmq.remoting.connection import respond_with_failure
from cometmq.remoting.requests import DECIMAL, TEXT, Request, Response, SuccessFormat
from cometmq.remoting.slices import SLICE_S, Slices
from cometmq.remoting.wire import Slice
from cometmq.store import GetStatus, Matcher
from cometmq.store.message_store import bring_in
from cometmq.store.queues.batch_topics import holds_batches
from cometmq.store.queues.queue_reader import RESPONSE_BYTES_MAX, GetResult

if TYPE_CHECKING:
    from cometmq.broker.pop.config import PopSettings

COUNT_MAX: Final = 32
LATE_MS: Final = 500
INVISIBLE_MS_MAX: Final = 3 * 24 * 3_600_000
FROM_MAX: Final = 1
COLD_READS_MAX: Final = 6
TOGETHER_MAX: Final = 32
"""Pops whose check points are stored with one write."""
DISK_WAITS_MAX: Final = 1024
"""Pops that wait for a file, or for messages that are not in memory."""
QUEUES_AT_ONCE: Final = 256
"""Further queues of a topic are read in slices."""
REVIVE_BOUNDS_MS: Final = (15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000)
"""Check points with similar invisible times share a queue of the revive topic: a broker of RocketMQ
that takes over reads each queue in order, and waits for the first that is not due."""
REPLACED: Final = (
    "another master may be elected, and may have delivered these messages; they are redelivered if"
    " this broker stays the master"
)
GROUP_DELETED: Final = "the group was deleted while its pop was held"
_EMPTY_REMARK: Final = "NO_MESSAGE_IN_QUEUE"
_FOUND_REMARK: Final = "FOUND"
_NUMBER_FIELDS: Final = ("popTime", "invisibleTime", "reviveQid", "restNum")
_OFFSET_FIELDS: Final = ("startOffsetInfo", "msgOffsetInfo")
_FOUND = GetStatus.FOUND
_HEAD = Struct(">i16xq")
"""The size and the queue offset of a record."""
_POP_CK = marker(names.POP_CK.encode())
_MOVED: Final = (
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.OFFSET_FOUND_NULL,
)
_PASSED: Final = (
    GetStatus.NO_MATCHED_MESSAGE,
    GetStatus.OFFSET_FOUND_NULL,
    GetStatus.MESSAGE_WAS_REMOVING,
)


class Taken:
    """The messages of one queue that a pop delivers."""

    __slots__ = ("flag", "found", "offsets", "queue_id", "start", "topic")

    def __init__(
        self,
        flag: str,
        topic: str,
        queue_id: int,
        start: int,
        offsets: range | tuple[int, ...],
        found: GetResult,
    ) -> None:
        self.flag = flag
        self.topic = topic
        self.queue_id = queue_id
        self.start = start
        self.offsets = offsets
        self.found = found


class _Reading:
    """What one run of a pop has read."""

    def __init__(
        self, left: int, settings: PopSettings, points: CheckPoints, *, is_peek: bool = False
    ) -> None:
        self.left = left
        """How many more messages it delivers."""
        self.settings = settings
        self.points = points
        """What was in flight; others once the role of the broker has changed."""
        self.is_peek = is_peek
        """Whether nothing is changed."""
        self.rest = 0
        """How many messages are left behind."""
        self.taken: list[Taken] = []
        self.is_full = False
        """Whether no further queue is read."""
        self.reads_on = False
        """Whether there may be messages although it has found none: others took those that it has
        read from the disk, or none of them matches."""
        self.blocked_to_ms = 0
        """When the first queue is free again that an ordered pop could not read; 0 for none."""


class Delivery:
    """Messages that a pop takes, and their check points."""

    __slots__ = ("now_ms", "points", "pop", "pop_ms", "reading", "revive_queue")

    def __init__(self, pop: Pop, reading: _Reading, now_ms: int, pop_ms: int, queue: int) -> None:
        header = pop.header
        self.pop = pop
        self.reading = reading
        self.now_ms = now_ms
        self.pop_ms = pop_ms
        self.revive_queue = queue
        self.points = [
            CheckPoint(
                pop.group,
                each.topic,
                each.queue_id,
                each.start,
                each.offsets,
                pop_ms,
                header.invisible_time,
                queue,
            )
            for each in reading.taken
        ]


class Pop(HeldPop):
    """A pop, and the request that it responds to."""

    def __init__(
        self, handler: PopHandler, request: Request, header: PopMessageRequest, ends_ms: int
    ) -> None:
        super().__init__(
            header.consumer_group, header.topic, header.queue_id, request.connection, ends_ms, ""
        )
        self.handler = handler
        self.request = request
        self.header = header
        self.read_before: Any = None
        """What was read in slices."""
        self.cold_reads = 0
        self.accounts: object = None
        """The state of the accounts by which it was checked."""
        self.unblocking: asyncio.TimerHandle | None = None
        """Notifies held pops when a queue is free again."""

    def rerun(self) -> None:
        """Run again when something may be there, or the polling time is over."""
        self.handler.rerun(self)

    def fail(self, problem: Exception) -> None:
        """Respond with an error."""
        if not self.request.connection.closed:
            respond_with_failure(self.request, problem)


class PopHandler(PopPart):
    """Handles pops."""

    def __init__(self, state: PopState) -> None:
        super().__init__(state)
        core = self._core
        self._groups = core.groups
        self._cold_reads = core.cold_reads
        self._stats = core.stats
        self._settings = state.settings
        self._access = state.access
        self.mixed = MixedModes()
        """Groups that pull and pop a topic."""
        self._tasks = Supervisor("pop")
        self._new_pops: deque[Pop] = deque()
        self._waits_for_end = False
        fields = dict.fromkeys(_NUMBER_FIELDS, DECIMAL) | dict.fromkeys(_OFFSET_FIELDS, TEXT)
        self._found_json = SuccessFormat(fields, _FOUND_REMARK)
        self._found_binary = SuccessFormat(fields, _FOUND_REMARK, serialization=BINARY_HEADER)

    # --- requests -------------------------------------------------------------------------------

    def pop(self, request: Request) -> None:
        """Handle POP_MESSAGE: the pops of one iteration of the event loop are stored together."""
        self._new_pops.append(self._new(request))
        if len(self._new_pops) >= TOGETHER_MAX:
            self._run_new()
        elif not self._waits_for_end:
            self._waits_for_end = True
            asyncio.get_running_loop().call_soon(self._end_iteration)

    def _end_iteration(self) -> None:
        self._waits_for_end = False
        self._run_new()
        if self._new_pops and not self._waits_for_end:
            self._waits_for_end = True
            asyncio.get_running_loop().call_soon(self._end_iteration)

    def _run_new(self) -> None:
        """Run new pops, and store what they take with one write."""
        together: list[Delivery] = []
        end_s = monotonic() + SLICE_S
        while self._new_pops and monotonic() < end_s:
            pop = self._new_pops.popleft()
            if pop.request.connection.closed:
                continue
            try:
                response = self._run(pop, together)
            except PrerequisiteError as needed:
                self._repeat(pop, needed)
            except Exception as problem:
                respond_with_failure(pop.request, problem)
            else:
                if response is not None:
                    pop.request.reply(response)
        if together:
            self._store_together(together)

    def _store_together(self, together: list[Delivery]) -> None:
        try:
            log_end = self._store_points(together)
        except PrerequisiteError as needed:
            for each in together:
                self._repeat(each.pop, needed)
            return
        except Exception as problem:
            for each in together:
                self._failed(each.pop, problem)
            return
        for each in together:
            try:
                response = self._deliver(each, log_end)
            except Exception as problem:
                respond_with_failure(each.pop.request, problem)
            else:
                if response is not None:
                    each.pop.request.reply(response)

    def _failed(self, pop: Pop, problem: Exception) -> None:
        """Respond with an error; what the pop has not taken is for another one that is held."""
        pop.fail(problem)
        self._held.notify(pop.group, pop.name, pop.queue_id)

    def _new(self, request: Request) -> Pop:
        header = request.header(PopMessageRequest)
        now_ms = self._clock.now_ms()
        born_ms = header.born_time or now_ms
        poll_ms = min(max(header.poll_time, 0), POLL_MS_MAX)
        if now_ms - born_ms - poll_ms > LATE_MS:
            raise ResponseError(
                ResponseCode.POLLING_TIMEOUT,
                f"the broker[{self._core.address.host}] pop message is timeout too much",
            )
        pop = Pop(self, request, header, min(born_ms, now_ms) + poll_ms)
        if self._access is not None:
            pop.accounts = self._access.state
        return pop

    def rerun(self, pop: Pop) -> None:
        """Run a pop again that was held."""
        self._held.runs(pop)
        if pop.unblocking is not None:
            pop.unblocking.cancel()
            pop.unblocking = None
        if pop.request.connection.closed:
            self._held.notify(pop.group, pop.name, pop.queue_id)
            return
        request = pop.request
        request.is_held = True
        pop.cold_reads = 0
        try:
            access = self._access
            if access is not None and access.state is not pop.accounts:
                key = request.command.access_key
                access.check_pull_again(request, key, pop.name, pop.group)
                pop.accounts = access.state
            response = self._run(pop)
        except CreationRequiredError:
            request.reply(Response(ResponseCode.POLLING_TIMEOUT, GROUP_DELETED))
            self._held.notify(pop.group, pop.name, pop.queue_id)
            return
        except PrerequisiteError as needed:
            self._repeat(pop, needed)
            return
        except Exception as problem:
            self._failed(pop, problem)
            return
        if response is not None:
            request.reply(response)

    def _repeat(self, pop: Pop, needed: PrerequisiteError) -> None:
        """Run a pop again once what it needs was read or created."""
        if len(self._tasks) >= DISK_WAITS_MAX:
            remark = f"{DISK_WAITS_MAX} pops wait for the disk"
            pop.request.reply(Response(ResponseCode.POLLING_FULL, remark))
            return

        async def run() -> None:
            try:
                response = await run_and_repeat(needed, lambda: self._run(pop), pop.request)
            except Exception as problem:
                self._failed(pop, problem)
                return
            if response is not None and not pop.request.connection.closed:
                pop.request.reply(response)

        self._tasks.spawn(run(), "pop")

    async def stop(self) -> None:
        """End the pops that wait for the disk."""
        await self._tasks.cancel()

    def _run(self, pop: Pop, together: list[Delivery] | None = None) -> Response | None:
        """Return the response; None if it was sent already or follows, or if the pop is held.

        Args:
            pop: the pop.
            together: gets what the pop takes, if others store it; None to store it here.
        """
        header = pop.header
        self.check(header.topic, header.consumer_group, header.queue_id, header.max_msg_nums)
        check_number("maxMsgNums", header.max_msg_nums, 0, COUNT_MAX)
        check_number("invisibleTime", header.invisible_time, 0, INVISIBLE_MS_MAX)
        matcher = self._matcher(header)
        if self._role.is_slave:
            raise sent_to_slave()
        if (refusal := self._durability.refusal) is not None:
            raise refusal  # another master may have been elected, and have delivered these messages
        self._log.require_loaded()
        self._store.appender.finish_deferred()
        now_ms = self._clock.now_ms()
        settings = self._settings()
        is_full = len(self._log.points) >= settings.pop_check_points_max
        left = 0 if is_full else header.max_msg_nums
        reading = self._reading(pop, matcher, left, settings)
        if not reading.taken:
            if self._hold(pop, now_ms, reading.blocked_to_ms):
                if reading.reads_on:
                    self._held.notify(pop.group, pop.name, pop.queue_id)
                return None
            return self._response(pop, reading, now_ms, ORDERED if header.order else 0)
        if header.order:
            return self._deliver_in_order(pop, reading, now_ms)
        delivery = self._take(pop, reading, now_ms)
        if together is not None and not settings.enable_pop_message_threshold:
            together.append(delivery)
            return None
        return self._deliver(delivery, self._store_points([delivery]))

    def _reading(
        self,
        pop: Pop,
        matcher: Matcher | None,
        left: int,
        settings: PopSettings,
        is_peek: bool = False,
    ) -> _Reading:
        """Read the queues of a pop.

        Raises:
            PrerequisiteError: there are very many, or they have to be read from the disk first.
        """
        reading: _Reading | None = pop.read_before
        pop.read_before = None
        points = self._log.points
        if reading is not None and reading.points is points:
            return reading
        reading = _Reading(left, settings, points, is_peek=is_peek)
        queues = self._queues(pop, reading)
        for flag, topic, queue_id in islice(queues, QUEUES_AT_ONCE):
            self._read(pop, flag, topic, queue_id, matcher, reading)
        further = next(queues, None)
        if further is not None:
            rest = chain([further], queues)
            raise PrerequisiteError(partial(self._read_in_slices, pop, reading, matcher, rest))
        return reading

    async def _read_in_slices(
        self,
        pop: Pop,
        reading: _Reading,
        matcher: Matcher | None,
        queues: Iterable[tuple[str, str, int]],
    ) -> None:
        """Read the other queues; what other pops take meanwhile is left to them."""
        slices = Slices()
        for flag, topic, queue_id in queues:
            await slices.pause()
            await after_prerequisites(
                partial(self._read, pop, flag, topic, queue_id, matcher, reading)
            )
        if not reading.is_peek:
            reading.taken = [each for each in reading.taken if self._is_left(pop, each)]
        pop.read_before = reading

    def _is_left(self, pop: Pop, taken: Taken) -> bool:
        """Return whether no other pop has delivered messages since they were read."""
        queue = pop.group, taken.topic, taken.queue_id
        if self._offsets.committed(*queue) != taken.start:
            return False
        header = pop.header
        return not header.order or not self._orders.blocked_to_ms(*queue, header.attempt_id)

    def _hold(self, pop: Pop, now_ms: int, blocked_to_ms: int) -> bool:
        if pop.header.poll_time <= 0 or pop.request.connection.closed:
            return False
        # A clock that was set back does not hold it for longer.
        pop.ends_ms = min(pop.ends_ms, now_ms + min(pop.header.poll_time, POLL_MS_MAX))
        if not self._held.hold(pop, now_ms):
            return False
        if blocked_to_ms and blocked_to_ms < pop.ends_ms:
            pop.unblocking = asyncio.get_running_loop().call_later(
                (blocked_to_ms - now_ms + 1) / 1000,
                self._held.notify,
                pop.group,
                pop.name,
                pop.queue_id,
            )
        return True

    # --- checks, in RocketMQ's order ------------------------------------------------------------

    def check(self, topic: str, group: str, queue_id: int, count: int = 0) -> TopicConfig:
        """Check what a request names.

        Raises:
            ResponseError: it is refused.
            PrerequisiteError: its group has to be created first.
        """
        if not self._core.settings().broker_permission & Perm.READ:
            raise ResponseError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._core.address.host}] pop message is forbidden",
            )
        if count > COUNT_MAX:
            raise invalid(
                f"the broker[{self._core.address.host}] pop message's num is greater than"
                f" {COUNT_MAX}"
            )
        config = self._topics.require(topic)
        if not config.readable:
            raise ResponseError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden"
            )
        if holds_batches(config.attributes):
            raise invalid(
                f"the queues of topic {topic} hold batches (queue.type=BatchCQ), whose messages a"
                " pop cannot deliver one by one; expected a push or pull consumer"
            )
        if not -1 <= queue_id < config.read_queue_nums:
            raise invalid(
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]"
            )
        settings = self._groups.require(group, "subscription group [{}] does not exist, ")
        retry = retry_topic_of(group, topic, is_second_form=False)
        if len(retry) > INTERNAL_NAME_CHARS_MAX and not topic.startswith(RETRY_PREFIX):
            raise invalid(
                f"the retry topic {retry[:80]}… of group and topic has {len(retry)} characters,"
                f" expected at most {INTERNAL_NAME_CHARS_MAX}: use shorter names"
            )
        if not settings.consume_enable:
            raise ResponseError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}"
            )
        return config

    def _matcher(self, header: PopMessageRequest) -> Matcher | None:
        if not header.exp or header.exp == ALL_TAGS:
            return None
        try:
            return matcher_of(
                header.exp, header.exp_type, self._core.settings().enable_property_filter
            )
        except ResponseError as problem:
            if problem.code != ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                raise
            raise ResponseError(problem.code, PARSE_FAILED) from problem

    # --- reading --------------------------------------------------------------------------------

    def _queues(self, pop: Pop, reading: _Reading) -> Iterator[tuple[str, str, int]]:
        """Yield the queues that a pop reads: flag, topic and queue."""
        header = pop.header
        reads_retry = not header.order and not header.topic.startswith(RETRY_PREFIX)
        share = reading.settings.pop_from_retry_probability
        retry_first = reads_retry and random.random() * 100 < share
        if retry_first:
            yield from self._retry_queues(header, reading.settings)
        config = self._topics.require(header.topic)
        if header.queue_id < 0:
            yield from _turned(NORMAL, config)
        else:
            yield NORMAL, header.topic, header.queue_id
        if reads_retry and not retry_first and reading.left:
            yield from self._retry_queues(header, reading.settings)

    def _retry_queues(
        self, header: PopMessageRequest, settings: PopSettings
    ) -> Iterator[tuple[str, str, int]]:
        for is_second_form in _retry_forms(settings):
            name = retry_topic_of(
                header.consumer_group, header.topic, is_second_form=is_second_form
            )
            config = self._topics.get(name)
            if config is not None:
                yield from _turned(RETRY_V2 if is_second_form else RETRY_V1, config)

    def _read(
        self,
        pop: Pop,
        flag: str,
        topic: str,
        queue_id: int,
        matcher: Matcher | None,
        reading: _Reading,
    ) -> None:
        """Read one queue."""
        header = pop.header
        group = header.consumer_group
        offset = self._offset(header, topic, queue_id, reading.is_peek)
        if (
            reading.left <= 0
            or reading.is_full
            or self._is_over_limit(group, topic, queue_id, reading.settings)
        ):
            reading.rest += self._left_behind(topic, queue_id, offset)
            return
        if header.order:
            until_ms = self._orders.blocked_to_ms(group, topic, queue_id, header.attempt_id)
            if until_ms:
                reading.blocked_to_ms = min(reading.blocked_to_ms or until_ms, until_ms)
                return
        used = None if flag != NORMAL else matcher
        found = self._get(pop, topic, queue_id, offset, used, reading)
        if found is None:
            return
        if found.status in _MOVED and found.next_begin_offset != offset:
            offset = found.next_begin_offset
            if not reading.is_peek:
                self._offsets.commit(group, topic, queue_id, offset)
            found = self._get(pop, topic, queue_id, offset, used, reading)
            if found is None:
                return
        if found.status is _FOUND:
            offsets = _offsets_of(found, offset)
            reading.taken.append(Taken(flag, topic, queue_id, offset, offsets, found))
            reading.left -= found.count
        elif found.status in _PASSED and found.next_begin_offset > offset and not reading.is_peek:
            # For good: what does not match is not read again.
            reading.reads_on |= found.next_begin_offset < found.max_offset
            self._offsets.commit(group, topic, queue_id, found.next_begin_offset)
        reading.rest += max(found.max_offset - max(found.next_begin_offset, offset), 0)

    def _get(
        self,
        pop: Pop,
        topic: str,
        queue_id: int,
        offset: int,
        matcher: Matcher | None,
        reading: _Reading,
    ) -> GetResult | None:
        """Return messages; None if they are not in memory, and a later pop reads them.

        Raises:
            PrerequisiteError: they have to be read from the disk first.
        """
        reader, count = self._reader, reading.left
        cold = reader.cold_units(topic, queue_id, offset, count, matcher)
        if not cold:
            found = reader.get(topic, queue_id, offset, count, matcher, RESPONSE_BYTES_MAX)
            is_stuck = found.stopped_at_cold and found.next_begin_offset == offset
            if is_stuck and matcher is not None:
                cold = reader.cold_candidates(topic, queue_id, offset, matcher)
            else:
                cold = reader.cold_records(found)
            if not cold and not is_stuck:
                return reader.verified(
                    found, topic, queue_id, offset, count, matcher, RESPONSE_BYTES_MAX
                )
        if reading.taken or pop.cold_reads >= COLD_READS_MAX or not cold:
            reading.is_full = True
            reading.reads_on = bool(cold)
            reading.rest += self._left_behind(topic, queue_id, offset)
            return None
        pop.cold_reads += 1
        raise PrerequisiteError(partial(self._cold_reads.run, partial(bring_in, cold)))

    def _is_over_limit(self, group: str, topic: str, queue_id: int, settings: PopSettings) -> bool:
        if not settings.enable_pop_message_threshold:
            return False
        queue = self._log.points.queue(group, topic, queue_id)
        return queue is not None and queue.in_flight > settings.pop_inflight_message_threshold

    def _left_behind(self, topic: str, queue_id: int, offset: int) -> int:
        low, high = self._reader.bounds(topic, queue_id)
        return max(high - max(offset, low), 0)

    def _offset(self, header: PopMessageRequest, topic: str, queue_id: int, is_peek: bool) -> int:
        """Return where a group reads on; a new group gets its first offset."""
        group = header.consumer_group
        if self._offsets.has_resets and not is_peek:
            reset = self._offsets.take_reset(group, topic, queue_id)
            if reset is not None:
                self._orders.forget(group, topic, queue_id)
                self._offsets.commit(group, topic, queue_id, reset)
                return reset
        committed = self._offsets.committed(group, topic, queue_id)
        if committed is not None:
            return committed
        low, high = self._reader.bounds(topic, queue_id)
        first = low
        if header.init_mode == FROM_MAX and not topic.startswith(RETRY_PREFIX):
            checks = self._settings().init_pop_offset_by_check_msg_in_mem
            first = 0 if checks and self._is_young(topic, queue_id, low) else max(high - 1, 0)
        if not is_peek:
            self._offsets.commit(group, topic, queue_id, first)
        return first

    def _is_young(self, topic: str, queue_id: int, low: int) -> bool:
        """Return whether a queue still begins with message 0, and that is in memory."""
        if low > 0 or self._reader.cold_units(topic, queue_id, 0, 1, None):
            return False
        first = self._store.get(topic, queue_id, 0, 1)
        return first.status is not GetStatus.FOUND or not first.suggest_slave

    # --- responses ------------------------------------------------------------------------------

    def _take(self, pop: Pop, reading: _Reading, now_ms: int) -> Delivery:
        """Take what was read: move the committed offsets behind it."""
        queue = self._revive_queue(pop.header.invisible_time, reading.settings)
        pop_ms = self._free_pop_ms(pop.group, reading, now_ms)
        delivery = Delivery(pop, reading, now_ms, pop_ms, queue)
        for each in reading.taken:
            self._offsets.commit(pop.group, each.topic, each.queue_id, each.found.next_begin_offset)
        return delivery

    def _store_points(self, deliveries: list[Delivery]) -> int:
        """Store the check points of what was taken, or give it back.

        Returns:
            The log offset behind the records.

        Raises:
            PrerequisiteError, ResponseError: they are not stored, and the messages given back.
        """
        points = [point for each in deliveries for point in each.points]
        try:
            return self._log.add(points, deliveries[-1].now_ms)
        except BaseException as problem:
            for delivery in reversed(deliveries):
                for taken in delivery.reading.taken:
                    queue = delivery.pop.group, taken.topic, taken.queue_id
                    self._offsets.commit(*queue, taken.start)
            if isinstance(problem, StoreError):
                raise _nothing_popped(problem) from problem
            raise

    def _deliver(self, delivery: Delivery, log_end: int) -> Response | None:
        """Respond with what was taken, whose check points are stored.

        Returns:
            The response; None if it was sent already, or waits for the in-sync set.
        """
        pop, reading = delivery.pop, delivery.reading
        for each in reading.taken:
            self._compare_pulls(pop.group, each.topic, each.queue_id, delivery.now_ms)
        self._changed()
        self._count(pop, reading)
        if self._durability.may_be_replaced:
            response = self._response(pop, reading, delivery.pop_ms, delivery.revive_queue)
            self._respond_confirmed(pop.request, response, log_end)
        else:
            self._succeed(pop, reading, delivery.pop_ms, delivery.revive_queue)
        return None

    def _deliver_in_order(self, pop: Pop, reading: _Reading, now_ms: int) -> Response | None:
        """Deliver messages that are not delivered again before their acknowledgement."""
        waits = self._durability.may_be_replaced
        log_end = self._store_order(pop, reading.taken[0], now_ms) if waits else 0
        counts = self._note_order(pop, reading, now_ms)
        response = self._response(pop, reading, now_ms, ORDERED, counts)
        self._count(pop, reading)
        if waits:
            self._respond_confirmed(pop.request, response, log_end)
            return None
        return response

    def _count(self, pop: Pop, reading: _Reading) -> None:
        """Count what is delivered, and let another held pop take the rest."""
        for each in reading.taken:
            found = each.found
            self._stats.got(pop.group, each.topic, each.queue_id, found.count, found.size_bytes)
        if reading.rest > 0 and pop.was_held:
            self._held.notify(pop.group, pop.name, pop.queue_id)

    def _respond_confirmed(self, request: Request, response: Response, log_end: int) -> None:
        """Respond when the in-sync set has what was stored for a pop.

        Another master may have been elected, and may have delivered these messages. A member of the
        in-sync set confirms nothing here any more once it follows that one.
        """

        def on_outcome(code: int, error: StoreError | None) -> None:
            confirmed = error is None and code == ResponseCode.SUCCESS
            request.reply(
                response if confirmed else Response(ResponseCode.SERVICE_NOT_AVAILABLE, REPLACED)
            )

        self._durability.wait(log_end, on_outcome)

    def _store_order(self, pop: Pop, taken: Taken, now_ms: int) -> int:
        """Store a record that acknowledges nothing, before an ordered pop; return its end."""
        ack = AckOf(
            pop.group,
            taken.topic,
            taken.queue_id,
            taken.start,
            now_ms,
            self._log.broker_name,
            (taken.start,),
            next_offset=taken.start,
        )
        try:
            return self._log.acknowledge_apart(ack, taken.queue_id % self._log.queue_count)
        except StoreError as problem:
            raise _nothing_popped(problem) from problem

    def _free_pop_ms(self, group: str, reading: _Reading, pop_ms: int) -> int:
        """Return the first time from ``pop_ms`` on that no check point with such a start has."""
        points, free_ms = self._log.points, -1
        while free_ms != pop_ms:
            free_ms = pop_ms
            for each in reading.taken:
                pop_ms = points.free_pop_ms(group, each.topic, each.queue_id, each.start, pop_ms)
        return pop_ms

    def _compare_pulls(self, group: str, topic: str, queue_id: int, now_ms: int) -> None:
        """Note a group that has pulled since its last pop, whose messages are in flight still."""
        queue = self._log.points.queue(group, topic, queue_id)
        if queue is not None:
            pulled = self._offsets.pulled(group, topic, queue_id) or 0
            if queue.pulled not in (-1, pulled):
                self.mixed.note(group, topic, now_ms)
            queue.pulled = pulled

    def _revive_queue(self, invisible_ms: int, settings: PopSettings) -> int:
        """Return the queue of the revive topic for an invisible time."""
        number = bisect_left(REVIVE_BOUNDS_MS, invisible_ms)
        return number * settings.revive_queue_num // (len(REVIVE_BOUNDS_MS) + 1)

    def _note_order(self, pop: Pop, reading: _Reading, now_ms: int) -> str:
        """Note an ordered pop; return the counts of deliveries for its response."""
        header, counts = pop.header, []
        for each in reading.taken:
            deliveries = self._orders.popped(
                header.consumer_group,
                each.topic,
                each.queue_id,
                list(each.offsets),
                now_ms,
                header.invisible_time,
                header.attempt_id,
            )
            for offset, count in deliveries.items():
                counts.append(f"{each.flag} qo{each.queue_id}%{offset} {count}")
            counts.append(f"{each.flag} {each.queue_id} 0")
            self._offsets.commit(header.consumer_group, each.topic, each.queue_id, each.start)
        return ";".join(counts)

    def _succeed(self, pop: Pop, reading: _Reading, pop_ms: int, revive_queue: int) -> None:
        """Send the response to a pop that is not ordered, and has found messages."""
        command = pop.request.command
        success = self._found_json
        if command.serialization == BINARY_HEADER:
            success = self._found_binary
        body = self._body(pop, reading, pop_ms, revive_queue)
        body_bytes = 0
        for part in body:
            body_bytes += len(part)
        head = success.head(
            (pop_ms, pop.header.invisible_time, revive_queue, reading.rest, command.opaque),
            body_bytes,
            text=_starts_text(reading).encode(),
            second=_offsets_text(reading).encode(),
        )
        pop.request.reply_head(head, body)

    def _response(
        self, pop: Pop, reading: _Reading, pop_ms: int, revive_queue: int, counts: str = ""
    ) -> Response:
        """Return the response to a peek, to an ordered pop, or to one that has found nothing."""
        numbers = (pop_ms, pop.header.invisible_time, revive_queue, reading.rest)
        fields = dict(zip(_NUMBER_FIELDS, map(str, numbers), strict=True))
        if not reading.taken:
            code = ResponseCode.POLLING_TIMEOUT
            return Response(code, _EMPTY_REMARK, fields=fields)
        texts = _starts_text(reading), _offsets_text(reading)
        fields |= zip(_OFFSET_FIELDS, texts, strict=True)
        if counts:
            fields["orderCountInfo"] = counts
        body = self._body(pop, reading, pop_ms, revive_queue)
        return Response(0, _FOUND_REMARK, fields=fields, body=body)

    def _body(self, pop: Pop, reading: _Reading, pop_ms: int, revive_queue: int) -> list[Slice]:
        """Return the messages as the response contains them."""
        keeps_topic = reading.settings.pop_response_return_actual_retry_topic
        body: list[Slice] = []
        for each in reading.taken:
            if each.flag == NORMAL or keeps_topic:
                body += each.found.slices
            else:
                body += self._as_of_topic(pop, each, pop_ms, revive_queue)
        return body

    def _as_of_topic(
        self, pop: Pop, taken: Taken, pop_ms: int, revive_queue: int
    ) -> Iterator[bytes]:
        """Yield the messages of a retry topic as messages of the topic, with their receipts."""
        topic, broker_name = pop.name.encode(), self._log.broker_name
        for part in taken.found.slices:
            at = 0
            while at < len(part):
                record = split_record(part, at)
                at += record.size_bytes
                properties = record.properties
                if value_of(properties, _POP_CK) is None:
                    receipt = receipt_text(
                        taken.start,
                        pop_ms,
                        pop.header.invisible_time,
                        revive_queue,
                        taken.flag,
                        broker_name,
                        taken.queue_id,
                        record.queue_offset,
                    )
                    properties = join_properties(
                        properties, encode_properties({names.POP_CK: receipt})
                    )
                yield encode_record(
                    topic,
                    record.body,
                    properties,
                    queue_id=record.queue_id,
                    queue_offset=record.queue_offset,
                    log_offset=record.log_offset,
                    born_time_ms=record.born_time_ms,
                    born_host=record.born_host,
                    store_time_ms=record.store_time_ms,
                    store_host=record.store_host,
                    flag=record.flag,
                    sys_flag=record.sys_flag,
                    reconsume_times=record.reconsume_times,
                    prepared_offset=record.prepared_offset,
                    crc=record.body_crc,
                )

    # --- peeks ----------------------------------------------------------------------------------

    def peek(self, request: Request) -> Response | Awaitable[Response]:
        """Handle PEEK_MESSAGE: return what a pop would deliver, and take nothing."""
        header = request.header(PeekMessageRequest)
        pop = Pop(
            self,
            request,
            PopMessageRequest(
                consumer_group=header.consumer_group,
                topic=header.topic,
                queue_id=header.queue_id,
                max_msg_nums=header.max_msg_nums,
                invisible_time=0,
                poll_time=0,
                init_mode=0,
            ),
            0,
        )
        try:
            return self._run_peek(pop)
        except PrerequisiteError as needed:
            request.is_exclusive = True
            return run_and_repeat(needed, partial(self._run_peek, pop), request)

    def _run_peek(self, pop: Pop) -> Response:
        header = pop.header
        self.check(header.topic, header.consumer_group, header.queue_id, header.max_msg_nums)
        if not self._role.is_slave:
            self._log.require_loaded()
        self._store.appender.finish_deferred()
        reading = self._reading(pop, None, header.max_msg_nums, self._settings(), True)
        response = self._response(pop, reading, self._clock.now_ms(), 0)
        if not reading.taken:
            response.code = ResponseCode.PULL_NOT_FOUND
        return response


def _nothing_popped(problem: StoreError) -> ResponseError:
    return ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, f"nothing popped: {problem}")


def _retry_forms(settings: PopSettings) -> Sequence[bool]:
    if not settings.enable_retry_topic_v2:
        return [False]
    return [True, False] if settings.retrieve_message_from_pop_retry_topic_v1 else [True]


def _turned(flag: str, config: TopicConfig) -> Iterator[tuple[str, str, int]]:
    """Yield all read queues of a topic, from a random one on."""
    count = config.read_queue_nums
    first = int(random.random() * count)
    for number in range(count):
        yield flag, config.topic_name, (first + number) % count


def _starts_text(reading: _Reading) -> str:
    """Return where a pop has begun to read each queue."""
    return ";".join([f"{each.flag} {each.queue_id} {each.start}" for each in reading.taken])


def _offsets_text(reading: _Reading) -> str:
    """Return which messages of each queue a pop delivers."""
    return ";".join(
        [f"{each.flag} {each.queue_id} {offsets_text(each.offsets)}" for each in reading.taken]
    )


def _offsets_of(found: GetResult, start: int) -> range | tuple[int, ...]:
    """Return the queue offsets of the messages that were found."""
    if found.next_begin_offset - start == found.count:
        return range(start, start + found.count)
    offsets: list[int] = []
    for part in found.slices:
        at = 0
        while at < len(part):
            size, offset = _HEAD.unpack_from(part, at)
            offsets.append(offset)
            at += size
    return tuple(offsets)
