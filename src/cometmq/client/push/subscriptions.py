"""What a consumer subscribes to: filters by topic, and the group's retry topic.

Source: DefaultMQPushConsumerImpl.copySubscription and subscribe, RocketMQ 5.3.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from cometmq.client.namespaces import Namespace
from cometmq.client.subscription import Filter
from cometmq.model.topic import check_topic_name, retry_topic
from cometmq.protocol.bodies import SubscriptionData


class Subscriptions:
    """The subscriptions of one consumer. Names are those of brokers, unless said otherwise.

    Args:
        namespace: puts names into the client's namespace.
        group: as brokers know it.
        retries: whether messages come again through the group's retry topic.
    """

    def __init__(self, namespace: Namespace, group: str, *, retries: bool) -> None:
        self._namespace = namespace
        self._filters: dict[str, Filter] = {}
        self.retry_topic = retry_topic(group) if retries else None
        """The topic through which this group's messages come again; None without retries."""
        self._retry_filter = Filter.tags("*")

    def add(self, topic: str, wanted: str | Filter) -> str:
        """Subscribe a topic as applications know it, or subscribe it differently.

        Returns:
            The topic's name as brokers know it.

        Raises:
            InvalidNameError: the name breaks the rules.
            ConfigError: the filter makes no sense.
        """
        check_topic_name(topic)
        name = self._namespace.wrap_topic(topic)
        self._filters[name] = Filter.of(wanted)
        return name

    def remove(self, topic: str) -> bool:
        """End the subscription of a topic as applications know it; whether there was one."""
        return self._filters.pop(self._namespace.wrap_topic(topic), None) is not None

    def wanted(self, topic: str) -> Filter | None:
        """Give a topic's filter; None if it is not subscribed."""
        if topic == self.retry_topic:
            return self._retry_filter
        return self._filters.get(topic)

    def topics(self) -> Collection[str]:
        """Give all topics, the retry topic included."""
        return [*self._filters, *([self.retry_topic] if self.retry_topic else [])]

    def asked_for(self) -> Mapping[str, Filter]:
        """Give the filters by topic, without the retry topic."""
        return dict(self._filters)

    def shown(self) -> Mapping[str, Filter]:
        """Give the filters by topic, as applications know it, without the retry topic."""
        return {self._namespace.unwrap(topic): each for topic, each in self._filters.items()}

    def renew(self, topic: str) -> None:
        """Make a topic's subscription the group's newest one."""
        now_ms = time.time_ns() // 1_000_000
        if topic in self._filters:
            self._filters[topic] = replace(self._filters[topic], version=now_ms)
        elif topic == self.retry_topic:
            self._retry_filter = replace(self._retry_filter, version=now_ms)

    def data(self) -> list[SubscriptionData]:
        """Say it all as a heartbeat does."""
        found = {topic: self.wanted(topic) for topic in sorted(self.topics())}
        return [wanted.data(topic) for topic, wanted in found.items() if wanted is not None]
