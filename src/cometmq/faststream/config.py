"""What subscribers and publishers know of their broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from cometmq.faststream.connection import Connection
from cometmq.faststream.options import PublisherOptions, SubscriberOptions
from cometmq.faststream.producer import RocketProducer


@dataclass(kw_only=True)
class RocketBrokerConfig(BrokerConfig):
    """Of a broker, or of a router."""

    producer: RocketProducer = field(default_factory=RocketProducer)
    group: str = ""
    """The prefix of groups that are not given."""
    connection: Connection | None = None


@dataclass(kw_only=True)
class RocketSubscriberConfig(SubscriberUsecaseConfig):
    """Of a subscriber."""

    _outer_config: RocketBrokerConfig = field(default_factory=RocketBrokerConfig)
    topic: str
    options: SubscriberOptions

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy of the subscriber, else of router or broker, else ``NACK_ON_ERROR``."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        outer = self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR if outer is EMPTY else outer


@dataclass(kw_only=True)
class RocketSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """Of a subscriber in the AsyncAPI document."""

    topic: str
    options: SubscriberOptions


@dataclass(kw_only=True)
class RocketPublisherConfig(PublisherUsecaseConfig):
    """Of a publisher."""

    _outer_config: RocketBrokerConfig = field(default_factory=RocketBrokerConfig)
    topic: str
    options: PublisherOptions


@dataclass(kw_only=True)
class RocketPublisherSpecificationConfig(PublisherSpecificationConfig):
    """Of a publisher in the AsyncAPI document."""

    topic: str
    options: PublisherOptions
