# cython: annotation_typing=False
"""Handles PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): delivers messages of a queue to a group.

A pull passes its checks in RocketMQ's order and reads the queue; the response contains the raw
records of the commit log. At the end of a queue it may be held (``long_polling.py``) and runs once
more, for the last time, when a message arrives or its time is over.

Hot: one response per call, plain control flow, compiled by Cython in pure Python mode.
Source: PullMessageProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from cometmq.broker.checks import broker_stopping, invalid
from cometmq.broker.clients.consumers import BROADCASTING, ConsumerGroup
from cometmq.broker.config import BrokerSettings
from cometmq.broker.core import Core
from cometmq.broker.filters.subscriptions import matcher_of
from cometmq.broker.prerequisites import PrerequisiteError
from cometmq.broker.pulling.long_polling import HeldPull, HeldPulls
from cometmq.broker.static_topics.refusals import not_leader
from cometmq.model.errors import ResponseError, StoreError
from cometmq.model.flags import PullSysFlag
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import RETRY_PREFIX, Perm, TopicConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.frame import BINARY_HEADER, JSON_HEADER
from cometmq.protocol.headers.pull import PullMessageRequest
from cometmq.protocol.subscription import ALL_TAGS, TAG_KIND
from cometmq.remoting.connection import respond_with_failure
from cometmq.remoting.requests import DECIMAL, Request, Response, SuccessFormat
from cometmq.remoting.wire import Wire
from cometmq.store import GetStatus, Matcher
from cometmq.store.queues.queue_reader import RESPONSE_BYTES_MAX, ColdPart, GetResult

if TYPE_CHECKING:
    from cometmq.broker.access.control import AccessControl
    from cometmq.broker.static_topics.pulls import LogicalPull, LogicalPulls
    from cometmq.remoting.features import Deferred

# Which setting refused a pull, in header field forbiddenType.
FORBIDDEN_BY_BROKER = 1
FORBIDDEN_BY_GROUP = 2
FORBIDDEN_BY_TOPIC = 3
FORBIDDEN_TO_BROADCAST = 4
FORBIDDEN_TO_SUBSCRIPTION = 5

_COLD_READS_MAX = 6
"""Reads from the disk by one pull: its queue entries, its messages, and more if some are in other
blocks."""

GROUP_DELETED = "the group was deleted while its pull was held"
EVICTED = "the messages left the memory again before they could be sent"

_FOUND = int(ResponseCode.SUCCESS)
_NOT_FOUND = int(ResponseCode.PULL_NOT_FOUND)
_RETRY = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)

_CODE_OF_STATUS = {
    GetStatus.MESSAGE_WAS_REMOVING: _RETRY,
    GetStatus.NO_MATCHED_MESSAGE: _RETRY,
    GetStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
    GetStatus.OFFSET_TOO_SMALL: _MOVED,
}
_EMPTY = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)
_STATUS_FOUND = GetStatus.FOUND
_FOUND_REMARK = "FOUND"

_COMMIT_OFFSET = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)
_READ = int(Perm.READ)
_PULL = int(RequestCode.PULL_MESSAGE)
_LITE_PULL = int(RequestCode.LITE_PULL_MESSAGE)


class Pull(HeldPull):
    """One pull, and the connection of its response.

    Args:
        handler: handles it again after it was held.
        wire: its connection.
        opaque: its opaque number.
        is_binary: whether its header is binary.
        request: its request; the fast path has none, and one is made when it is needed.
    """

    def __init__(
        self,
        handler: PullHandler,
        wire: Wire,
        opaque: int,
        is_binary: bool,
        request: Request | None = None,
    ) -> None:
        self.handler = handler
        self.owner = wire
        self.wire = wire
        self.opaque = opaque
        self.is_binary = is_binary
        self.original = request
        self.topic = ""
        self.queue_id = 0
        self.offset = 0
        self.matcher = None
        self.own_matcher: Matcher | None = None
        """The matcher of the expression in the pull, once it is made."""
        self.is_short_poll = False
        self.group = ""
        self.count_max = 0
        self.bytes_max = RESPONSE_BYTES_MAX
        self.flags = 0
        self.commit_offset = 0
        self.suspend_ms = 0
        self.expression: str | None = None
        self.kind: str | None = None
        self.version = 0
        self.is_lite = False
        self.is_bulk = False
        self.is_physical = False
        """Whether queue and offset are physical ones, even if the topic is a static one."""
        self.logical: LogicalPull | None = None
        """Its place in a logical queue, of which queue and offset are translations then."""
        self.cold_reads = 0
        self.was_held = False
        self.began_s = 0.0 if handler.latencies is None else perf_counter()
        self.reads_exactly = False
        """Whether no more is read from the disk than its own messages."""
        self.access_key = b""
        """The access key that it has named."""
        self.accounts: object = None
        """The state of the accounts by which it was checked."""

    def rerun(self) -> None:
        """Respond, without being held again."""
        self.handler.rerun(self)

    def fail(self, problem: Exception) -> None:
        """Respond with an error."""
        if not self.wire.closed:
            respond_with_failure(self.request(), problem)

    def request(self) -> Request:
        """Return the request, to respond with a `Response`."""
        if self.original is None:
            kind = BINARY_HEADER if self.is_binary else JSON_HEADER
            command = Command(_PULL, opaque=self.opaque, serialization=kind)
            self.original = Request(command, self.wire)
            self.original.latencies = self.handler.latencies
            self.original.began_s = self.began_s
        self.original.is_held = self.was_held
        return self.original

    def succeed(self, head: bytes, found: GetResult) -> None:
        """Respond with the messages that were found."""
        request = self.original
        if request is not None:
            request.is_held = self.was_held
            request.reply_head(head, found.slices)
            return
        latencies = self.handler.latencies
        if latencies is not None:
            latencies.add(_PULL, _FOUND, self.began_s, 1, self.was_held, False, self.wire.closed)
        self.wire.write(head, found.slices)


class PullForbiddenError(ResponseError):
    """A setting forbids this pull: code 16, and the kind of the setting."""

    def __init__(self, remark: str, forbidden_type: int) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.forbidden_type = forbidden_type


class PullHandler:
    """Handles pulls.

    Args:
        core: of the broker.
        held: the held pulls.
        access: checks pulls again that have waited, if accounts have changed meanwhile.
        logical: handles pulls of logical queues with it; None in programs without static topics.
    """

    def __init__(
        self,
        core: Core,
        held: HeldPulls,
        access: AccessControl | None = None,
        logical: Deferred[LogicalPulls] | None = None,
    ) -> None:
        self._logical = logical
        self._static_topics = {} if logical is None else core.static_topics.mappings
        self._store = core.store
        self._reader = core.store.reader
        self._bulk_reader = core.store.bulk_reader
        self._appender = core.store.appender
        self._topics = core.topics
        self._groups = core.groups
        # The mappings behind them: a lookup calls no function of Python.
        self._topic_configs = core.topics.all()
        self._group_configs = core.groups.all()
        self._consumers = core.consumers
        self._filters = core.filters
        self._offsets = core.offsets
        self._held = held
        self._cold_reads = core.cold_reads
        self._settings = core.settings
        self._role = core.role
        self._ip = core.address.host
        self.latencies = core.measures.latencies
        self._access = access
        self._applied: BrokerSettings | None = None
        self._stats = core.stats
        names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
        fields = dict.fromkeys(names, DECIMAL)
        self._found_json = SuccessFormat(fields, _FOUND_REMARK)
        self._found_binary = SuccessFormat(fields, _FOUND_REMARK, serialization=BINARY_HEADER)
        fields = dict.fromkeys((*names, "offsetDelta"), DECIMAL)
        self._logical_json = SuccessFormat(fields, _FOUND_REMARK)
        self._logical_binary = SuccessFormat(fields, _FOUND_REMARK, serialization=BINARY_HEADER)

    def handle(self, request: Request) -> Response | None:
        """Handle a request; return its response, or None if the pull is held."""
        return self.respond_to(self._pull_of(request))

    def _pull_of(self, request: Request) -> Pull:
        header = request.header(PullMessageRequest)
        command = request.command
        is_binary = command.serialization == BINARY_HEADER
        pull = Pull(self, request.connection, command.opaque, is_binary, request)
        pull.topic = header.topic
        pull.queue_id = header.queue_id
        pull.offset = header.queue_offset
        pull.group = header.consumer_group
        pull.count_max = header.max_msg_nums
        if header.max_msg_bytes is not None:
            pull.bytes_max = header.max_msg_bytes
        pull.flags = header.sys_flag
        pull.commit_offset = header.commit_offset
        pull.suspend_ms = header.suspend_timeout_millis
        pull.expression = header.subscription
        pull.kind = header.expression_type
        pull.version = header.sub_version
        pull.is_lite = request.code == _LITE_PULL
        pull.is_bulk = bool(header.bulk)
        pull.is_physical = header.lo is False
        if self._access is not None:
            self.note_access(pull, command.access_key.encode())
        return pull

    def note_access(self, pull: Pull, access_key: bytes) -> None:
        """Note by which accounts a pull was checked just now."""
        if self._access is not None:
            pull.access_key = access_key
            pull.accounts = self._access.state

    def respond_to(self, pull: Pull) -> Response | None:
        """Return the response; None if the pull is held, or if messages were sent already.

        Raises:
            ResponseError: the pull is refused.
        """
        try:
            return self._run(pull, True)
        except PullForbiddenError as refusal:
            return _forbidden(refusal)

    def rerun(self, pull: Pull) -> None:
        """Handle a pull that was held; it is not held again."""
        self._run_again(pull, False)

    def changed_expressions(self, group: ConsumerGroup, topics: set[str]) -> None:
        """Run held pulls of a group again: its expression for these topics has changed.

        Messages that match only the new expression have not ended them. RocketMQ lets them wait,
        and looks every 5 seconds whether their queues have any new message.
        """

        def is_concerned(held: HeldPull) -> bool:
            return (
                isinstance(held, Pull)
                and held.group == group.name
                and held.topic in topics
                and not held.flags & _SUBSCRIPTION
            )

        for connection in group.members:
            self._held.rerun_of(connection, is_concerned)

    def _run_again(self, pull: Pull, may_hold: bool) -> None:
        if pull.wire.closed:
            return
        try:
            access = self._access
            if access is not None and access.state is not pull.accounts:
                key = pull.access_key.decode()
                access.check_pull_again(pull.request(), key, pull.topic, pull.group)
                pull.accounts = access.state
            response = self._run(pull, may_hold)
        except PullForbiddenError as refusal:
            response = _forbidden(refusal)
        except PrerequisiteError:  # its group was deleted meanwhile: the next pull creates it
            low, high = self._store.bounds(pull.topic, pull.queue_id)
            fields = _fields_of(pull, 0, pull.offset, low, high)
            response = Response(_RETRY, GROUP_DELETED, fields=fields)
        except Exception as problem:
            respond_with_failure(pull.request(), problem)
            return
        if response is not None:
            pull.request().reply(response)

    def _run(self, pull: Pull, may_hold: bool) -> Response | None:
        settings = self._settings()
        if settings is not self._applied:
            self._apply(settings)
        group = self._check_group(pull)
        self._check_topic(pull)
        matcher = self._matcher(pull, group)
        if self._serves_resets and self._offsets.has_resets:
            response = self._pending_reset(pull)
            if response is not None:
                return response
        is_first = may_hold and not pull.cold_reads
        commits = is_first and pull.flags & _COMMIT_OFFSET and pull.commit_offset >= 0
        if commits and not self._role.is_slave:
            # A run after a cold read would take back a later commit.
            if pull.logical is not None and self._logical is not None:
                self._logical.get().commit(pull)
            else:
                self._offsets.commit_of_client(
                    pull.group, pull.topic, pull.queue_id, pull.commit_offset
                )
        self._appender.finish_deferred()  # so that the read finds messages whose write is deferred
        reader = self._bulk_reader if pull.is_bulk else self._reader
        count_max = max(pull.count_max, 1)
        if pull.logical is not None:
            if pull.logical.is_elsewhere and self._logical is not None:
                self._read_elsewhere(pull, self._logical.get(), may_hold)
                return None
            if pull.logical.is_ended:
                return self._respond_behind_end(pull, pull.logical)
            count_max = pull.logical.limit(count_max)
        cold = reader.cold_units(pull.topic, pull.queue_id, pull.offset, count_max, matcher)
        if cold:
            return self._read_first(pull, cold, may_hold)
        result = reader.get(
            pull.topic, pull.queue_id, pull.offset, count_max, matcher, pull.bytes_max
        )
        # If a read with an expression has got further, the next pull continues there.
        is_stuck = result.stopped_at_cold and result.next_begin_offset == pull.offset
        if is_stuck and matcher is not None:
            cold = reader.cold_candidates(pull.topic, pull.queue_id, pull.offset, matcher)
        else:
            cold = reader.cold_records(result)
        if cold or is_stuck:
            return self._read_first(pull, cold, may_hold)
        result = reader.verified(
            result, pull.topic, pull.queue_id, pull.offset, count_max, matcher, pull.bytes_max
        )
        self._offsets.note_pulled(pull.group, pull.topic, pull.queue_id, result.next_begin_offset)
        code = _code_of(result, pull.offset)
        if pull.logical is not None:
            code = pull.logical.settle(
                code, result.next_begin_offset, result.min_offset, result.max_offset
            )
        if code == _MOVED and self._role.is_slave:
            return self._send_to_master(pull, group, result, matcher, may_hold)
        if code == _NOT_FOUND and may_hold and pull.flags & _SUSPEND:
            hold_ms = pull.suspend_ms if self._polls_long else self._short_poll_ms
            if hold_ms > 0:
                pull.matcher = matcher
                pull.is_short_poll = not self._polls_long
                self._hold(pull, hold_ms)
                return None
        return self._respond(pull, group, result, code)

    def _send_to_master(
        self,
        pull: Pull,
        group: SubscriptionGroupConfig,
        result: GetResult,
        matcher: Matcher | None,
        may_hold: bool,
    ) -> Response | None:
        """Respond to a pull outside the queue of a slave, whose master may have more messages.

        Behind the end of the queue the pull waits a while: without a master the client would
        repeat it without a pause.
        """
        if pull.offset > result.max_offset and may_hold and pull.flags & _SUSPEND:
            pull.matcher = matcher
            pull.is_short_poll = True
            self._hold(pull, max(self._short_poll_ms, 1))
            return None
        self._stats.missed()
        low, high = result.min_offset, result.max_offset
        fields = _fields_of(pull, group.broker_id, pull.offset, low, high)
        return Response(_RETRY, result.status.name, fields=fields)

    def _read_first(self, pull: Pull, parts: list[ColdPart], may_hold: bool) -> Response | None:
        """Read parts of files into memory, then run the pull again."""
        if pull.cold_reads >= _COLD_READS_MAX:
            low, high = self._store.bounds(pull.topic, pull.queue_id)
            return Response(_RETRY, EVICTED, fields=_fields_of(pull, 0, pull.offset, low, high))
        pull.cold_reads += 1
        if pull.reads_exactly:
            parts = [part._replace(useful_to=part.stop) for part in parts]
        pauses = not self._cold_reads.is_limited  # it may wait for seconds then: as if it were held
        if pauses:
            pull.wire.pause_frames()
        then = partial(self._was_read, pull, may_hold, pauses, monotonic())
        self._cold_reads.bring_in(parts, then, pull.group)
        return None

    def _was_read(
        self,
        pull: Pull,
        may_hold: bool,
        pauses: bool,
        began_s: float,
        done: asyncio.Future[None],
    ) -> None:
        slow, took_s = pull.wire.slow, monotonic() - began_s
        if slow is not None and took_s >= slow.limit_s:
            spent = {"disk" if pauses else "flow-control": took_s}
            peer, group, topic = pull.wire.peer_text, pull.group, pull.topic
            slow.add(_PULL, pull.opaque, peer, took_s, spent, topic=topic, group=group)
        try:
            problem = broker_stopping() if done.cancelled() else done.exception()
            if problem is None:
                self._run_again(pull, may_hold)
            elif isinstance(problem, StoreError) and not pull.reads_exactly:
                pull.reads_exactly = True  # perhaps only what is behind its messages is unreadable
                self._run_again(pull, may_hold)
            elif isinstance(problem, Exception):
                pull.fail(problem)
        finally:
            if pauses:
                pull.wire.resume_frames()

    def _apply(self, settings: BrokerSettings) -> None:
        """Copy the settings that pulls need."""
        self._is_readable = settings.broker_permission & _READ != 0
        self._serves_lite = settings.lite_pull_message_enable
        self._filters_by_properties = settings.enable_property_filter
        self._filters_retries = settings.filter_support_retry
        self._serves_resets = settings.use_server_side_reset_offset
        self._polls_long = settings.long_polling_enable
        self._short_poll_ms = settings.short_polling_time_ms
        self._suggests = settings.slave_read_enable
        self._applied = settings

    # --- checks, in RocketMQ's order ----------------------------------------------------------

    def _check_group(self, pull: Pull) -> SubscriptionGroupConfig:
        if not self._is_readable:
            raise PullForbiddenError(
                f"the broker[{self._ip}] pulling message is forbidden", FORBIDDEN_BY_BROKER
            )
        if pull.is_lite and not self._serves_lite:
            raise PullForbiddenError(
                f"the broker[{self._ip}] for lite pull consumer is forbidden", FORBIDDEN_BY_BROKER
            )
        group = self._group_configs.get(pull.group) or self._groups.require(
            pull.group, "subscription group [{}] does not exist, "
        )
        if not group.consume_enable:
            raise PullForbiddenError(
                f"subscription group no permission, {pull.group}", FORBIDDEN_BY_GROUP
            )
        return group

    def _check_topic(self, pull: Pull) -> TopicConfig:
        topic = self._topic_configs.get(pull.topic) or self._topics.require(pull.topic)
        if not topic.perm & _READ:
            raise PullForbiddenError(
                f"the topic[{pull.topic}] pulling message is forbidden", FORBIDDEN_BY_TOPIC
            )
        if pull.logical is not None or (self._static_topics and pull.topic in self._static_topics):
            self._locate(pull)
            if pull.logical is not None and pull.logical.is_elsewhere:
                return topic
        if not 0 <= pull.queue_id < topic.read_queue_nums:
            raise invalid(
                f"queueId[{pull.queue_id}] is illegal, topic:[{pull.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[{pull.wire.peer_text}]"
            )
        return topic

    def _locate(self, pull: Pull) -> None:
        """Translate queue and offset of a pull of a logical queue, by the mapping as it is now.

        Raises:
            ResponseError: 501, this broker does not lead the queue.
        """
        if pull.is_physical or self._logical is None:
            return
        before = pull.logical
        queue_id = pull.queue_id if before is None else before.queue.queue_id
        offset = pull.offset if before is None else before.offset
        detail = self._static_topics.get(pull.topic)
        if detail is None:  # deleted and created again while the pull waited
            raise not_leader(pull.topic, queue_id, self._ip, _PULL)
        pull.logical = self._logical.get().locate(detail, queue_id, offset)
        pull.queue_id = pull.logical.physical_queue
        pull.offset = pull.logical.physical_offset

    def _matcher(self, pull: Pull, group: SubscriptionGroupConfig) -> Matcher | None:
        matcher = self._subscribed(pull, group)
        if self._filters_retries and pull.topic.startswith(RETRY_PREFIX):
            return self._filters.retry_matcher(pull.topic, matcher)
        return matcher

    def _subscribed(self, pull: Pull, group: SubscriptionGroupConfig) -> Matcher | None:
        if pull.flags & _SUBSCRIPTION:
            if pull.expression == ALL_TAGS and pull.kind == TAG_KIND:
                return None
            if pull.own_matcher is None:
                pull.own_matcher = matcher_of(
                    pull.expression, pull.kind, self._filters_by_properties
                )
            return pull.own_matcher
        online = self._consumers.group(pull.group)
        if online is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
            )
        if not group.consume_broadcast_enable and online.model == BROADCASTING:
            raise PullForbiddenError(
                f"the consumer group[{pull.group}] can not consume by broadcast way",
                FORBIDDEN_TO_BROADCAST,
            )
        if self._groups.is_forbidden(pull.group, pull.topic):
            raise PullForbiddenError(
                f"the consumer group[{pull.group}] is forbidden for topic[{pull.topic}]",
                FORBIDDEN_TO_SUBSCRIPTION,
            )
        subscription = online.subscriptions.get(pull.topic)
        if subscription is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        if subscription.version < pull.version:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        if subscription.is_by_tags:
            return subscription.tag_matcher
        return self._filters.matcher(pull.group, subscription, self._filters_by_properties)

    # --- responses ----------------------------------------------------------------------------

    def _pending_reset(self, pull: Pull) -> Response | None:
        """Return the response with an offset that an administrator has set, or None."""
        offset = self._offsets.take_reset(pull.group, pull.topic, pull.queue_id)
        if offset is None:
            return None
        low, high = self._store.bounds(pull.topic, pull.queue_id)
        return Response(_MOVED, "OFFSET_RESET", fields=_fields_of(pull, 0, offset, low, high))

    def _respond(
        self, pull: Pull, group: SubscriptionGroupConfig, result: GetResult, code: int
    ) -> Response | None:
        suggested = 0
        if self._suggests:
            slow = result.suggest_slave
            suggested = group.which_broker_when_consume_slowly if slow else group.broker_id
        low, high = result.min_offset, result.max_offset
        logical = pull.logical
        if code != _FOUND:
            self._stats.missed()
            if logical is not None:
                return Response(code, result.status.name, fields=logical.fields(suggested))
            fields = _fields(suggested, result.next_begin_offset, low, high)
            return Response(code, result.status.name, fields=fields)
        self._stats.got(pull.group, pull.topic, pull.queue_id, result.count, result.size_bytes)
        success = self._found_binary if pull.is_binary else self._found_json
        if logical is None:
            numbers = (suggested, result.next_begin_offset, low, high, pull.opaque)
            pull.succeed(success.head(numbers, result.size_bytes), result)
            return None
        success = self._logical_binary if pull.is_binary else self._logical_json
        head = success.head(logical.numbers(suggested, pull.opaque), result.size_bytes)
        pull.succeed(head, result)
        return None

    def _respond_behind_end(self, pull: Pull, logical: LogicalPull) -> Response:
        """Respond to a pull behind the end that the item of a logical queue says."""
        self._stats.missed()
        low, high = self._store.bounds(pull.topic, pull.queue_id)
        code = logical.settle(_NOT_FOUND, pull.offset, low, high)
        return Response(code, "OFFSET_OVERFLOW_ONE", fields=logical.fields(0))

    def _read_elsewhere(self, pull: Pull, pulls: LogicalPulls, may_hold: bool) -> None:
        """Let the broker of the item read, with the subscription that the group has here."""
        expression, kind, version = pull.expression, pull.kind, pull.version
        online = None if pull.flags & _SUBSCRIPTION else self._consumers.group(pull.group)
        if online is not None:
            data = online.subscriptions[pull.topic].data
            expression, kind, version = data.sub_string, data.expression_type, data.sub_version
        pulls.read_elsewhere(pull, expression, kind, version, may_hold)

    def _hold(self, pull: Pull, hold_ms: int) -> None:
        if pull.wire.closed:  # while its group was created; it would be held until its time is over
            return
        if not self._held.is_open:
            raise broker_stopping()
        if not self._held.hold(pull, hold_ms):
            raise ResponseError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]the broker holds {len(self._held)} pulls and can hold no more",
            )
        pull.was_held = True


def _code_of(result: GetResult, requested_offset: int) -> int:
    status = result.status
    if status is _STATUS_FOUND:
        return _FOUND
    if status in _EMPTY:
        return _NOT_FOUND if requested_offset == 0 else _MOVED
    return _CODE_OF_STATUS[status]


def _fields(suggested_broker: int, next_offset: int, low: int, high: int) -> dict[str, str]:
    # The fields of PullMessageResponse, written out because every response to a pull has them.
    return {
        "suggestWhichBrokerId": str(suggested_broker),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(low),
        "maxOffset": str(high),
    }


def _fields_of(
    pull: Pull, suggested_broker: int, next_offset: int, low: int, high: int
) -> dict[str, str]:
    """Return the fields of a response, translated for a logical queue."""
    if pull.logical is None:
        return _fields(suggested_broker, next_offset, low, high)
    pull.logical.translate(next_offset, low, high)
    return pull.logical.fields(suggested_broker)


def _forbidden(refusal: PullForbiddenError) -> Response:
    fields = {"forbiddenType": str(refusal.forbidden_type)}
    return Response(refusal.code, refusal.remark, fields=fields)
