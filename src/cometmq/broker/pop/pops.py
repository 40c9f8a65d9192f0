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
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from struct import Struct
from typing import Final, NamedTuple

from cometmq.broker.checks import check_number, invalid, sent_to_slave
from cometmq.broker.filters.subscriptions import PARSE_FAILED, matcher_of
from cometmq.broker.pop.check_points import CheckPoint
from cometmq.broker.pop.held_pops import POLL_MS_MAX, HeldPop
from cometmq.broker.pop.mixed_modes import MixedModes
from cometmq.broker.pop.part import PopPart, PopState
from cometmq.broker.pop.receipts import (
    NORMAL,
    ORDERED,
    RETRY_V1,
    RETRY_V2,
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
from cometmq.protocol.headers.pop import PeekMessageRequest, PopMessageRequest
from cometmq.protocol.properties import encode_properties, join_properties, marker, value_of
from cometmq.protocol.record import encode_record, split_record
from cometmq.protocol.subscription import ALL_TAGS
from cometmq.remoting import Request, Response, Supervisor
from cometmq.remoting.connection import respond_with_failure
from cometmq.remoting.slices import Slices
from cometmq.remoting.wire import Slice
from cometmq.store import GetStatus, Matcher
from cometmq.store.message_store import bring_in
from cometmq.store.queues.batch_topics import holds_batches
from cometmq.store.queues.queue_reader import RESPONSE_BYTES_MAX, GetResult

COUNT_MAX: Final = 32
LATE_MS: Final = 500
INVISIBLE_MS_MAX: Final = 3 * 24 * 3_600_000
FROM_MAX: Final = 1
COLD_READS_MAX: Final = 6
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


class Taken(NamedTuple):
    """The messages of one queue that a pop delivers."""

    flag: str
    topic: str
    queue_id: int
    start: int
    offsets: range | tuple[int, ...]
    found: GetResult


class _Reading:
    """What one run of a pop has read."""

    def __init__(self, left: int, *, is_peek: bool = False) -> None:
        self.left = left
        """How many more messages it delivers."""
        self.is_peek = is_peek
        """Whether nothing is changed."""
        self.rest = 0
        """How many messages are left behind."""
        self.taken: list[Taken] = []
        self.is_full = False
        """Whether no further queue is read."""
        self.blocked_to_ms = 0
        """When the first queue is free again that an ordered pop could not read; 0 for none."""


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
        self.read_before: _Reading | None = None
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
        self._reader = core.store.reader
        self._groups = core.groups
        self._cold_reads = core.cold_reads
        self._stats = core.stats
        self._settings = state.settings
        self._access = state.access
        self.mixed = MixedModes()
        """Groups that pull and pop a topic."""
        self._tasks = Supervisor("pop")

    # --- requests -------------------------------------------------------------------------------

    def pop(self, request: Request) -> Response | Awaitable[Response | None] | None:
        """Handle POP_MESSAGE."""
        pop = self._new(request)
        try:
            return self._run(pop)
        except PrerequisiteError as needed:
            request.is_exclusive = True
            return run_and_repeat(needed, lambda: self._run(pop), request)

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
            respond_with_failure(request, problem)
            self._held.notify(pop.group, pop.name, pop.queue_id)
            return
        if response is not None:
            request.reply(response)

    def _repeat(self, pop: Pop, needed: PrerequisiteError) -> None:
        """Run a held pop again once what it needs was read or created."""

        async def run() -> None:
            try:
                response = await run_and_repeat(needed, lambda: self._run(pop), pop.request)
            except Exception as problem:
                pop.fail(problem)
                self._held.notify(pop.group, pop.name, pop.queue_id)
                return
            if response is not None and not pop.request.connection.closed:
                pop.request.reply(response)

        self._tasks.spawn(run(), "pop")

    async def stop(self) -> None:
        """End the pops that wait for the disk."""
        await self._tasks.cancel()

    def _run(self, pop: Pop) -> Response | None:
        """Return the response; None if the pop is held, or read the disk first."""
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
        is_full = len(self._log.points) >= self._settings().pop_check_points_max
        reading = self._reading(pop, 0 if is_full else header.max_msg_nums, matcher)
        if not reading.taken:
            if self._hold(pop, now_ms, reading.blocked_to_ms):
                return None
            return self._response(pop, reading, now_ms, ORDERED if header.order else 0)
        return self._deliver(pop, reading, now_ms)

    def _reading(
        self, pop: Pop, left: int, matcher: Matcher | None, *, is_peek: bool = False
    ) -> _Reading:
        """Read the queues of a pop.

        Raises:
            PrerequisiteError: there are very many, or they have to be read from the disk first.
        """
        reading, pop.read_before = pop.read_before, None
        if reading is not None:
            return reading
        reading = _Reading(left, is_peek=is_peek)
        queues = self._queues(pop, reading)
        for flag, topic, queue_id in islice(queues, QUEUES_AT_ONCE):
            self._read(pop, flag, topic, queue_id, matcher, reading)
        further = next(queues, None)
        if further is not None:
            rest = chain([further], queues)
            raise PrerequisiteError(lambda: self._read_in_slices(pop, reading, matcher, rest))
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
        share = self._settings().pop_from_retry_probability
        retry_first = reads_retry and random.randrange(100) < share
        if retry_first:
            yield from self._retry_queues(header)
        config = self._topics.require(header.topic)
        if header.queue_id < 0:
            yield from _turned(NORMAL, config)
        else:
            yield NORMAL, header.topic, header.queue_id
        if reads_retry and not retry_first and reading.left:
            yield from self._retry_queues(header)

    def _retry_queues(self, header: PopMessageRequest) -> Iterator[tuple[str, str, int]]:
        for is_second_form in self._retry_forms():
            name = retry_topic_of(
                header.consumer_group, header.topic, is_second_form=is_second_form
            )
            config = self._topics.get(name)
            if config is not None:
                yield from _turned(RETRY_V2 if is_second_form else RETRY_V1, config)

    def _retry_forms(self) -> Sequence[bool]:
        settings = self._settings()
        if not settings.enable_retry_topic_v2:
            return [False]
        return [True, False] if settings.retrieve_message_from_pop_retry_topic_v1 else [True]

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
        if reading.left <= 0 or reading.is_full or self._is_over_limit(group, topic, queue_id):
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
        if found.status is GetStatus.FOUND:
            offsets = _offsets_of(found, offset)
            reading.taken.append(Taken(flag, topic, queue_id, offset, offsets, found))
            reading.left -= found.count
        elif found.status in _PASSED and found.next_begin_offset > offset and not reading.is_peek:
            # For good: what does not match is not read again.
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
            reading.rest += self._left_behind(topic, queue_id, offset)
            return None
        pop.cold_reads += 1
        parts = cold
        raise PrerequisiteError(lambda: self._cold_reads.run(lambda: bring_in(parts)))

    def _is_over_limit(self, group: str, topic: str, queue_id: int) -> bool:
        settings = self._settings()
        if not settings.enable_pop_message_threshold:
            return False
        queue = self._log.points.queue(group, topic, queue_id)
        return queue is not None and queue.in_flight > settings.pop_inflight_message_threshold

    def _left_behind(self, topic: str, queue_id: int, offset: int) -> int:
        low, high = self._store.bounds(topic, queue_id)
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
        low, high = self._store.bounds(topic, queue_id)
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

    def _deliver(self, pop: Pop, reading: _Reading, now_ms: int) -> Response | None:
        """Store check points, move the committed offsets, and respond."""
        header = pop.header
        group = header.consumer_group
        waits, log_end = self._durability.may_be_replaced, 0
        if header.order:
            if waits:
                log_end = self._store_order(pop, reading.taken[0], now_ms)
            counts = self._note_order(pop, reading, now_ms)
            response = self._response(pop, reading, now_ms, ORDERED, counts)
        else:
            queue = self._revive_queue(header.invisible_time)
            pop_ms = now_ms
            while any(
                self._log.points.find(group, each.topic, each.queue_id, each.start, pop_ms)
                for each in reading.taken
            ):
                pop_ms += 1
            points = [
                CheckPoint(
                    group,
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
            try:
                log_end = self._log.add(points, now_ms)
            except StoreError as problem:
                raise _nothing_popped(problem) from problem
            for each in reading.taken:
                self._offsets.commit(group, each.topic, each.queue_id, each.found.next_begin_offset)
                self._compare_pulls(group, each.topic, each.queue_id, now_ms)
            self._changed()
            response = self._response(pop, reading, pop_ms, queue)
        for each in reading.taken:
            found = each.found
            self._stats.got(group, each.topic, each.queue_id, found.count, found.size_bytes)
        if reading.rest > 0 and pop.was_held:
            self._held.notify(group, pop.name, pop.queue_id)
        if waits:
            self._respond_confirmed(pop.request, response, log_end)
            return None
        return response

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

    def _compare_pulls(self, group: str, topic: str, queue_id: int, now_ms: int) -> None:
        """Note a group that has pulled since its last pop, whose messages are in flight still."""
        queue = self._log.points.queue(group, topic, queue_id)
        if queue is not None:
            pulled = self._offsets.pulled(group, topic, queue_id) or 0
            if queue.pulled not in (-1, pulled):
                self.mixed.note(group, topic, now_ms)
            queue.pulled = pulled

    def _revive_queue(self, invisible_ms: int) -> int:
        """Return the queue of the revive topic for an invisible time."""
        number = sum(invisible_ms > bound for bound in REVIVE_BOUNDS_MS)
        return number * self._settings().revive_queue_num // (len(REVIVE_BOUNDS_MS) + 1)

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

    def _response(
        self, pop: Pop, reading: _Reading, pop_ms: int, revive_queue: int, counts: str = ""
    ) -> Response:
        header, taken = pop.header, reading.taken
        fields = {
            "popTime": str(pop_ms),
            "invisibleTime": str(header.invisible_time),
            "reviveQid": str(revive_queue),
            "restNum": str(reading.rest),
        }
        if not taken:
            code = ResponseCode.POLLING_TIMEOUT
            return Response(code, _EMPTY_REMARK, fields=fields)
        fields["startOffsetInfo"] = ";".join(
            [f"{each.flag} {each.queue_id} {each.start}" for each in taken]
        )
        fields["msgOffsetInfo"] = ";".join(
            [f"{each.flag} {each.queue_id} {','.join(map(str, each.offsets))}" for each in taken]
        )
        if counts:
            fields["orderCountInfo"] = counts
        keeps_topic = self._settings().pop_response_return_actual_retry_topic
        body: list[Slice] = []
        for each in taken:
            if each.flag == NORMAL or keeps_topic:
                body += each.found.slices
            else:
                body += self._as_of_topic(pop, each, pop_ms, revive_queue)
        return Response(0, "FOUND", fields=fields, body=body)

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
            return run_and_repeat(needed, lambda: self._run_peek(pop), request)

    def _run_peek(self, pop: Pop) -> Response:
        header = pop.header
        self.check(header.topic, header.consumer_group, header.queue_id, header.max_msg_nums)
        if not self._role.is_slave:
            self._log.require_loaded()
        self._store.appender.finish_deferred()
        reading = self._reading(pop, header.max_msg_nums, None, is_peek=True)
        response = self._response(pop, reading, self._clock.now_ms(), 0)
        if not reading.taken:
            response.code = ResponseCode.PULL_NOT_FOUND
        return response


def _nothing_popped(problem: StoreError) -> ResponseError:
    return ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, f"nothing popped: {problem}")


def _turned(flag: str, config: TopicConfig) -> Iterator[tuple[str, str, int]]:
    """Yield all read queues of a topic, from a random one on."""
    count = config.read_queue_nums
    first = random.randrange(count) if count > 1 else 0
    for number in range(count):
        yield flag, config.topic_name, (first + number) % count


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
