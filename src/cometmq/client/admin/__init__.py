"""Manages a cluster: topics, groups, offsets, messages, clients, brokers."""

from cometmq.client.admin.client import AdminClient
from cometmq.client.admin.offsets import Progress
from cometmq.client.admin.tracks import Track, TrackKind

__all__ = ["AdminClient", "Progress", "Track", "TrackKind"]
