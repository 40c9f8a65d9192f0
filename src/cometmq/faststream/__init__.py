"""A broker for FastStream: typed handlers, routers and test brokers on RocketMQ's messages.

FastStream brings the decorators, dependency injection, AsyncAPI and the command line. This package
adds what is RocketMQ's: groups, tags, order, delays, timers, transactions, retries, dead letters.
It is the only one that knows FastStream's internals, which change with its releases (0.7.8).

    broker       `RocketBroker` and `RocketRouter`
    subscriber   consumes for the handlers; message what they get, and what became of it
    publisher    publishes for the decorators, brokers and replies
    options      the arguments of all of them, once
    testing      `TestRocketBroker`, without a server
"""

from cometmq.client.retry_policies import (
    ConstantRetry,
    ExponentialRetry,
    LinearRetry,
    NoRetry,
    Retry,
)
from cometmq.faststream.annotations import RocketBroker as RocketBrokerContext
from cometmq.faststream.annotations import RocketMessage as RocketMessageContext
from cometmq.faststream.asyncapi import RocketAsyncAPI
from cometmq.faststream.broker import RocketBroker, RocketPublisher, RocketRoute, RocketRouter
from cometmq.faststream.message import RocketMessage, UndecodableError
from cometmq.faststream.publisher import RocketPublishCommand, RocketResponse
from cometmq.faststream.testing import TestRocketBroker
from cometmq.faststream.transactions import Transaction

__all__ = [
    "RocketBroker", "RocketRouter", "RocketRoute", "RocketPublisher", "RocketMessage",
    "RocketResponse", "RocketPublishCommand", "RocketAsyncAPI", "TestRocketBroker",
    "RocketBrokerContext", "RocketMessageContext", "Transaction", "UndecodableError",
    "Retry", "NoRetry", "ConstantRetry", "LinearRetry", "ExponentialRetry",
]  # fmt: skip
