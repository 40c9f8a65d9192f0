"""The client for code without an event loop: scripts, notebooks, threads."""

from cometmq.client.blocking.portal import Portal

__all__ = ["Portal"]
