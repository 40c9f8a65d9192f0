"""The one table of a broker: which processor answers which request code.

Source: BrokerController.registerProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from cometmq.broker.assembly import Parts
from cometmq.broker.processors.clean import CleanStore
from cometmq.broker.processors.config import BrokerConfig
from cometmq.broker.processors.connections import Connections
from cometmq.broker.processors.groups import GroupRequests
from cometmq.broker.processors.heartbeat import Heartbeats
from cometmq.broker.processors.lock import LockQueues
from cometmq.broker.processors.offset import GroupOffsets
from cometmq.broker.processors.pull import PullMessages
from cometmq.broker.processors.query import QueryMessages
from cometmq.broker.processors.queue_bounds import QueueBounds
from cometmq.broker.processors.relay import RelayedCalls
from cometmq.broker.processors.reply import SendReply
from cometmq.broker.processors.reset import ResetOffsets
from cometmq.broker.processors.send import SendMessage
from cometmq.broker.processors.send_back import SendBack
from cometmq.broker.processors.slave_tables import DelayOffsetTable, ReplicationStatus
from cometmq.broker.processors.stats import BrokerFigures, GroupFigures, TopicFigures
from cometmq.broker.processors.topics import TopicRequests
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.record import encode_host
from cometmq.remoting import Processor

Table = dict[int, Processor]

ONLY_ON_THE_MAIN_PORT = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
"""What the fast port does not serve."""


def send_processor(parts: Parts, port: int) -> SendMessage:
    """What stores messages, on a broker that listens on ``port``."""
    return SendMessage(
        parts.store,
        parts.intake,
        parts.flow,
        parts.stats,
        parts.throughput,
        commit=parts.commit if parts.sync_flush else None,
        store_host=encode_host(parts.address.ip, port),
    )


def pull_processor(parts: Parts) -> PullMessages:
    """What hands messages out."""
    return PullMessages(
        store=parts.store,
        topics=parts.topics,
        groups=parts.groups,
        consumers=parts.consumers,
        offsets=parts.offsets,
        held=parts.held,
        settings=parts.settings,
        stats=parts.stats,
    )


def routes(
    parts: Parts,
    send: SendMessage,
    pull: PullMessages,
    *,
    port: int,
    announce: Callable[[], Awaitable[None]],
    config_file: Path | None,
    config_changed: Callable[[Mapping[str, str]], None],
) -> Table:
    """The table of a broker that listens on ``port``.

    Args:
        parts: what processors are made of.
        send: what stores messages.
        pull: what hands them out.
        port: the real one; it stands in message ids.
        announce: returns once the name servers know of changed topics.
        config_file: where changed settings are kept, if anywhere.
        config_changed: told the settings that a request changed.
    """
    store_host = encode_host(parts.address.ip, port)
    address = parts.address.at(port)
    return {
        **_sending(parts, send, store_host, address),
        **_consuming(parts, pull),
        **_offsets(parts),
        **_queries(parts),
        **_topics_and_groups(parts, announce),
        **_figures(parts, address),
        **_settings(parts, config_file, config_changed),
    }


def _sending(parts: Parts, send: SendMessage, store_host: bytes, address: str) -> Table:
    back = SendBack(
        parts.store,
        topics=parts.topics,
        groups=parts.groups,
        levels=parts.levels,
        stats=parts.stats,
        settings=parts.settings,
        store_host=store_host,
        commit=parts.commit if parts.sync_flush else None,
    )
    reply = SendReply(
        parts.store,
        parts.intake,
        producers=parts.producers,
        settings=parts.settings,
        clock=parts.clock,
        store_host=store_host,
        store_address=address,
    )
    return {
        RequestCode.SEND_MESSAGE: send.handle,
        RequestCode.SEND_MESSAGE_V2: send.handle,
        RequestCode.SEND_BATCH_MESSAGE: send.handle,
        RequestCode.CONSUMER_SEND_MSG_BACK: back.send_back,
        RequestCode.SEND_REPLY_MESSAGE: reply.reply,
        RequestCode.SEND_REPLY_MESSAGE_V2: reply.reply,
    }


def _consuming(parts: Parts, pull: PullMessages) -> Table:
    beats = Heartbeats(
        consumers=parts.consumers,
        producers=parts.producers,
        topics=parts.topics,
        groups=parts.groups,
        settings=parts.settings,
    )
    locks = LockQueues(parts.locks, topics=parts.topics, groups=parts.groups)
    return {
        RequestCode.PULL_MESSAGE: pull.pull,
        RequestCode.LITE_PULL_MESSAGE: pull.pull,
        RequestCode.HEART_BEAT: beats.heartbeat,
        RequestCode.UNREGISTER_CLIENT: beats.unregister,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: beats.consumer_list,
        RequestCode.CHECK_CLIENT_CONFIG: beats.check_client,
        RequestCode.LOCK_BATCH_MQ: locks.lock,
        RequestCode.UNLOCK_BATCH_MQ: locks.unlock,
    }


def _offsets(parts: Parts) -> Table:
    offsets = GroupOffsets(
        parts.offsets, store=parts.store, topics=parts.topics, groups=parts.groups
    )
    bounds = QueueBounds(parts.store, topics=parts.topics)
    reset = ResetOffsets(
        parts.offsets,
        consumers=parts.consumers,
        store=parts.store,
        topics=parts.topics,
        groups=parts.groups,
        settings=parts.settings,
    )
    delayed = DelayOffsetTable(lambda: (parts.delay.offsets(), parts.delay.version))
    return {
        RequestCode.QUERY_CONSUMER_OFFSET: offsets.query,
        RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update,
        RequestCode.GET_ALL_CONSUMER_OFFSET: offsets.all,
        RequestCode.CLONE_GROUP_OFFSET: offsets.clone,
        RequestCode.QUERY_CORRECTION_OFFSET: offsets.correction,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: bounds.search,
        RequestCode.GET_MAX_OFFSET: bounds.max_offset,
        RequestCode.GET_MIN_OFFSET: bounds.min_offset,
        RequestCode.GET_EARLIEST_MSG_STORETIME: bounds.earliest_time,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset.reset,
        RequestCode.GET_ALL_DELAY_OFFSET: delayed.all,
    }


def _queries(parts: Parts) -> Table:
    query = QueryMessages(parts.store, parts.topics, parts.consumers)
    relayed = RelayedCalls(
        parts.relay,
        consumers=parts.consumers,
        store=parts.store,
        topics=parts.topics,
        groups=parts.groups,
        broker_name=parts.settings().broker_name,
    )
    return {
        RequestCode.QUERY_MESSAGE: query.by_key,
        RequestCode.VIEW_MESSAGE_BY_ID: query.by_place,
        RequestCode.QUERY_CONSUME_QUEUE: query.queue_entries,
        RequestCode.GET_CONSUMER_RUNNING_INFO: relayed.running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: relayed.consume_directly,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: relayed.consumer_status,
    }


def _topics_and_groups(parts: Parts, announce: Callable[[], Awaitable[None]]) -> Table:
    def forget_topic(topic: str) -> None:
        parts.offsets.forget_topic(topic)
        parts.stats.forget_topic(topic)
        parts.held.topic_gone(topic)

    topics = TopicRequests(
        parts.topics,
        parts.store,
        parts.settings,
        announce=announce,
        forget_offsets=forget_topic,
    )
    groups = GroupRequests(
        parts.groups,
        parts.settings,
        forget_offsets=parts.offsets.forget_group,
        forget_statistics=parts.stats.forget_group,
    )
    clean = CleanStore(parts.store)
    return {
        RequestCode.UPDATE_AND_CREATE_TOPIC: topics.put,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.put_list,
        RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete,
        RequestCode.CLEAN_UNUSED_TOPIC: topics.clean_unused,
        RequestCode.GET_TOPIC_CONFIG: topics.show,
        RequestCode.GET_ALL_TOPIC_CONFIG: topics.show_all,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.show_system,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.put,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.put_list,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.delete,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.show,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.show_all,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: groups.forbid,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: clean.queues,
        RequestCode.DELETE_EXPIRED_COMMITLOG: clean.log,
    }


def _figures(parts: Parts, address: str) -> Table:
    connections = Connections(parts.consumers, parts.producers)
    broker = BrokerFigures(parts.runtime, parts.stats)
    topics = TopicFigures(
        parts.store, topics=parts.topics, stats=parts.stats, progress=parts.progress
    )
    groups = GroupFigures(
        topics=parts.topics,
        groups=parts.groups,
        consumers=parts.consumers,
        offsets=parts.offsets,
        progress=parts.progress,
        address=lambda: address,
    )
    return {
        RequestCode.GET_CONSUMER_CONNECTION_LIST: connections.of_consumers,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: connections.of_producers,
        RequestCode.GET_ALL_PRODUCER_INFO: connections.of_all_producers,
        RequestCode.GET_BROKER_RUNTIME_INFO: broker.runtime_info,
        RequestCode.VIEW_BROKER_STATS_DATA: broker.counter,
        RequestCode.GET_BROKER_HA_STATUS: ReplicationStatus(parts.store).show,
        RequestCode.GET_TOPIC_STATS_INFO: topics.stats_of_topic,
        RequestCode.GET_CONSUME_STATS: groups.consume_stats,
        RequestCode.GET_BROKER_CONSUME_STATS: groups.all_consume_stats,
        RequestCode.QUERY_CONSUME_TIME_SPAN: groups.time_spans,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: groups.groups_of_topic,
        RequestCode.QUERY_TOPICS_BY_CONSUMER: groups.topics_of_group,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: groups.subscription,
    }


def _settings(
    parts: Parts,
    config_file: Path | None,
    config_changed: Callable[[Mapping[str, str]], None],
) -> Table:
    config = BrokerConfig(
        parts.configuration,
        file=config_file,
        files=parts.files,
        clock=parts.clock,
        on_change=config_changed,
    )
    return {
        RequestCode.GET_BROKER_CONFIG: config.show,
        RequestCode.UPDATE_BROKER_CONFIG: config.update,
    }
