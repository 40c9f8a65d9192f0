"""The consumer that calls a handler with each message, and its parts."""

from cometmq.client.push.consumer import PushConsumer

__all__ = ["PushConsumer"]
