"""The pull consumer and where it may start; the package ``pull`` holds what it is made of."""

from cometmq.client.offsets import StartFrom
from cometmq.client.pull import PullConsumer

__all__ = ["PullConsumer", "StartFrom"]
