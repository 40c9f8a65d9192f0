# cython: annotation_typing=False
"""Where a producer's message goes and what the broker writes into its properties.

All checks of a send happen here, in RocketMQ's order, before anything is stored. The result says
topic, queue and properties of what is to be stored: mostly those of the request, but a message
that asks for a delay is parked, and a retry that was tried too often becomes a dead letter.

Source: AbstractSendMessageProcessor.msgCheck, SendMessageProcessor and HookUtils, RocketMQ 5.3.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from cometmq.broker.config import BrokerSettings
from cometmq.broker.delay.levels import DelayLevels
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
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import SendMessageRequest, SendMessageV2Request
from cometmq.protocol.properties import (
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
)
from cometmq.remoting import Connection
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
SendHeader = SendMessageRequest | SendMessageV2Request

_END = b"\x02"
_WAITS = b"WAIT\x01true" + _END
_UNIQUE_KEY = b"\x02UNIQ_KEY\x01"
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


@dataclass(frozen=True)
class SendRules:
    """What the broker is set to accept, and what it adds."""

    broker_ip: str
    cluster: str
    region: str
    trace_on: bool
    broker_writable: bool = True
    accept_from_ms: int = 0
    body_bytes_max: int = 4 * 1024 * 1024


class Target:
    """What is to be stored, and where.

    Args:
        topic, queue_id: where it goes.
        properties: its properties with the broker's own.
        asked_queue_id: the queue the answer names: that of the request, even for a parked message.
        sys_flag: bits to add to those of the request.
    """

    __slots__ = ("asked_queue_id", "properties", "queue_id", "sys_flag", "topic")

    def __init__(
        self, topic: str, queue_id: int, properties: bytes, asked_queue_id: int, sys_flag: int = 0
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.properties = properties
        self.asked_queue_id = asked_queue_id
        self.sys_flag = sys_flag


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
        self._body_bytes_max = rules.body_bytes_max
        self._watchful = not rules.broker_writable or rules.accept_from_ms > 0

    def plain_queues(self, topic: str) -> int:
        """How many queues of a topic take messages without further checks; 0 for none.

        Only for messages whose properties are plain, too; see `plain_properties`.
        """
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

    def plain_properties(self, properties: bytes) -> bytes | None:
        """What is stored for properties that need nothing but the broker's own behind them.

        None for those that need more, and for those whose sender does not wait for the disk.
        """
        if not properties.endswith(_END):
            properties += _END
        if not _is_everyday(properties, len(properties)):
            entries = _END + properties
            if entries.find(_UNIQUE_KEY) < 0 or _needs_care(entries) is not None:
                return None
        return properties + self._suffix

    def plain_batch_properties(self, properties: bytes) -> bytes | None:
        """What each message of a batch gains from the broker and from the batch as a whole.

        None for a batch that says more of itself than that it waits for the disk.
        """
        if not properties:
            return self._suffix
        return (
            _WAITS + self._suffix if properties == _WAITS or properties + _END == _WAITS else None
        )

    def sizes_fit(self, body_bytes: int, properties_bytes: int) -> bool:
        """Whether a body and the properties to be stored with it keep the limits."""
        return 0 < body_bytes <= self._body_bytes_max and properties_bytes <= PROPERTIES_BYTES_MAX

    def place(self, header: SendHeader, body: bytes, connection: Connection) -> Target:
        """Decide where a single message goes.

        Raises:
            ResponseError: it may not be stored; nothing was.
        """
        topic, queue_id, properties = header.topic, header.queue_id, None
        if 0 <= queue_id < self.plain_queues(topic) and not header.sys_flag & UNDECIDED:
            properties = self.plain_properties((header.properties or "").encode())
        if properties is None:
            return self._place_with_care(header, body, connection)
        self._check_size(body, properties)
        return Target(topic, queue_id, properties, queue_id)

    def _place_with_care(self, header: SendHeader, body: bytes, connection: Connection) -> Target:
        """Run every check in RocketMQ's order."""
        config = self._checked_topic(header, connection)
        queue_id = self._checked_queue(header, config, connection)
        text = header.properties or ""
        is_odd = header.sys_flag & UNDECIDED or _unusual.search(b"\x02" + text.encode()) is not None
        if is_odd or header.topic.startswith(RETRY_PREFIX):
            placement = self._place_unusual(header, queue_id, config, connection)
        else:
            stamped = self._stamped(text)
            placement = Target(header.topic, queue_id, stamped, queue_id, _flag_of(config))
        self._check_size(body, placement.properties)
        return placement

    def place_batch(self, header: SendHeader, body: bytes, connection: Connection) -> Target:
        """Decide where the messages of a batch go; the properties are those each one gains.

        Raises:
            ResponseError: it may not be stored; nothing was.
        """
        config = self._checked_topic(header, connection)
        queue_id = self._checked_queue(header, config, connection)
        if len(header.topic) > TOPIC_CHARS_MAX:
            raise _illegal(f"message topic length too long {len(header.topic)}")
        if header.topic.startswith(RETRY_PREFIX):
            raise _illegal(f"batch request does not support retry group {header.topic}")
        properties = decode_properties(header.properties or "")
        self._refuse_what_waits(header, properties)
        if self._levels.level_of(properties):
            raise _illegal("a batch cannot be delayed")
        properties.update(self._stamps)
        stamped = encode_properties(properties)
        placement = Target(header.topic, queue_id, stamped, queue_id, _flag_of(config))
        self._check_size(body, placement.properties)
        return placement

    # --- checks -------------------------------------------------------------------------------

    def _checked_topic(self, header: SendHeader, connection: Connection) -> TopicConfig:
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
        self, header: SendHeader, config: TopicConfig | None, connection: Connection
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

    def _checked_queue(
        self, header: SendHeader, config: TopicConfig, connection: Connection
    ) -> int:
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

    def _check_size(self, body: bytes, properties: bytes) -> None:
        if self.sizes_fit(len(body), len(properties)):
            return
        limit = self.rules.body_bytes_max
        raise _illegal(
            "the message is illegal, maybe msg body or properties length not matched. msg body"
            f" length limit {limit}B, msg properties length limit 32KB. Met a body of"
            f" {len(body)}B and properties of {len(properties)}B."
        )

    def _forbidden(self, what: str, why: str = "") -> ResponseError:
        remark = f"the broker[{self.rules.broker_ip}] {what} is forbidden{why}"
        return ResponseError(ResponseCode.NO_PERMISSION, remark)

    # --- properties ---------------------------------------------------------------------------

    def _stamped(self, text: str) -> bytes:
        """The properties with the broker's own behind them; a unique id where there was none."""
        if text and not text.endswith("\x02"):
            text += "\x02"
        if not _has_unique_key(text):
            text += f"UNIQ_KEY\x01{self._new_unique_key()}\x02"
        return text.encode() + self._suffix

    def _place_unusual(
        self, header: SendHeader, queue_id: int, config: TopicConfig, connection: Connection
    ) -> Target:
        properties = decode_properties(header.properties or "")
        topic, target = header.topic, queue_id
        if topic.startswith(RETRY_PREFIX):
            topic, target = self._retried(header, queue_id, connection.version)
        self._refuse_what_waits(header, properties)
        properties.pop(property_names.POP_CK, None)
        if not properties.get(property_names.UNIQ_KEY):
            properties[property_names.UNIQ_KEY] = self._new_unique_key()
        if topic.startswith(DLQ_PREFIX) and topic != header.topic:
            properties.pop(property_names.DELAY, None)
        properties.update(self._stamps)
        parked = self._levels.park(topic, target, properties)
        if parked is not None:
            topic, target, properties = parked
        encoded = encode_properties(properties)
        return Target(topic, target, encoded, queue_id, _flag_of(config))

    def _retried(self, header: SendHeader, queue_id: int, version: int) -> tuple[str, int]:
        """Where a consumer's own retry goes: back to its group, or to the dead letters."""
        group_name = header.topic[len(RETRY_PREFIX) :]
        group = self._groups.resolve(group_name)
        if group is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group_name}",
            )
        most = group.retry_max_times
        if header.max_reconsume_times is not None and version >= VERSION_WITH_MAX_RECONSUME:
            most = header.max_reconsume_times
        times = header.reconsume_times or 0
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


def _is_everyday(text: Any, length: int) -> bool:
    """Whether a glance shows that `_needs_care` finds nothing and that there is a unique id.

    That is, whether no entry but tags begins with the letter of one that needs care.
    """
    if not cython.compiled:
        return False
    has_unique_key = False
    at = 0
    while at < length:
        stop = octets.end_of_run(text, at, length, 2)
        first = text[at]
        size = stop - at
        if size > 9 and memcmp(text + at, b"UNIQ_KEY\x01", 9) == 0:
            has_unique_key = True
        elif size > 5 and memcmp(text + at, b"TAGS\x01", 5) == 0:
            pass
        elif first in (67, 68, 77, 80, 84, 85, 87) and (  # one of CDMPTUW
            size != 9 or memcmp(text + at, b"WAIT\x01true", 9) != 0
        ):
            return False
        at = stop + 1
    return has_unique_key


def _flag_of(config: TopicConfig) -> int:
    return SysFlag.MULTI_TAGS if config.topic_filter_type == MULTI_TAG else 0


def _has_unique_key(text: str) -> bool:
    """Whether there is a unique id, and not just a name that ends like one, or an empty value."""
    at = text.find("UNIQ_KEY\x01")
    if at < 0:
        return False
    if (at == 0 or text[at - 1] == "\x02") and text[at + 9] != "\x02":
        return True
    return property_names.UNIQ_KEY in decode_properties(text)


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
