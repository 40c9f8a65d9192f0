"""The admin client for programs without an event loop."""

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
    """Manages a cluster, like `cometmq.client.AdminClient`.

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
        """Return the clusters, their brokers and the brokers' addresses."""
        return self._run(self._inner.cluster_info())

    def broker_figures(self, address: str) -> dict[str, str]:
        """Return a broker's runtime information: counts, rates, offsets, disk use."""
        return self._run(self._inner.broker_figures(address))

    def broker_counter(self, address: str, name: str, key: str) -> BrokerStatsData:
        """Return one counter of a broker: sum and rate per minute, hour and day."""
        return self._run(self._inner.broker_counter(address, name, key))

    def broker_progress(self, address: str, *, ordered: bool = False) -> ConsumeStatsList:
        """Return the offsets and lag of all groups of one broker."""
        return self._run(self._inner.broker_progress(address, ordered=ordered))

    def replication(self, address: str) -> HARuntimeInfo:
        """Return the replication state of a broker."""
        return self._run(self._inner.replication(address))

    def broker_config(self, address: str) -> dict[str, str]:
        """Return all settings of a broker."""
        return self._run(self._inner.broker_config(address))

    def set_broker_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running broker."""
        self._run(self._inner.set_broker_config(address, changes))

    def clean_up(self, address: str) -> None:
        """Delete a broker's expired files and the queues of deleted topics now."""
        self._run(self._inner.clean_up(address))

    def stop_writing(self, broker: str) -> int:
        """Remove the write permission of a broker, by its name, until `resume_writing`."""
        return self._run(self._inner.stop_writing(broker))

    def resume_writing(self, broker: str) -> int:
        """Restore the write permission of a broker; returns the number of affected topics."""
        return self._run(self._inner.resume_writing(broker))

    def kv_get(self, space: str, key: str) -> str | None:
        """Return a value of the name servers' key-value table, or None."""
        return self._run(self._inner.kv_get(space, key))

    def kv_put(self, space: str, key: str, value: str) -> None:
        """Store a value in the key-value table of every name server."""
        self._run(self._inner.kv_put(space, key, value))

    def kv_delete(self, space: str, key: str) -> None:
        """Delete a value from the key-value table of every name server."""
        self._run(self._inner.kv_delete(space, key))

    def kv_list(self, space: str) -> dict[str, str]:
        """Return all values of a namespace of the key-value table."""
        return self._run(self._inner.kv_list(space))

    def consumer_connections(self, group: str) -> ConsumerConnection:
        """Return the online members of a consumer group, and the group's subscriptions."""
        return self._run(self._inner.consumer_connections(group))

    def producer_connections(self, group: str) -> ProducerConnection:
        """Return the online members of a producer group."""
        return self._run(self._inner.producer_connections(group))

    def producers(self, address: str) -> ProducerTableInfo:
        """Return all producers that are connected to one broker, by group."""
        return self._run(self._inner.producers(address))

    def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> ConsumerRunningInfo:
        """Return one consumer's settings, queues and rates."""
        return self._run(self._inner.running_info(group, client_id, stacks=stacks))

    def consumer_status(
        self, group: str, topic: str, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """Return the offsets that members have in memory, by client id."""
        return self._run(self._inner.consumer_status(group, topic, client_id))

    def consume_directly(
        self, group: str, client_id: str, message: StoredMessage
    ) -> ConsumeMessageDirectlyResult:
        """Pass one message to one consumer now. Offsets do not change."""
        return self._run(self._inner.consume_directly(group, client_id, message))

    def create_group(
        self, config: SubscriptionGroupConfig | str, *, brokers: Iterable[str] | None = None
    ) -> None:
        """Create a group, or change it if it exists."""
        self._run(self._inner.create_group(config, brokers=brokers))

    def delete_group(
        self, group: str, *, keep_offsets: bool = False, brokers: Iterable[str] | None = None
    ) -> None:
        """Delete a group from brokers: from all of the cluster, or from those that are named."""
        self._run(self._inner.delete_group(group, keep_offsets=keep_offsets, brokers=brokers))

    def groups(self) -> list[str]:
        """Return the names of all groups with settings on a broker, in alphabetical order."""
        return self._run(self._inner.groups())

    def broker_groups(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all groups of one broker."""
        return self._run(self._inner.broker_groups(address))

    def group_config(self, group: str, address: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings on one broker, or None if it has none."""
        return self._run(self._inner.group_config(group, address))

    def may_read(self, group: str, topic: str, allowed: bool | None = None) -> bool:
        """Return whether a group may read a topic, or set it on every broker of the topic."""
        return self._run(self._inner.may_read(group, topic, allowed))

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic now, or have an offset in it."""
        return self._run(self._inner.groups_of_topic(topic))

    def topics_of_group(self, group: str) -> list[str]:
        """Return the topics in which a group has an offset."""
        return self._run(self._inner.topics_of_group(group))

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return an online group's subscription to a topic, or None."""
        return self._run(self._inner.subscription(group, topic))

    def message_at(self, offset_message_id: str) -> StoredMessage:
        """Return the message with a broker's id, from the broker in the id."""
        return self._run(self._inner.message_at(offset_message_id))

    def message_by_unique_id(self, topic: str, message_id: str) -> StoredMessage | None:
        """Find a message by the unique id of its sender."""
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
        """Find messages by key or by unique id."""
        return self._run(
            self._inner.messages_by_key(
                topic, key, begin_ms=begin_ms, end_ms=end_ms, unique_id=unique_id
            )
        )

    def message_in_queue(self, queue: MessageQueue, offset: int) -> StoredMessage | None:
        """Return the message at an offset of a queue, or None if there is none."""
        return self._run(self._inner.message_in_queue(queue, offset))

    def track(self, message: StoredMessage, groups: Iterable[str] | None = None) -> list[Track]:
        """Return whether each group that reads the message's topic has consumed it."""
        return self._run(self._inner.track(message, groups))

    def trace(self, message_id: str, *, topic: str = "RMQ_SYS_TRACE_TOPIC") -> list[Record]:
        """Return what producers and consumers have traced of a message, in stored order."""
        return self._run(self._inner.trace(message_id, topic=topic))

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return a group's committed offset in each readable queue of a topic."""
        return self._run(self._inner.committed(group, topic))

    def progress(self, group: str, topic: str) -> dict[MessageQueue, Progress]:
        """Return a group's committed offset and lag in each readable queue of a topic."""
        return self._run(self._inner.progress(group, topic))

    def consume_stats(
        self, group: str, topic: str | None = None
    ) -> dict[MessageQueue, OffsetWrapper]:
        """Return the offsets that brokers have of a group, for one topic or for all."""
        return self._run(self._inner.consume_stats(group, topic))

    def time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """Return the time range of each queue's messages, and the time of the group's next one."""
        return self._run(self._inner.time_spans(group, topic))

    def reset_to_time(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Move a group to the first message stored at or after a time, in every queue."""
        return self._run(self._inner.reset_to_time(group, topic, timestamp_ms, force=force))

    def skip_backlog(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Move a group to the end of every queue of a topic (skip the backlog)."""
        return self._run(self._inner.skip_backlog(group, topic))

    def reset_to_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Move a group to an offset of one queue."""
        self._run(self._inner.reset_to_offset(group, queue, offset))

    def clone_offsets(self, source: str, target: str, topics: Iterable[str]) -> None:
        """Copy the committed offsets of one group to another, for these topics."""
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
        """Return the names of all topics in alphabetical order."""
        return self._run(self._inner.topics())

    def topic_configs(self, topic: str) -> dict[str, TopicConfig]:
        """Return a topic's settings on each broker that has it, by broker name."""
        return self._run(self._inner.topic_configs(topic))

    def broker_topics(self, address: str) -> dict[str, TopicConfig]:
        """Return the settings of all topics of one broker, including system topics."""
        return self._run(self._inner.broker_topics(address))

    def order_conf(self, topic: str) -> dict[str, int]:
        """Return the fixed number of queues per broker of an ordered topic; {} if there is none."""
        return self._run(self._inner.order_conf(topic))

    def set_order_conf(self, topic: str, queues: Mapping[str, int]) -> None:
        """Fix the number of queues per broker of an ordered topic."""
        self._run(self._inner.set_order_conf(topic, queues))

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the minimum and maximum offset of each queue, and its last store time."""
        return self._run(self._inner.topic_stats(topic))

    def queue_bounds(self, topic: str) -> dict[MessageQueue, QueueBounds]:
        """Return the bounds of each readable queue of a topic."""
        return self._run(self._inner.queue_bounds(topic))
