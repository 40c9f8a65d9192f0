"""A transport of Kombu: ``import cometmq.kombu``, then ``Connection("cometmq://host:9876")``."""

from cometmq.kombu.transport import Transport, register

__all__ = ["Transport"]

register()
