"""Selects the queues of a query: by topics, by a pattern of topics, or by name.

As ``subscribe``, ``subscribePattern`` and ``assign`` of Spark's Kafka source.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from cometmq.model.topic import is_system_topic
from cometmq.spark.brokers import BrokerSession
from cometmq.spark.errors import OptionError
from cometmq.spark.offsets import QueueKey
from cometmq.spark.options.topics import TopicReadOptions


@dataclass(frozen=True)
class Selection:
    """What was chosen; exactly one of the three is not None."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assigned: tuple[QueueKey, ...] | None = None

    @classmethod
    def of(cls, options: TopicReadOptions) -> Selection:
        """Read the options that choose.

        Raises:
            OptionError: no topic is named, the pattern is none, or `assign` has another shape.
        """
        if options.subscribe is not None:
            if not (topics := options.topics()):
                raise OptionError(
                    f"option subscribe={options.subscribe}: expected topics with commas between"
                )
            return cls(topics=topics)
        if options.subscribe_pattern is not None:
            try:
                re.compile(options.subscribe_pattern)
            except re.error as error:
                raise OptionError(
                    f"option subscribePattern={options.subscribe_pattern}: {error}"
                ) from None
            return cls(pattern=options.subscribe_pattern)
        return cls(assigned=_assigned(options.assign or ""))

    def queues(self, session: BrokerSession, gone: set[str] | None = None) -> list[QueueKey]:
        """Ask which queues these are now.

        Args:
            session: with the brokers.
            gone: gets the topics that do not exist; the bounds of queues that are known tell
                whether one was removed, or its only broker is away.

        Raises:
            GoneError: a topic that was named does not exist, and ``gone`` is None.
            UnreachableError: no name server answered.
        """
        if self.assigned is not None:
            return list(self.assigned)
        topics = self._topics_now(session)
        return session.queues(topics, gone=gone) if topics else []

    def takes(self, key: QueueKey) -> bool:
        """Whether these options choose a queue, whether or not it exists."""
        if self.assigned is not None:
            return key in self.assigned
        if self.topics is not None:
            return key.topic in self.topics
        pattern = self.pattern or ""
        return re.fullmatch(pattern, key.topic) is not None and _is_meant(key.topic, pattern)

    def _topics_now(self, session: BrokerSession) -> tuple[str, ...]:
        if self.topics is not None:
            return self.topics
        pattern = self.pattern or ""
        return tuple(each for each in session.topics_matching(pattern) if _is_meant(each, pattern))


def _is_meant(topic: str, pattern: str) -> bool:
    """Whether a pattern means this topic that it matches: ``.*`` means no topic of the system's.

    Topics of retries and dead letters begin with %, as a pattern does that means them.
    """
    return not is_system_topic(topic) and (not topic.startswith("%") or pattern.startswith("%"))


def _assigned(text: str) -> tuple[QueueKey, ...]:
    shape = 'expected {"topic": {"broker": [0, 1]}}'
    try:
        document = json.loads(text)
        keys = [
            QueueKey(topic, broker, _queue_id(queue_id))
            for topic, brokers in document.items()
            for broker, queue_ids in brokers.items()
            for queue_id in queue_ids
        ]
    except (ValueError, AttributeError, TypeError):
        raise OptionError(f"option assign={text}: {shape}") from None
    if not keys:
        raise OptionError(f"option assign={text}: it names no queue, {shape}")
    return tuple(sorted(set(keys)))


def _queue_id(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value
