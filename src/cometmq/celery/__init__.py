"""Celery on CometMQ's and RocketMQ's brokers: ``import cometmq.celery``, then ``cometmq://`` URLs.

The import makes the transport known to Kombu, and lets new workers ask the others for revoked tasks
("mingle"), as they do with RabbitMQ and Redis.
"""

from celery.worker.consumer.mingle import Mingle

from cometmq.celery.control import Control
from cometmq.kombu.transport import SCHEME

__all__ = ["Control"]

Mingle.compatible_transports = {*Mingle.compatible_transports, SCHEME}
