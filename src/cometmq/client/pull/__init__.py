"""The pull consumer: the application asks for messages, and says how far it came."""

from cometmq.client.pull.consumer import PullConsumer

__all__ = ["PullConsumer"]
