"""Members of a client that only say that they are there."""

from __future__ import annotations

from dataclasses import dataclass, field

from cometmq.client._connection.heartbeats import Membership
from cometmq.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    ProducerData,
    SubscriptionData,
)


@dataclass
class SilentProducer:
    """A producer group of a client."""

    group: str

    def membership(self) -> Membership:
        """Say so."""
        return Membership(producers=[ProducerData(group_name=self.group)])


@dataclass
class SilentConsumer:
    """A consumer group of a client, with what it wants: topic to expression."""

    group: str
    wanted: dict[str, str] = field(default_factory=dict)

    def membership(self) -> Membership:
        """Say so."""
        data = ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            subscription_data_set=[
                SubscriptionData(topic=topic, sub_string=expression, sub_version=version)
                for version, (topic, expression) in enumerate(self.wanted.items())
            ],
        )
        return Membership(consumers=[data])
