"""Pulls: reading a queue for a group, and long polling."""
