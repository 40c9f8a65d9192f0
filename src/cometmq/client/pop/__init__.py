"""The consumer whose brokers hand out messages one by one, and its parts; for brokers from 5.0."""

from cometmq.client.pop.consumer import PopConsumer

__all__ = ["PopConsumer"]
