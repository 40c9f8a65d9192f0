"""Brokers as Spark's readers and writers use them: one session per process and set of options."""

from cometmq.spark.brokers.metadata import Sample, StoreTimes
from cometmq.spark.brokers.session import Away, BrokerSession, connect, disconnect_all
from cometmq.spark.offsets import Bounds

__all__ = ["Away", "Bounds", "BrokerSession", "Sample", "StoreTimes", "connect", "disconnect_all"]
