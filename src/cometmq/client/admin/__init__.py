"""Manages a cluster: topics, groups, offsets, messages, clients, brokers."""

from cometmq.client.admin.client import AdminClient

__all__ = ["AdminClient"]
