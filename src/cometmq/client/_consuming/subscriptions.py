"""What a consumer subscribes to: filters by topic, and the group's retry topic.

Source: DefaultMQPushConsumerImpl.copySubscription and subscribe, RocketMQ 5.3.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from cometmq.client._connection.namespaces import Namespace
from cometmq.client.filters import Filter
from cometmq.model.topic import check_topic_name, retry_topic
from cometmq.protocol.bodies import SubscriptionData


class Subscriptions:
    """The subscriptions of one consumer. Names are those of brokers, unless said otherwise.

    A change is announced by the next heartbeat, and adopted after it: a broker refuses pulls with a
    subscription that is newer than those it knows.

    Args:
        namespace: puts names into the client's namespace.
        group: as brokers know it.
        retries: whether messages come again through the group's retry topic.
    """

    def __init__(self, namespace: Namespace, group: str, *, retries: bool) -> None:
        self._namespace = namespace
        self._announced: dict[str, Filter] = {}
        self._adopted: dict[str, Filter] = {}
        self.retry_topic = retry_topic(group) if retries else None
        """The topic through which this group's messages come again; None without retries."""
        if self.retry_topic is not None:
            self._announced[self.retry_topic] = Filter.tags("*")

    def add(self, topic: str, filter: str | Filter) -> str:
        """Announce a topic as applications know it, or a different filter of it.

        Returns:
            The topic's name as brokers know it.

        Raises:
            InvalidNameError: the name breaks the rules.
            ConfigError: the filter makes no sense.
        """
        check_topic_name(topic)
        name = self._namespace.wrap_topic(topic)
        self._announced[name] = Filter.of(filter)
        return name

    def remove(self, topic: str) -> bool:
        """End the subscription of a topic as applications know it; whether there was one."""
        return self._announced.pop(self._namespace.wrap_topic(topic), None) is not None

    def adopt(self) -> None:
        """Pull by what was announced from now on: brokers know it."""
        self._adopted = dict(self._announced)

    def wanted(self, topic: str) -> Filter | None:
        """Give the filter to pull a topic with; None if it is not subscribed."""
        return self._adopted.get(topic)

    def topics(self) -> Collection[str]:
        """Give all topics to pull, the retry topic included."""
        return list(self._adopted)

    def asked_for(self) -> Mapping[str, Filter]:
        """Give the announced filters by topic, without the retry topic."""
        return {
            topic: wanted for topic, wanted in self._announced.items() if topic != self.retry_topic
        }

    def shown(self) -> Mapping[str, Filter]:
        """Give the announced filters by topic, as applications know it, without the retry topic."""
        return {self._namespace.unwrap(topic): each for topic, each in self.asked_for().items()}

    def renew(self, topic: str) -> None:
        """Announce a topic's subscription as the group's newest one."""
        if topic in self._announced:
            now_ms = time.time_ns() // 1_000_000
            self._announced[topic] = replace(self._announced[topic], version=now_ms)

    def data(self) -> list[SubscriptionData]:
        """Say all that is announced as a heartbeat does."""
        return [wanted.data(topic) for topic, wanted in sorted(self._announced.items())]
