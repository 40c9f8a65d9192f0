"""Brokers at a name server: registration, heartbeats, expiry, members of a group."""
