"""Connections, routes and heartbeats of a client, and requests to its brokers."""
