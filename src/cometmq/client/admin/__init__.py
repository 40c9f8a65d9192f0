"""Manages a cluster: topics, groups, offsets, messages, clients, brokers."""

from cometmq.client.admin.client import AdminClient
from cometmq.client.admin.groups import Progress
from cometmq.client.admin.messages import Track, TrackKind

__all__ = ["AdminClient", "Progress", "Track", "TrackKind"]
