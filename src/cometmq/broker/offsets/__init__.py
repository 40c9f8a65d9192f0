"""Committed offsets of consumer groups, resets, and the bounds of queues."""
