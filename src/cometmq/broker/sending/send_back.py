"""Handles CONSUMER_SEND_MSG_BACK (36): redelivers a message that a consumer could not handle.

The broker copies the message from its log: into the group's retry topic with a delay or, after the
last retry, into the group's dead letters. With synchronous flush the response waits for the disk,
because the consumer then drops the message. Source: AbstractSendMessageProcessor and
SendMessageProcessor.consumerSendMsgBack, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.config import BrokerSettings
from cometmq.broker.delay.routing import schedule
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.groups.table import GroupTable
from cometmq.broker.prerequisites import PrerequisiteError
from cometmq.broker.role import Role
from cometmq.broker.sending.retries import retries_max, retry_level
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.targets import random_queue, stored_again
from cometmq.broker.thread_calls import SharedCall
from cometmq.broker.topics.table import TopicTable
from cometmq.model import property_names as names
from cometmq.model.delay import DelayLevels
from cometmq.model.errors import InvalidMessageError, ResponseError, StoreError
from cometmq.model.flags import SysFlag, TopicSysFlag
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    Perm,
    TopicConfig,
    dlq_topic,
    retry_topic,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.consumer import ConsumerSendMsgBackRequest
from cometmq.protocol.message_id import encode_offset_id
from cometmq.protocol.properties import decode_properties, encode_properties
from cometmq.protocol.record import RecordParts, split_record
from cometmq.remoting import Request, Response
from cometmq.store import Appended, MessageStore, SegmentNotReadyError

RETRIES_MAX: Final = 2**31 - 1
"""The largest number of retries that fits into a record; a producer may set any number."""


class Retry(NamedTuple):
    """The copy of a message that is stored for redelivery."""

    is_dead: bool
    """Whether it is stored in the dead letters instead of the retry topic."""
    properties: dict[str, str]
    """The properties of the message, with its first topic, its first id and the delay."""


class SendBackHandler:
    """Stores messages that consumers send back.

    Args:
        store: the store to read and to append to.
        topics, groups: the tables; retry and dead-letter topics are created here.
        levels: the delay levels.
        stats: counts the messages.
        settings: returns the current settings of the broker.
        role: a slave stores no messages.
        host: the address of this broker, which refusals name.
        store_host: the same as records contain it, 8 or 20 bytes.
        durability: what responses wait for.
        queue_chance: returns a random number below a number of queues.
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        topics: TopicTable,
        groups: GroupTable,
        levels: DelayLevels,
        stats: BrokerStats,
        settings: Callable[[], BrokerSettings],
        role: Role,
        host: str,
        store_host: bytes,
        cold_reads: ColdReads,
        durability: DurabilityWait,
        queue_chance: Callable[[int], int] = random_queue,
    ) -> None:
        self._store = store
        self._segment = SharedCall(store.wait_for_segment)
        self._cold_reads = cold_reads
        self._durability = durability
        self._topics = topics
        self._groups = groups
        self._levels = levels
        self._stats = stats
        self._settings = settings
        self._role = role
        self._host = host
        self._store_host = store_host
        self._queue_chance = queue_chance

    def send_back(self, request: Request) -> Response | None:
        """Store the message for a retry, or as a dead letter."""
        header = request.header(ConsumerSendMsgBackRequest)
        if self._role.is_slave:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                "SERVICE_NOT_AVAILABLE: this broker is a slave, its master stores messages",
            )
        if self._durability.refusal is not None:
            raise self._durability.refusal
        if self._durability.lacks_slaves(self._store.written_to):
            # A consumer that gets an error sends a copy to the retry topic. If the message were
            # stored here as well, each retry would double it.
            raise ResponseError(
                ResponseCode.SLAVE_NOT_AVAILABLE, "not stored: too few slaves are there to have it"
            )
        group = self._groups.require(header.group)
        settings = self._settings()
        if not settings.broker_permission & Perm.WRITE:
            raise ResponseError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._host}] sending message is forbidden",
            )
        if group.retry_queue_nums <= 0:
            return Response()
        sys_flag = TopicSysFlag.UNIT_SUB if header.unit_mode else 0
        target = self._topics.require_internal(
            retry_topic(header.group), group.retry_queue_nums, sys_flag=sys_flag
        )
        _check_writable(target)
        record = self._original(header.offset)
        retry = self._plan(request, header, group, record)
        if retry.is_dead:
            target = self._topics.require_internal(dlq_topic(header.group), 1)
        stored = self._put(record, retry, target)
        self._stats.sent_back(header.group, header.origin_topic or record.topic)
        return self._durability.respond(request, stored.log_offset_end)

    def _original(self, log_offset: int) -> RecordParts:
        self._cold_reads.require_in_memory(self._store.cold_record(log_offset))
        data = self._store.record_at(log_offset) if log_offset >= 0 else None
        if data is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {log_offset}"
            )
        record = split_record(data)
        if record.sys_flag & SysFlag.INNER_BATCH:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"the record at log offset {log_offset} is a batch, expected a single message: send"
                " a copy of the message to the retry topic",
            )
        return record

    def _plan(
        self,
        request: Request,
        header: ConsumerSendMsgBackRequest,
        group: SubscriptionGroupConfig,
        record: RecordParts,
    ) -> Retry:
        version = request.connection.version
        return plan_retry(
            decode_properties(record.properties),
            topic=record.topic,
            message_id=encode_offset_id(record.store_host, record.log_offset),
            reconsume_times=record.reconsume_times,
            reconsume_times_max=retries_max(group, header.max_reconsume_times, version),
            delay_level=header.delay_level
            or retry_level(group.group_retry_policy, self._levels, record.reconsume_times),
        )

    def _put(self, record: RecordParts, retry: Retry, target: TopicConfig) -> Appended:
        topic, properties = target.topic_name, retry.properties
        queue_id = self._queue_chance(max(target.write_queue_nums, 1))
        scheduled = schedule(self._levels, topic, queue_id, properties)
        if scheduled is not None:
            topic, queue_id, properties = scheduled
        try:
            stored = self._store.append(
                stored_again(
                    record,
                    topic,
                    queue_id,
                    properties=encode_properties(properties),
                    store_host=self._store_host,
                    reconsume_times=min(record.reconsume_times + 1, RETRIES_MAX),
                )
            )
        except SegmentNotReadyError:
            raise PrerequisiteError(self._segment) from None
        except (StoreError, InvalidMessageError) as problem:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"the message could not be stored again: {problem}"
            ) from problem
        if scheduled is not None:
            self._stats.put(topic, queue_id, 1, stored.size_bytes)
        return stored


def _check_writable(topic: TopicConfig) -> None:
    if not topic.writable:
        raise ResponseError(
            ResponseCode.NO_PERMISSION,
            f"the topic[{topic.topic_name}] sending message is forbidden",
        )


def plan_retry(
    properties: Mapping[str, str],
    *,
    topic: str,
    message_id: str,
    reconsume_times: int,
    reconsume_times_max: int,
    delay_level: int,
) -> Retry:
    """Return the copy of a message to store: a retry or a dead letter.

    Args:
        properties: its properties; not changed.
        topic: the topic that it was read from.
        message_id: its offset message id.
        reconsume_times: its retries so far.
        reconsume_times_max: the limit of its retries.
        delay_level: the level of the retry; 0 for none, below 0: the message becomes a dead letter.
    """
    kept = dict(properties)
    was_stored_again = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    for name, value in ((names.RETRY_TOPIC, topic), (names.ORIGIN_MESSAGE_ID, message_id)):
        if not was_stored_again or name not in kept:  # else a producer could make up its origin
            kept[name] = value
    kept[names.WAIT] = "false"
    is_dead = delay_level < 0 or reconsume_times >= reconsume_times_max
    kept[names.DELAY] = "0" if is_dead else str(delay_level)
    return Retry(is_dead, kept)
