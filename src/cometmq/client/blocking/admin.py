"""The admin client for code without an event loop.

Source: ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cometmq.client as asynchronous
from cometmq.client import ClientSettings, MessageQueue, Progress, QueueBounds, StoredMessage, Track
from cometmq.client.blocking.base import Blocking
from cometmq.client.blocking.instance import ClientInstance, inner_instance
from cometmq.client.trace.records import Record
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies import (
    BrokerStatsData,
    ClusterInfo,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStatsList,
    HARuntimeInfo,
    OffsetWrapper,
    ProducerConnection,
    ProducerTableInfo,
    QueueTimeSpan,
    SubscriptionData,
    TopicOffset,
)


class AdminClient(Blocking):
    """Manages a cluster; as `cometmq.client.AdminClient`.

    Example: ``with AdminClient("127.0.0.1:9876") as admin: admin.create_topic("t")``
    """

    _inner: asynchronous.AdminClient

    def __init__(
        self,
        name_servers: str | Sequence[str] = "",
        *,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        config: Path | None = None,
        **options: Any,
    ) -> None:
        Blocking.__init__(
            self,
            asynchronous.AdminClient(
                name_servers,
                client=client,
                instance=inner_instance(instance),
                config=config,
                **options,
            ),
        )

    def cluster_info(self) -> ClusterInfo:
        """Give the clusters, their brokers and the brokers' addresses."""
        return self._run(self._inner.cluster_info())

    def broker_figures(self, address: str) -> dict[str, str]:
        """Give a broker's figures about itself: counts, rates, offsets, disk use."""
        return self._run(self._inner.broker_figures(address))

    def broker_counter(self, address: str, name: str, key: str) -> BrokerStatsData:
        """Give one of the counters a broker keeps: sum and rate per minute, hour and day."""
        return self._run(self._inner.broker_counter(address, name, key))

    def broker_progress(self, address: str, *, ordered: bool = False) -> ConsumeStatsList:
        """Give how far all groups of one broker have come."""
        return self._run(self._inner.broker_progress(address, ordered=ordered))

    def replication(self, address: str) -> HARuntimeInfo:
        """Give how a broker's replicas follow it."""
        return self._run(self._inner.replication(address))

    def broker_config(self, address: str) -> dict[str, str]:
        """Give all settings of a broker."""
        return self._run(self._inner.broker_config(address))

    def set_broker_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running broker."""
        self._run(self._inner.set_broker_config(address, changes))

    def clean_up(self, address: str) -> None:
        """Let a broker delete expired files and the queues of deleted topics now."""
        self._run(self._inner.clean_up(address))

    def stop_writing(self, broker: str) -> int:
        """Let producers send nothing more to a broker, by its name, until `resume_writing`."""
        return self._run(self._inner.stop_writing(broker))

    def resume_writing(self, broker: str) -> int:
        """Let producers send to a broker again; gives how many topics are affected."""
        return self._run(self._inner.resume_writing(broker))

    def kv_get(self, space: str, key: str) -> str | None:
        """Give a value that the name servers keep, or None."""
        return self._run(self._inner.kv_get(space, key))

    def kv_put(self, space: str, key: str, value: str) -> None:
        """Let every name server keep a value."""
        self._run(self._inner.kv_put(space, key, value))

    def kv_delete(self, space: str, key: str) -> None:
        """Let every name server forget a value."""
        self._run(self._inner.kv_delete(space, key))

    def kv_list(self, space: str) -> dict[str, str]:
        """Give all values of one space that the name servers keep."""
        return self._run(self._inner.kv_list(space))

    def consumer_connections(self, group: str) -> ConsumerConnection:
        """Give the members of a consumer group that are online."""
        return self._run(self._inner.consumer_connections(group))

    def producer_connections(self, group: str) -> ProducerConnection:
        """Give the members of a producer group that are online."""
        return self._run(self._inner.producer_connections(group))

    def producers(self, address: str) -> ProducerTableInfo:
        """Give all producers that are connected to one broker, by group."""
        return self._run(self._inner.producers(address))

    def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> ConsumerRunningInfo:
        """Give what one consumer says of itself: settings, queues, speed."""
        return self._run(self._inner.running_info(group, client_id, stacks=stacks))

    def consumer_status(
        self, group: str, topic: str, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """Give the offsets that members have in memory, by client id."""
        return self._run(self._inner.consumer_status(group, topic, client_id))

    def consume_directly(
        self, group: str, client_id: str, message: StoredMessage
    ) -> ConsumeMessageDirectlyResult:
        """Let one consumer consume one message now, out of turn; offsets stay as they are."""
        return self._run(self._inner.consume_directly(group, client_id, message))

    def create_group(
        self, config: SubscriptionGroupConfig | str, *, brokers: Iterable[str] | None = None
    ) -> None:
        """Create a group, or change it if it exists."""
        self._run(self._inner.create_group(config, brokers=brokers))

    def delete_group(
        self, group: str, *, keep_offsets: bool = False, brokers: Iterable[str] | None = None
    ) -> None:
        """Delete a group from brokers, all of the cluster unless some are named."""
        self._run(self._inner.delete_group(group, keep_offsets=keep_offsets, brokers=brokers))

    def groups(self) -> list[str]:
        """Give the names of all groups that brokers have settings of, in alphabetical order."""
        return self._run(self._inner.groups())

    def broker_groups(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Give the settings of all groups of one broker."""
        return self._run(self._inner.broker_groups(address))

    def group_config(self, group: str, address: str) -> SubscriptionGroupConfig | None:
        """Give a group's settings on one broker, or None if it has none."""
        return self._run(self._inner.group_config(group, address))

    def may_read(self, group: str, topic: str, allowed: bool | None = None) -> bool:
        """Tell whether a group may read a topic, or set that on every broker of the topic."""
        return self._run(self._inner.may_read(group, topic, allowed))

    def groups_of_topic(self, topic: str) -> list[str]:
        """Give the groups that subscribe to a topic now, or have an offset in it."""
        return self._run(self._inner.groups_of_topic(topic))

    def topics_of_group(self, group: str) -> list[str]:
        """Give the topics in which a group has an offset."""
        return self._run(self._inner.topics_of_group(group))

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Give what a group that is online wants of a topic, or None."""
        return self._run(self._inner.subscription(group, topic))

    def message_at(self, offset_message_id: str) -> StoredMessage:
        """Give the message that a broker's id of it names, asking the broker in the id."""
        return self._run(self._inner.message_at(offset_message_id))

    def message_by_unique_id(self, topic: str, message_id: str) -> StoredMessage | None:
        """Find a message by the id its sender gave it."""
        return self._run(self._inner.message_by_unique_id(topic, message_id))

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = 9223372036854775807,
        unique_id: bool = False,
    ) -> list[StoredMessage]:
        """Find messages by one of their keys, or by the unique id their sender gave them."""
        return self._run(
            self._inner.messages_by_key(
                topic, key, begin_ms=begin_ms, end_ms=end_ms, unique_id=unique_id
            )
        )

    def message_in_queue(self, queue: MessageQueue, offset: int) -> StoredMessage | None:
        """Give the message at an offset of a queue, or None if there is none."""
        return self._run(self._inner.message_in_queue(queue, offset))

    def track(self, message: StoredMessage, groups: Iterable[str] | None = None) -> list[Track]:
        """Tell for each group that reads a message's topic whether it has consumed the message."""
        return self._run(self._inner.track(message, groups))

    def trace(self, message_id: str, *, topic: str = "RMQ_SYS_TRACE_TOPIC") -> list[Record]:
        """Give what producers and consumers have traced of a message."""
        return self._run(self._inner.trace(message_id, topic=topic))

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Give what a group has committed of each readable queue of a topic."""
        return self._run(self._inner.committed(group, topic))

    def progress(self, group: str, topic: str) -> dict[MessageQueue, Progress]:
        """Give where a group stands in each readable queue of a topic, and how far it lags."""
        return self._run(self._inner.progress(group, topic))

    def consume_stats(
        self, group: str, topic: str | None = None
    ) -> dict[MessageQueue, OffsetWrapper]:
        """Give the offsets that the brokers know of a group, in one topic or in all it reads."""
        return self._run(self._inner.consume_stats(group, topic))

    def time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """Give from when to when each queue has messages, and how old is what the group reads."""
        return self._run(self._inner.time_spans(group, topic))

    def reset_to_time(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Let a group go on at the first message stored at or after a time, in every queue."""
        return self._run(self._inner.reset_to_time(group, topic, timestamp_ms, force=force))

    def skip_backlog(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Let a group go on behind the newest message of every queue of a topic."""
        return self._run(self._inner.skip_backlog(group, topic))

    def reset_to_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Let a group go on at an offset of one queue."""
        self._run(self._inner.reset_to_offset(group, queue, offset))

    def clone_offsets(self, source: str, target: str, topics: Iterable[str]) -> None:
        """Let a group stand where another one stands, in these topics."""
        self._run(self._inner.clone_offsets(source, target, topics))

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        perm: int = 6,
        brokers: Iterable[str] | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> list[MessageQueue]:
        """Create a topic, or change it if it exists."""
        return self._run(
            self._inner.create_topic(
                topic, queues=queues, perm=perm, brokers=brokers, attributes=attributes
            )
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic from all brokers of the cluster, then from every name server."""
        self._run(self._inner.delete_topic(topic))

    def topics(self) -> list[str]:
        """Give the names of all topics, in alphabetical order."""
        return self._run(self._inner.topics())

    def topic_configs(self, topic: str) -> dict[str, TopicConfig]:
        """Give a topic's settings on each broker that has it, by the broker's name."""
        return self._run(self._inner.topic_configs(topic))

    def broker_topics(self, address: str) -> dict[str, TopicConfig]:
        """Give the settings of all topics of one broker, those of the system included."""
        return self._run(self._inner.broker_topics(address))

    def order_conf(self, topic: str) -> dict[str, int]:
        """Give how many queues on which broker are those of an ordered topic; {} if not told."""
        return self._run(self._inner.order_conf(topic))

    def set_order_conf(self, topic: str, queues: Mapping[str, int]) -> None:
        """Fix the queues of an ordered topic."""
        self._run(self._inner.set_order_conf(topic, queues))

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Give the oldest and newest offset of each queue, and when it last got a message."""
        return self._run(self._inner.topic_stats(topic))

    def queue_bounds(self, topic: str) -> dict[MessageQueue, QueueBounds]:
        """Give where each readable queue of a topic begins and ends."""
        return self._run(self._inner.queue_bounds(topic))
