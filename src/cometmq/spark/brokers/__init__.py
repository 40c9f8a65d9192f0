"""Brokers as Spark's readers and writers use them: one session per process and set of options."""

from cometmq.spark.brokers.pool import connect, disconnect_all
from cometmq.spark.brokers.session import BrokerSession
from cometmq.spark.offsets import Bounds

__all__ = ["Bounds", "BrokerSession", "connect", "disconnect_all"]
