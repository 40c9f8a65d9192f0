# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""Where a producer's message goes and what the broker writes into its properties.

All checks of a send happen here, in RocketMQ's order, before anything is stored. A `Send` then says
topic, queue and properties of what is to be stored: mostly those of the request, but a message
that asks for a delay is parked, and a retry that was tried too often becomes a dead letter.

Of nearly every send a glance shows that all checks would let it pass and put it where it was sent
to. `SendValidation.glance` says so, and nothing that the checks would say otherwise.

Source: AbstractSendMessageProcessor.msgCheck, SendMessageProcessor and HookUtils, RocketMQ 5.3.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from cometmq.broker.config import BrokerSettings
from cometmq.broker.delay.levels import DelayLevels
from cometmq.broker.sending.send import Send, SendHeader
from cometmq.model import property_names
from cometmq.model.errors import InvalidNameError, ResponseError
from cometmq.model.flags import SysFlag
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    TOPIC_CHARS_MAX,
    Perm,
    TopicConfig,
    check_topic_name,
    dlq_topic,
)
from cometmq.protocol import octets
from cometmq.protocol import properties as property_text
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.properties import (
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
)
from cometmq.remoting import Peer
from cometmq.store import StoreSettings

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp  # type: ignore

VERSION_WITH_MAX_RECONSUME: Final = 121
"""From 3.4.9 on clients say how often a message of theirs may be retried."""

MULTI_TAG: Final = "MULTI_TAG"
UNDECIDED: Final = int(SysFlag.TRANSACTION_PREPARED)
"""The bit that half messages and rolled-back ones have; nobody would ever see such a message."""
_END = b"\x02"
_WAIT = b"WAIT\x01true"
_WAITS = _WAIT + _END
_UNIQUE_KEY = b"UNIQ_KEY\x01"
_UNDECIDED = UNDECIDED  # C numbers once compiled
_PROPERTIES_MAX = PROPERTIES_BYTES_MAX
_NOTHING, _ID, _CARE = 0, 1, 2
_unusual = re.compile(rb"\x02(?:DELAY|TRAN_MSG|TIMER_D\w*|CLUSTER|MSG_REGION|TRACE_ON|POP_CK)\x01")
_needs_care = re.compile(
    _unusual.pattern + rb"|\x02UNIQ_KEY\x01\x02|\x02WAIT\x01(?!true\x02)"
).search
"""Finds what is not plain in properties: what the broker must rewrite, not just add to, a unique
key without a value, a sender that does not wait for the disk."""

_TIMERS: Final = (
    property_names.TIMER_DELAY_SEC,
    property_names.TIMER_DELAY_MS,
    property_names.TIMER_DELIVER_MS,
)


class Topics(Protocol):
    """What intake needs of the topic table."""

    def get(self, name: str) -> TopicConfig | None:
        """The topic's settings."""

    def require_for_send(
        self, name: str, template: str, queues: int, *, unit_mode: bool, producer: str
    ) -> TopicConfig | None:
        """The topic's settings; None if its template does not allow its creation."""

    def require_internal(self, name: str, queues: int, *, sys_flag: int = 0) -> TopicConfig:
        """The settings of a retry or dead-letter topic."""


class Groups(Protocol):
    """What intake needs of the group table."""

    def resolve(self, name: str) -> SubscriptionGroupConfig | None:
        """The group's settings; None if there is no such group and none is created."""


class SendRules(msgspec.Struct, frozen=True):
    """What the broker is set to accept, and what it adds."""

    broker_ip: str
    cluster: str
    region: str
    trace_on: bool
    broker_writable: bool = True
    accept_from_ms: int = 0
    body_bytes_max: int = 4 * 1024 * 1024


class SendValidation:
    """Checks and places messages.

    Args:
        rules: gives the rules as they are now; they may change while the broker runs.
        topics, groups: the tables.
        levels: the delay levels.
        holds_locks: whether a group holds queue locks, that is, consumes in order.
        new_unique_key: makes a unique id for a message whose client sent none.
        now_ms: the wall clock.
        queue_chance: picks one of so many queues.
    """

    def __init__(
        self,
        rules: SendRules,
        topics: Topics,
        groups: Groups,
        levels: DelayLevels,
        *,
        holds_locks: Callable[[str], bool],
        new_unique_key: Callable[[], str],
        now_ms: Callable[[], int],
        queue_chance: Callable[[int], int] = random.randrange,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._levels = levels
        self._holds_locks = holds_locks
        self._new_unique_key = new_unique_key
        self._now_ms = now_ms
        self._queue_chance = queue_chance
        self._seen_topic: str | None = None
        self._seen_queues = 0
        self.change(rules)

    def change(self, rules: SendRules) -> None:
        """Use other rules from now on."""
        self.rules = rules
        trace = "true" if rules.trace_on else "false"
        self._stamps = {
            property_names.CLUSTER: rules.cluster,
            property_names.MSG_REGION: rules.region,
            property_names.TRACE_ON: trace,
        }
        self._suffix = encode_properties(self._stamps)
        self._batch_suffix = _WAITS + self._suffix
        self._body_bytes_max = rules.body_bytes_max
        self._watchful = not rules.broker_writable or rules.accept_from_ms > 0

    def renew(self) -> None:
        """Look at the topics again: from one read of a connection to the next they may change."""
        self._seen_topic = None
        self._seen_queues = 0

    def glance(self, send: Send) -> bool:
        """Place a send of which a glance shows that all checks let it pass; False for all others.

        Those whose sender does not wait for the disk are among the others.
        """
        topic = send.asked_topic
        if topic is not self._seen_topic:
            self._seen_topic = topic
            self._seen_queues = self._plain_queues(topic)
        if not 0 <= send.asked_queue_id < self._seen_queues or send.sys_flag & _UNDECIDED:
            return False
        if not 0 < send.body_end - send.body_at <= self._body_bytes_max:
            return False
        more = self._suffix
        if send.is_batch:
            if send.text_at < send.text_end:
                if not _only_waits(octets.start_of(send.text), send.text_at, send.text_end):
                    return False
                send.text_end, more = send.text_at, self._batch_suffix
        else:
            text = octets.start_of(send.text)
            found = _glance(text, send.text_at, send.text_end)
            if found == _CARE:
                return False
            if found == _ID:
                more = _UNIQUE_KEY + self._new_unique_key().encode() + _END + more
            if (
                property_text.joined_bytes(text, send.text_at, send.text_end, more)
                > _PROPERTIES_MAX
            ):
                return False
        send.topic, send.queue_id, send.more = topic, send.asked_queue_id, more
        return True

    def _plain_queues(self, topic: str) -> int:
        """How many queues of a topic take messages without further checks; 0 for none."""
        config = self._topics.get(topic)
        if (
            config is None
            or self._watchful
            or topic in SEND_FORBIDDEN_TOPICS
            or topic.startswith(RETRY_PREFIX)
            or config.topic_filter_type == MULTI_TAG
        ):
            return 0
        return config.write_queue_nums

    def place(self, send: Send) -> None:
        """Decide where a send with a typed header goes.

        Raises:
            ResponseError: it may not be stored; nothing was.
        """
        self.renew()
        if not self.glance(send):
            self.check(send)

    def check(self, send: Send) -> None:
        """Do the same as `place` with every check, whatever a glance would show."""
        header, connection = send.header, send.wire
        assert header is not None
        config = self._checked_topic(header, connection)
        queue_id = self._checked_queue(header, config, connection)
        send.asked_queue_id = send.queue_id = queue_id
        send.topic = header.topic
        send.sys_flag |= _flag_of(config)
        if send.is_batch:
            self._place_batch(send, header)
        else:
            self._place_message(send, header)
        self._check_size(send)

    def _place_message(self, send: Send, header: SendHeader) -> None:
        text = bytes(send.text)
        is_odd = header.sys_flag & UNDECIDED or _unusual.search(_END + text) is not None
        if is_odd or header.topic.startswith(RETRY_PREFIX):
            self._place_unusual(send, header)
            return
        send.more = self._suffix
        if not _has_unique_key(text):
            send.more = _UNIQUE_KEY + self._new_unique_key().encode() + _END + self._suffix

    def _place_batch(self, send: Send, header: SendHeader) -> None:
        """Decide what each message of a batch gains."""
        if len(header.topic) > TOPIC_CHARS_MAX:
            raise _illegal(f"message topic length too long {len(header.topic)}")
        if header.topic.startswith(RETRY_PREFIX):
            raise _illegal(f"batch request does not support retry group {header.topic}")
        properties = decode_properties(header.properties or "")
        self._refuse_what_waits(header, properties)
        if self._levels.level_of(properties):
            raise _illegal("a batch cannot be delayed")
        self._rewrite(send, properties | self._stamps)

    def _rewrite(self, send: Send, properties: Mapping[str, str]) -> None:
        """Store these properties instead of those of the request."""
        send.text_at = send.text_end = 0
        send.more = encode_properties(properties)

    # --- checks -------------------------------------------------------------------------------

    def _checked_topic(self, header: SendHeader, connection: Peer) -> TopicConfig:
        self._check_time()
        topic = header.topic
        config = self._topics.get(topic)
        if config is None or not self.rules.broker_writable:
            config = self._unusual_topic(header, config, connection)
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

    def _unusual_topic(
        self, header: SendHeader, config: TopicConfig | None, connection: Peer
    ) -> TopicConfig:
        if not self.rules.broker_writable and config is not None and config.order:
            raise self._forbidden("sending message")
        if config is not None:
            return config
        topic = header.topic
        try:
            check_topic_name(topic)
        except InvalidNameError as problem:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, str(problem)) from None
        _refuse_forbidden(topic)
        config = self._topics.require_for_send(
            topic,
            header.default_topic,
            header.default_topic_queue_nums,
            unit_mode=bool(header.unit_mode),
            producer=connection.peer_text,
        )
        if config is None and topic.startswith(RETRY_PREFIX):
            config = self._topics.require_internal(topic, 1)
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
        if 0 < body_bytes <= self._body_bytes_max and text_bytes <= PROPERTIES_BYTES_MAX:
            return
        raise _illegal(
            "the message is illegal, maybe msg body or properties length not matched. msg body"
            f" length limit {self._body_bytes_max}B, msg properties length limit 32KB. Met a body"
            f" of {body_bytes}B and properties of {text_bytes}B."
        )

    def _forbidden(self, what: str, why: str = "") -> ResponseError:
        remark = f"the broker[{self.rules.broker_ip}] {what} is forbidden{why}"
        return ResponseError(ResponseCode.NO_PERMISSION, remark)

    # --- properties ---------------------------------------------------------------------------

    def _place_unusual(self, send: Send, header: SendHeader) -> None:
        properties = decode_properties(header.properties or "")
        if send.topic.startswith(RETRY_PREFIX):
            send.topic, send.queue_id = self._retried(header, send.queue_id, send.wire.version)
        self._refuse_what_waits(header, properties)
        properties.pop(property_names.POP_CK, None)
        if not properties.get(property_names.UNIQ_KEY):
            properties[property_names.UNIQ_KEY] = self._new_unique_key()
        if send.topic.startswith(DLQ_PREFIX) and send.topic != header.topic:
            properties.pop(property_names.DELAY, None)
        properties.update(self._stamps)
        parked = self._levels.schedule(send.topic, send.queue_id, properties)
        if parked is not None:
            send.topic, send.queue_id, properties = parked
        self._rewrite(send, properties)

    def _retried(self, header: SendHeader, queue_id: int, version: int) -> tuple[str, int]:
        """Where a consumer's own retry goes: back to its group, or to the dead letters."""
        group_name = header.topic[len(RETRY_PREFIX) :]
        group = self._groups.resolve(group_name)
        if group is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group_name}",
            )
        times = header.reconsume_times or 0
        most = retries_max(group, header.max_reconsume_times, version)
        if times > most or self._holds_locks(group_name):
            dead = self._topics.require_internal(dlq_topic(group_name), 1)
            return dead.topic_name, self._queue_chance(max(dead.write_queue_nums, 1))
        return header.topic, queue_id

    def _refuse_what_waits(self, header: SendHeader, properties: dict[str, str]) -> None:
        """Refuse half messages and timer messages rather than deliver them at once, or never."""
        is_half = properties.get(property_names.TRAN_MSG, "").lower() == "true"
        if is_half or header.sys_flag & UNDECIDED:
            raise self._forbidden(
                "sending transaction message", ": transactions are not served in this release"
            )
        if self._levels.level_of(properties) == 0 and any(name in properties for name in _TIMERS):
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false:"
                " timer messages are not served in this release",
            )


def retries_max(group: SubscriptionGroupConfig, asked: int | None, version: int) -> int:
    """How often a group's message is tried again: as its client asks, if its version tells."""
    if asked is not None and version >= VERSION_WITH_MAX_RECONSUME:
        return asked
    return group.retry_max_times


def _glance(text: Any, at: int, end: int) -> int:
    """What properties need besides what the broker puts behind all: _NOTHING, _ID, or _CARE."""
    found = _ID
    start = at
    if not cython.compiled:
        return _look(octets.bytes_in(text, at, end - at))
    while at < end:
        stop = octets.end_of_run(text, at, end, 2)
        first = text[at]
        size = stop - at
        if first == 85 and size > 9 and memcmp(text + at, b"UNIQ_KEY\x01", 9) == 0:
            found = _NOTHING
        elif first == 84 and size > 5 and memcmp(text + at, b"TAGS\x01", 5) == 0:
            pass
        elif first in (67, 68, 77, 80, 84, 85, 87) and (  # one of CDMPTUW
            size != 9 or memcmp(text + at, b"WAIT\x01true", 9) != 0
        ):
            return _look(octets.bytes_in(text, start, end - start))
        at = stop + 1
    return found


def _look(text: bytes) -> int:
    """The same for all properties, of which a glance knows only the most frequent ones."""
    entries = b"\x02%b\x02" % text
    if _needs_care(entries) is not None:
        return _CARE
    return _NOTHING if entries.find(b"\x02" + _UNIQUE_KEY) >= 0 else _ID


def _only_waits(text: Any, at: int, end: int) -> bool:
    """Whether properties say no more than that the sender waits for the disk."""
    if end - at == len(_WAITS):
        end -= text[end - 1] == 2
    return octets.equals(text, at, end - at, _WAIT)


def _flag_of(config: TopicConfig) -> int:
    return SysFlag.MULTI_TAGS if config.topic_filter_type == MULTI_TAG else 0


def _has_unique_key(text: bytes) -> bool:
    """Whether there is a unique id, and not just a name that ends like one, or an empty value."""
    return property_text.value_of(text, property_text.UNIQ_KEY_MARKER) is not None


def _refuse_forbidden(topic: str) -> None:
    if topic in SEND_FORBIDDEN_TOPICS:
        raise ResponseError(
            ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
        )


def _illegal(remark: str) -> ResponseError:
    return ResponseError(ResponseCode.MESSAGE_ILLEGAL, remark)


def send_rules(settings: BrokerSettings, stored: StoreSettings, ip: str) -> SendRules:
    """What the settings say about sends."""
    return SendRules(
        broker_ip=ip,
        cluster=settings.broker_cluster_name,
        region=settings.region_id,
        trace_on=settings.trace_on,
        broker_writable=bool(settings.broker_permission & Perm.WRITE),
        accept_from_ms=settings.start_accept_send_request_ms,
        body_bytes_max=stored.message_bytes_max,
    )
