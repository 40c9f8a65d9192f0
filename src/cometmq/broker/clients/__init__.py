"""Clients that are online: heartbeats, groups and members, queue locks, relayed requests."""
