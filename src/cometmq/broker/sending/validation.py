# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""Validates sends, and selects the topic, the queue and the properties that are stored.

The checks that need the broker's tables and settings happen here, in RocketMQ's order, before
anything is stored; `store/appender.py` checks the limits of the record format. Validation fills
in topic, queue and properties of the `Send`: mostly those of the request, but a message with a
delay level is scheduled, and a retry beyond the limit of its group becomes a dead letter.

`SendValidation.route_common` recognizes sends that pass all checks and are stored in the queue that
the request names. For such a send it has the same result as the checks.

Source: AbstractSendMessageProcessor.msgCheck, SendMessageProcessor and HookUtils, RocketMQ 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from cometmq.broker.config import BrokerSettings
from cometmq.broker.groups.table import GroupTable
from cometmq.broker.sending.retries import level_of_copy, retries_max
from cometmq.broker.sending.send import Send, SendHeader
from cometmq.broker.targets import random_queue
from cometmq.broker.timers.routing import DELIVERED_BYTES, TimerRouting
from cometmq.broker.topics.table import TopicTable
from cometmq.broker.transactions.half_message import (
    COPY_BYTES,
    HALF_QUEUE,
    half_properties,
    is_half,
)
from cometmq.model import property_names
from cometmq.model.errors import InvalidNameError, ResponseError
from cometmq.model.flags import SysFlag
from cometmq.model.topic import (
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    TIMER_TOPIC,
    TOPIC_CHARS_MAX,
    TOPICS_OF_WAITING,
    Perm,
    TopicConfig,
    check_topic_name,
    dlq_topic,
    poppers_of,
)
from cometmq.protocol import octets
from cometmq.protocol import properties as property_text
from cometmq.protocol.bodies.route import TopicQueueMappingDetail
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.send import SendMessageRequest
from cometmq.protocol.properties import (
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
)
from cometmq.remoting import Peer
from cometmq.store import StoreSettings
from cometmq.store.queues.batch_topics import holds_batches

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp  # type: ignore

MULTI_TAG: Final = "MULTI_TAG"
PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)
"""The bit of half messages and rolled-back ones, which consumers never get."""
_END = b"\x02"
_WAIT = b"WAIT\x01true"
_WAITS = _WAIT + _END
_UNIQUE_KEY = b"UNIQ_KEY\x01"
_UNCOMMON = PREPARED | int(SysFlag.INNER_BATCH)  # C numbers once compiled
_PROPERTIES_MAX = PROPERTIES_BYTES_MAX
_COMPLETE, _NEEDS_ID, _NEEDS_REWRITE = 0, 1, 2
_REWRITTEN = (
    property_names.DELAY,
    property_names.TRAN_MSG,
    property_names.TIMER_DELAY_SEC,
    property_names.TIMER_DELAY_MS,
    property_names.TIMER_DELIVER_MS,
    property_names.CLUSTER,
    property_names.MSG_REGION,
    property_names.TRACE_ON,
    property_names.POP_CK,
    property_names.INNER_NUM,
)
"""The properties that the broker refuses, drops or sets itself."""
_needs_rewrite = re.compile(b"\x02(?:%b)\x01" % "|".join(_REWRITTEN).encode())
_needs_general_path = re.compile(
    _needs_rewrite.pattern + rb"|\x02UNIQ_KEY\x01\x02|\x02WAIT\x01(?!true\x02)"
).search
"""Finds properties for the general path: those above, a unique key without a value, a sender that
does not wait for the disk."""
_first_letters = {name.encode()[0] for name in (*_REWRITTEN, property_names.UNIQ_KEY, "WAIT")}
_MAY_NEED_IT = bytes(letter in _first_letters for letter in range(256))
"""Whether a property that begins with a letter may need the general path."""


class SendRules(msgspec.Struct, frozen=True):
    """Settings of the broker that apply to sends."""

    broker_ip: str
    cluster: str
    region: str
    trace_on: bool
    broker_writable: bool = True
    accept_from_ms: int = 0
    body_bytes_max: int = 4 * 1024 * 1024
    rejects_transactions: bool = False


class SendValidation:
    """Checks sends and routes them.

    Args:
        rules: the current rules; `change` replaces them.
        topics, groups: the tables.
        timers: decide which messages wait for their time.
        holds_locks: returns whether a group holds queue locks, that is, consumes in order.
        new_unique_key: returns a unique id, for a message whose client sent none.
        now_ms: the wall clock.
        queue_chance: returns the number of a queue, out of so many, at random.
    """

    def __init__(
        self,
        rules: SendRules,
        topics: TopicTable,
        groups: GroupTable,
        timers: TimerRouting,
        *,
        holds_locks: Callable[[str], bool],
        new_unique_key: Callable[[], str],
        now_ms: Callable[[], int],
        queue_chance: Callable[[int], int] = random_queue,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._timers = timers
        self._levels = timers.levels
        self._holds_locks = holds_locks
        self._new_unique_key = new_unique_key
        self._now_ms = now_ms
        self._queue_chance = queue_chance
        self.check_session: Callable[[str, str, int, str], object] | None = None
        """Checks a send by topic, name, epoch and owner of its producer session."""
        self.static_topics: dict[str, TopicQueueMappingDetail] = {}
        """The static topics; call `change` when one is added or removed."""
        self._configs = topics.all()  # a lookup calls no function of Python
        self._topic: str | None = None
        """The topic of the last send, with the settings that it has had in this read batch."""
        self._config: TopicConfig | None = None
        self._unchecked_queues = 0
        """How many of its queues take messages without further checks."""
        self.change(rules)

    def change(self, rules: SendRules) -> None:
        """Replace the rules."""
        self.rules = rules
        trace = "true" if rules.trace_on else "false"
        self._broker_properties = {
            property_names.CLUSTER: rules.cluster,
            property_names.MSG_REGION: rules.region,
            property_names.TRACE_ON: trace,
        }
        self._suffix = encode_properties(self._broker_properties)
        self._batch_suffix = _WAITS + self._suffix
        self._body_bytes_max = rules.body_bytes_max
        self._checks_all = not rules.broker_writable or rules.accept_from_ms > 0
        self._topic = self._config = None
        self._unchecked_queues = 0

    def forget_topic(self) -> None:
        """Look the last topic up again: its settings may be replaced between two read batches."""
        self._topic = None

    def route_common(self, send: Send) -> bool:
        """Route a send that is sure to pass all checks; return False for all others.

        It leaves sends that do not wait for the disk to the general path.
        """
        topic = send.requested_topic
        if topic is not self._topic:
            self._topic = topic
            config = self._configs.get(topic)
            if config is not self._config:
                self._config = config
                self._unchecked_queues = self._count_unchecked_queues(topic, config)
        if not 0 <= send.requested_queue_id < self._unchecked_queues or send.sys_flag & _UNCOMMON:
            return False
        if not 0 < send.body_end - send.body_at <= self._body_bytes_max:
            return False
        more = self._suffix
        if send.is_batch:
            send.name(b"")
            if send.text_at < send.text_end:
                if not _is_only_wait(octets.start_of(send.text), send.text_at, send.text_end):
                    return False
                send.text_end, more = send.text_at, self._batch_suffix
        else:
            text = octets.start_of(send.text)
            found = _scan_properties(send, text, send.text_at, send.text_end)
            if found == _NEEDS_REWRITE:
                return False
            if found == _NEEDS_ID:
                unique_id = self._new_unique_key().encode()
                send.name(unique_id)
                more = _UNIQUE_KEY + unique_id + _END + more
            if (
                property_text.joined_bytes(text, send.text_at, send.text_end, more)
                > _PROPERTIES_MAX
            ):
                return False
        send.topic, send.queue_id, send.more = topic, send.requested_queue_id, more
        return True

    def _count_unchecked_queues(self, topic: str, config: TopicConfig | None) -> int:
        """Return how many queues of a topic take messages without further checks; 0 for none."""
        if (
            config is None
            or self._checks_all
            or topic in self.static_topics
            or topic in TOPICS_OF_WAITING
            or topic.startswith(RETRY_PREFIX)
            or config.topic_filter_type == MULTI_TAG
        ):
            return 0
        return config.write_queue_nums

    def route(self, send: Send) -> None:
        """Check a send with a typed header, and route it.

        Raises:
            ResponseError: it may not be stored; nothing was.
            PrerequisiteError: something has to be created or read first.
        """
        header = send.header
        if header is not None and header.producer_session is not None:
            self._check_session(header)
        self.forget_topic()
        if not self.route_common(send):
            self.check_and_route(send)

    def route_logical(self, send: Send) -> None:
        """Check a send to a logical queue of a static topic, and route it.

        Raises:
            ResponseError: 501, the queue is led by another broker; or as `route`.
            PrerequisiteError: something has to be created or read first.
        """
        header = send.header
        assert header is not None
        if isinstance(header, SendMessageRequest) and header.lo is False:
            self.route(send)
            return
        from cometmq.broker.static_topics.sends import check_not_waiting, target_of

        target = target_of(self.static_topics[header.topic], header.queue_id)
        properties = decode_properties(header.properties or "")
        level = self._levels.level_of(properties.get(property_names.DELAY))
        check_not_waiting(header.topic, properties, header.sys_flag, level)
        send.item = target.item
        send.header = msgspec.structs.replace(header, queue_id=target.item.queue_id)
        self.route(send)
        send.requested_queue_id = target.queue_id

    def check_and_route(self, send: Send) -> None:
        """Route a message as `route` does, on the general path, with every check."""
        header, connection = send.header, send.wire
        assert header is not None
        if header.sys_flag & SysFlag.INNER_BATCH:
            raise _illegal(
                f"sysFlag {header.sys_flag:#x} says that the body is a batch in one record, which"
                " only the broker makes, of a batch with a unique id for a topic with"
                " queue.type=BatchCQ; expected a message or a batch without that flag"
            )
        config = self._checked_topic(header, connection)
        queue_id = self._checked_queue(header, config, connection)
        send.requested_queue_id = send.queue_id = queue_id
        send.topic = header.topic
        send.sys_flag |= _flag_of(config)
        if send.is_batch:
            self._route_batch(send, header, config)
        else:
            self._route_message(send, header)
        self._check_size(send)

    def _route_message(self, send: Send, header: SendHeader) -> None:
        text = bytes(send.text)
        prepared = header.sys_flag & PREPARED
        if prepared or _needs_rewrite.search(_END + text) or header.topic.startswith(RETRY_PREFIX):
            self._route_rewritten(send, header)
            return
        send.more = self._suffix
        # A name that ends like its name is none, nor is one without a value.
        unique_id = property_text.value_of(text, property_text.UNIQ_KEY_MARKER)
        if unique_id is None:
            unique_id = self._new_unique_key().encode()
            send.more = _UNIQUE_KEY + unique_id + _END + self._suffix
        send.name(unique_id)

    def _route_batch(self, send: Send, header: SendHeader, config: TopicConfig) -> None:
        """Set the properties that each message of a batch gets, or their one record."""
        if len(header.topic) > TOPIC_CHARS_MAX:
            raise _illegal(f"message topic length too long {len(header.topic)}")
        if header.topic.startswith(RETRY_PREFIX):
            raise _illegal(f"batch request does not support retry group {header.topic}")
        properties = decode_properties(header.properties or "")
        if header.sys_flag & PREPARED or is_half(properties):
            raise _illegal("a batch cannot be part of a transaction")
        is_level = self._levels.level_of(properties.get(property_names.DELAY))
        if is_level or self._timers.check(header.topic, properties) is not None:
            raise _illegal("a batch cannot be delayed")
        _refuse_count(properties)
        unique_id = properties.get(property_names.UNIQ_KEY, "")
        send.name(unique_id.encode())
        send.is_one_record = bool(unique_id) and holds_batches(config.attributes)
        self._rewrite(send, properties | self._broker_properties)

    def _rewrite(self, send: Send, properties: Mapping[str, str]) -> None:
        """Replace the properties of the request by the properties to store."""
        send.text_at = send.text_end = 0
        send.more = encode_properties(properties)

    def _check_session(self, header: SendHeader) -> None:
        """Refuse a send of another attempt than the newest of its producer session."""
        if self.check_session is not None:
            name, owner = header.producer_session or "", header.producer_owner or ""
            self.check_session(header.topic, name, header.producer_epoch or 0, owner)

    # --- checks -------------------------------------------------------------------------------

    def _checked_topic(self, header: SendHeader, connection: Peer) -> TopicConfig:
        self._check_time()
        topic = header.topic
        config = self._configs.get(topic)
        if config is None or not self.rules.broker_writable:
            config = self._required_topic(header, config, connection)
        _refuse_forbidden(topic)
        return config

    def _check_time(self) -> None:
        opens_ms = self.rules.accept_from_ms
        if self._now_ms() < opens_ms:
            opens = datetime.fromtimestamp(opens_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"broker unable to service, until {opens},{opens_ms % 1000:03d}",
            )

    def _required_topic(
        self, header: SendHeader, config: TopicConfig | None, connection: Peer
    ) -> TopicConfig:
        if not self.rules.broker_writable and config is not None and config.order:
            raise self._forbidden("sending message")
        if config is not None:
            return config
        topic = header.topic
        if self._popper_of(topic) is not None:
            return self._topics.require_internal(topic, 1, by_send=True)
        try:
            check_topic_name(topic)
        except InvalidNameError as problem:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, problem.remark) from None
        _refuse_forbidden(topic)
        if not header.default_topic or header.default_topic_queue_nums is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"topic[{topic}] does not exist, and the request lacks defaultTopic or"
                " defaultTopicQueueNums, from which it would be created",
            )
        config = self._topics.require_for_send(
            topic,
            header.default_topic,
            header.default_topic_queue_nums,
            unit_mode=bool(header.unit_mode),
            producer=connection.peer_text,
        )
        if config is None and topic.startswith(RETRY_PREFIX):
            config = self._topics.require_internal(topic, 1, by_send=True)
        if config is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
        return config

    def _checked_queue(self, header: SendHeader, config: TopicConfig, connection: Peer) -> int:
        queue_id = header.queue_id
        if queue_id < 0 < config.write_queue_nums:
            return self._queue_chance(config.write_queue_nums)
        if not 0 <= queue_id < max(config.write_queue_nums, config.read_queue_nums):
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {config} Producer:"
                f" {connection.peer_text}",
            )
        return queue_id

    def _check_size(self, send: Send) -> None:
        body_bytes = send.body_end - send.body_at
        text = octets.start_of(send.text)
        text_bytes = property_text.joined_bytes(text, send.text_at, send.text_end, send.more)
        least_bytes = 0 if send.may_be_empty else 1
        if least_bytes <= body_bytes <= self._body_bytes_max and text_bytes <= PROPERTIES_BYTES_MAX:
            return
        raise _illegal(
            "the message is illegal, maybe msg body or properties length not matched. msg body"
            f" length limit {self._body_bytes_max}B, msg properties length limit 32KB. Met a body"
            f" of {body_bytes}B and properties of {text_bytes}B."
        )

    def _forbidden(self, what: str) -> ResponseError:
        remark = f"the broker[{self.rules.broker_ip}] {what} is forbidden"
        return ResponseError(ResponseCode.NO_PERMISSION, remark)

    # --- properties ---------------------------------------------------------------------------

    def _route_rewritten(self, send: Send, header: SendHeader) -> None:
        properties = decode_properties(header.properties or "")
        if send.topic.startswith(RETRY_PREFIX):
            self._route_retry(send, header, properties)
        is_prepared = self._is_half(header, properties)
        _refuse_count(properties)
        properties.pop(property_names.POP_CK, None)
        if not properties.get(property_names.UNIQ_KEY):
            properties[property_names.UNIQ_KEY] = self._new_unique_key()
        send.name(properties[property_names.UNIQ_KEY].encode())
        if send.topic.startswith(DLQ_PREFIX) and send.topic != header.topic:
            properties.pop(property_names.DELAY, None)
        properties.update(self._broker_properties)
        if is_prepared:  # a delay begins when the message is committed
            if not self._levels.level_of(properties.get(property_names.DELAY)):
                properties = self._timers.checked_half(header.topic, properties, send.request)
            properties = half_properties(send.topic, send.queue_id, properties)
            send.topic, send.queue_id = HALF_TOPIC, HALF_QUEUE
            send.sys_flag &= ~SysFlag.TRANSACTION_MASK
        elif scheduled := self._timers.delayed(send.topic, send.queue_id, properties, send.request):
            send.topic, send.queue_id, properties = scheduled
            send.recall_handle = self._timers.handle_of(scheduled).encode()
        self._rewrite(send, properties)
        if is_prepared:
            _check_room_of_copy(len(send.more), COPY_BYTES, "a half message", "a check")
        elif send.topic == TIMER_TOPIC:
            _check_room_of_copy(len(send.more), DELIVERED_BYTES, "a timer message", "its delivery")

    def _popper_of(self, topic: str) -> str | None:
        """Return the group for whose popped messages a topic is the retry topic; None for none.

        A slave that acts as the master sends them. RocketMQ takes all behind the prefix for the
        name of a group, and creates that group.
        """
        text = topic.removeprefix(RETRY_PREFIX)
        if text == topic or self._groups.get(text) is not None:
            return None
        for group, popped in poppers_of(topic):
            if popped in self._topics and ("+" in text or self._groups.get(group) is not None):
                return group
        return None

    def _route_retry(self, send: Send, header: SendHeader, properties: dict[str, str]) -> None:
        """Route a retry that a consumer sends: to its retry topic, or to the dead letters."""
        group_name = self._popper_of(header.topic) or header.topic[len(RETRY_PREFIX) :]
        group = self._groups.resolve(group_name)
        if group is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group_name}",
            )
        times = header.reconsume_times or 0
        most = retries_max(group, header.max_reconsume_times, send.wire.version)
        if times > most or self._holds_locks(group_name):
            dead = self._topics.require_internal(dlq_topic(group_name), 1)
            send.topic = dead.topic_name
            send.queue_id = self._queue_chance(max(dead.write_queue_nums, 1))
        elif times > 0 and property_names.DELAY in properties:
            # The consumer has counted this retry already.
            properties[property_names.DELAY] = level_of_copy(
                group.group_retry_policy,
                self._levels,
                times - 1,
                properties[property_names.DELAY],
            )

    def _is_half(self, header: SendHeader, properties: dict[str, str]) -> bool:
        """Return whether a message is a half message, if the broker takes those."""
        level = self._levels.level_of(properties.get(property_names.DELAY))
        if is_half(properties) and not (level and header.reconsume_times):
            if self.rules.rejects_transactions:
                raise self._forbidden("sending transaction message")
            return True
        if header.sys_flag & PREPARED:
            raise _illegal(
                "a message with the flag of half messages, expected the property TRAN_MSG=true"
            )
        return False


def _refuse_count(properties: Mapping[str, str]) -> None:
    """Refuse the property that says how many messages a record has: only the store sets it."""
    if property_names.INNER_NUM in properties:
        raise _illegal(
            f"a message with the property {property_names.INNER_NUM}, which the broker sets;"
            " expected no such property"
        )


def _check_room_of_copy(size: int, room: int, what: str, adder: str) -> None:
    """Refuse a message that could not be stored again, by the size of its properties."""
    if size > PROPERTIES_BYTES_MAX - room:
        raise _illegal(
            f"the properties of {what} have {size} bytes, expected at most"
            f" {PROPERTIES_BYTES_MAX - room}: {adder} adds up to {room} bytes"
        )


def _scan_properties(send: Send, text: Any, at: int, end: int) -> int:
    """Return whether properties are _COMPLETE, need a unique id or the general path.

    If they are complete, the send gets their unique id: the last one, as readers of them do.
    """
    found = _NEEDS_ID
    start = at
    if not cython.compiled:
        return _search_properties(send, octets.bytes_in(text, at, end - at))
    while at < end:
        stop = octets.end_of_run(text, at, end, 2)
        first = text[at]
        size = stop - at
        if first == 85 and size > 9 and memcmp(text + at, b"UNIQ_KEY\x01", 9) == 0:
            found = _COMPLETE
            send.id_source, send.id_at, send.id_end = send.text, at + 9, stop
        elif first == 84 and size > 5 and memcmp(text + at, b"TAGS\x01", 5) == 0:
            pass
        elif _MAY_NEED_IT[first] and (size != 9 or memcmp(text + at, b"WAIT\x01true", 9) != 0):
            return _search_properties(send, octets.bytes_in(text, start, end - start))
        at = stop + 1
    return found


def _search_properties(send: Send, text: bytes) -> int:
    """Scan any properties: `_scan_properties` knows only the most frequent ones."""
    if _needs_general_path(b"\x02%b\x02" % text) is not None:
        return _NEEDS_REWRITE
    unique_id = property_text.value_of(text, property_text.UNIQ_KEY_MARKER)
    if unique_id is None:
        return _NEEDS_ID
    send.name(unique_id)
    return _COMPLETE


def _is_only_wait(text: Any, at: int, end: int) -> bool:
    """Return whether the only property is that the sender waits for the disk."""
    if end - at == len(_WAITS):
        end -= text[end - 1] == 2
    return octets.equals(text, at, end - at, _WAIT)


def _flag_of(config: TopicConfig) -> int:
    return SysFlag.MULTI_TAGS if config.topic_filter_type == MULTI_TAG else 0


def _refuse_forbidden(topic: str) -> None:
    if topic in TOPICS_OF_WAITING:
        raise ResponseError(
            ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
        )


def _illegal(remark: str) -> ResponseError:
    return ResponseError(ResponseCode.MESSAGE_ILLEGAL, remark)


def send_rules(settings: BrokerSettings, stored: StoreSettings, ip: str) -> SendRules:
    """Return the rules that the settings give."""
    return SendRules(
        broker_ip=ip,
        cluster=settings.broker_cluster_name,
        region=settings.region_id,
        trace_on=settings.trace_on,
        broker_writable=bool(settings.broker_permission & Perm.WRITE),
        accept_from_ms=settings.start_accept_send_request_ms,
        body_bytes_max=stored.message_bytes_max,
        rejects_transactions=settings.reject_transaction_message,
    )
