# cython: annotation_typing=False
"""Answers PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): hand out what a group wants of a queue.

A pull passes its checks in RocketMQ's order, reads the queue, and is answered with the raw records
of the commit log. At the end of a queue it may be held (``services/long_polling.py``) and runs once
more, for good, when a message comes or its time is over.

Hot: one answer per call, plain control flow, compiled by Cython in pure Python mode.
Source: PullMessageProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.config import BrokerSettings
from cometmq.broker.services.consumers import BROADCASTING, ConsumerRegistry
from cometmq.broker.services.groups import GroupTable
from cometmq.broker.services.long_polling import HeldPull, HeldPulls
from cometmq.broker.services.names import known_group, known_topic
from cometmq.broker.services.offsets import ConsumerOffsets
from cometmq.broker.services.stats import BrokerStats
from cometmq.broker.services.subscriptions import matcher_of
from cometmq.broker.services.topics import TopicTable
from cometmq.model.errors import ResponseError
from cometmq.model.flags import PullSysFlag
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import Perm, TopicConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import PullMessageRequest
from cometmq.remoting.exchange import Request, Response
from cometmq.store import GetResult, GetStatus, Matcher, MessageStore

# Which switch refused a pull, told in header field forbiddenType.
FORBIDDEN_BY_BROKER = 1
FORBIDDEN_BY_GROUP = 2
FORBIDDEN_BY_TOPIC = 3
FORBIDDEN_TO_BROADCAST = 4
FORBIDDEN_TO_SUBSCRIPTION = 5

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

_COMMIT_OFFSET = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)
_READ = int(Perm.READ)
_LITE_PULL = int(RequestCode.LITE_PULL_MESSAGE)


class PullForbiddenError(ResponseError):
    """A switch is set against this pull: code 16, and which switch it was."""

    def __init__(self, remark: str, forbidden_type: int) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.forbidden_type = forbidden_type


class PullMessages:
    """Hands out messages.

    Args:
        store: where they are.
        topics, groups: what exists, and what it may do.
        consumers: the subscriptions of groups that are online.
        offsets: takes the offsets that travel with pulls, and knows pending resets.
        held: keeps the pulls that wait.
        settings: gives the broker's settings as they are now.
        stats: counts what was handed out.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerRegistry,
        offsets: ConsumerOffsets,
        held: HeldPulls,
        settings: Callable[[], BrokerSettings],
        stats: BrokerStats,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._held = held
        self._settings = settings
        self._stats = stats

    def pull(self, request: Request) -> Response | None:
        """Answer now, or hold the pull and return None."""
        header = request.header(PullMessageRequest)
        try:
            return self._run(request, header, True)
        except PullForbiddenError as refusal:
            return _forbidden(refusal)

    def rerun(self, request: Request, header: PullMessageRequest) -> None:
        """Answer a pull that was held, for good."""
        if request.connection.closed:
            return
        try:
            response = self._run(request, header, False)
        except PullForbiddenError as refusal:
            response = _forbidden(refusal)
        except ResponseError as refusal:
            response = Response(refusal.code, refusal.remark)
        if response is not None:
            request.reply(response)

    def _run(self, request: Request, header: PullMessageRequest, may_hold: bool) -> Response | None:
        settings = self._settings()
        group = self._check_group(request, header, settings)
        self._check_topic(request, header)
        matcher = self._matcher(header, group, settings)
        response = self._pending_reset(header, settings)
        if response is not None:
            return response
        result = self._read(header, matcher)
        if may_hold and header.sys_flag & _COMMIT_OFFSET and header.commit_offset >= 0:
            self._offsets.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        code = _code_of(result, header.queue_offset)
        if code == _NOT_FOUND and may_hold and header.sys_flag & _SUSPEND:
            is_long = settings.long_polling_enable
            hold_ms = header.suspend_timeout_millis if is_long else settings.short_polling_time_ms
            if hold_ms > 0:
                self._hold(request, header, matcher, hold_ms, sits_out=not is_long)
                return None
        return self._answer(header, group, result, code, settings)

    # --- checks, in RocketMQ's order ----------------------------------------------------------

    def _check_group(
        self, request: Request, header: PullMessageRequest, settings: BrokerSettings
    ) -> SubscriptionGroupConfig:
        ip = settings.broker_ip1 or settings.bind_address
        if not settings.broker_permission & _READ:
            raise PullForbiddenError(
                f"the broker[{ip}] pulling message is forbidden",
                FORBIDDEN_BY_BROKER,
            )
        if request.code == _LITE_PULL and not settings.lite_pull_message_enable:
            raise PullForbiddenError(
                f"the broker[{ip}] for lite pull consumer is forbidden",
                FORBIDDEN_BY_BROKER,
            )
        group = known_group(
            self._groups, header.consumer_group, "subscription group [{}] does not exist, "
        )
        if not group.consume_enable:
            raise PullForbiddenError(
                f"subscription group no permission, {header.consumer_group}", FORBIDDEN_BY_GROUP
            )
        return group

    def _check_topic(self, request: Request, header: PullMessageRequest) -> TopicConfig:
        topic = known_topic(self._topics, header.topic)
        if not topic.perm & _READ:
            raise PullForbiddenError(
                f"the topic[{header.topic}] pulling message is forbidden", FORBIDDEN_BY_TOPIC
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[{request.connection.peer_text}]",
            )
        return topic

    def _matcher(
        self,
        header: PullMessageRequest,
        group: SubscriptionGroupConfig,
        settings: BrokerSettings,
    ) -> Matcher | None:
        if header.sys_flag & _SUBSCRIPTION:
            return matcher_of(
                header.subscription, header.expression_type, settings.enable_property_filter
            )
        online = self._consumers.group(header.consumer_group)
        if online is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
            )
        if not group.consume_broadcast_enable and online.model == BROADCASTING:
            raise PullForbiddenError(
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
                FORBIDDEN_TO_BROADCAST,
            )
        if self._groups.is_forbidden(header.consumer_group, header.topic):
            raise PullForbiddenError(
                f"the consumer group[{header.consumer_group}] is forbidden "
                f"for topic[{header.topic}]",
                FORBIDDEN_TO_SUBSCRIPTION,
            )
        subscription = online.subscriptions.get(header.topic)
        if subscription is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        if subscription.version < header.sub_version:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return subscription.matcher(settings.enable_property_filter)

    # --- reading ------------------------------------------------------------------------------

    def _pending_reset(
        self, header: PullMessageRequest, settings: BrokerSettings
    ) -> Response | None:
        """The answer that tells a group of an offset an administrator has set meanwhile."""
        if not self._offsets.has_resets or not settings.use_server_side_reset_offset:
            return None
        offset = self._offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        if offset is None:
            return None
        low, high = self._store.bounds(header.topic, header.queue_id)
        return Response(_MOVED, "OFFSET_RESET", fields=_fields(0, offset, low, high))

    def _read(self, header: PullMessageRequest, matcher: Matcher | None) -> GetResult:
        result = self._store.get(
            header.topic,
            header.queue_id,
            header.queue_offset,
            max(header.max_msg_nums, 1),
            matcher,
            header.max_msg_bytes,
        )
        self._offsets.note_pulled(
            header.consumer_group, header.topic, header.queue_id, result.next_begin_offset
        )
        return result

    def _answer(
        self,
        header: PullMessageRequest,
        group: SubscriptionGroupConfig,
        result: GetResult,
        code: int,
        settings: BrokerSettings,
    ) -> Response:
        suggested = 0
        if settings.slave_read_enable:
            slow = result.suggest_slave
            suggested = group.which_broker_when_consume_slowly if slow else group.broker_id
        fields = _fields(suggested, result.next_begin_offset, result.min_offset, result.max_offset)
        if code != _FOUND:
            self._stats.missed()
            return Response(code, result.status.name, fields=fields)
        self._stats.got(
            header.consumer_group,
            header.topic,
            header.queue_id,
            result.count,
            result.size_bytes,
        )
        return Response(code, "FOUND", fields=fields, body=result.slices)

    # --- holding ------------------------------------------------------------------------------

    def _hold(
        self,
        request: Request,
        header: PullMessageRequest,
        matcher: Matcher | None,
        hold_ms: int,
        *,
        sits_out: bool,
    ) -> None:
        pull = HeldPull(
            header.topic,
            header.queue_id,
            header.queue_offset,
            matcher,
            request.connection,
            lambda: self.rerun(request, header),
            sits_out=sits_out,
        )
        if not self._held.hold(pull, hold_ms):
            raise ResponseError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]the broker holds {len(self._held)} pulls and can hold no more",
            )


def _code_of(result: GetResult, requested_offset: int) -> int:
    status = result.status
    if status is GetStatus.FOUND:
        return _FOUND
    if status in _EMPTY:
        return _NOT_FOUND if requested_offset == 0 else _MOVED
    return _CODE_OF_STATUS[status]


def _fields(suggested_broker: int, next_offset: int, low: int, high: int) -> dict[str, str]:
    # The fields of PullMessageResponse, written out because every pull is answered with them.
    return {
        "suggestWhichBrokerId": str(suggested_broker),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(low),
        "maxOffset": str(high),
    }


def _forbidden(refusal: PullForbiddenError) -> Response:
    fields = {"forbiddenType": str(refusal.forbidden_type)}
    return Response(refusal.code, refusal.remark, fields=fields)
